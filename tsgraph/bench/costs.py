"""What one call costs beside time: launches, device allocations, tensors that it makes, Python memory that it keeps."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable
from itertools import repeat
from statistics import median
from typing import Any

import torch

from tsgraph.bench.turns import Action, uncollected

LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaMemcpy", "cudaMemset", "cuMemcpy", "cuMemset", "cudaGraphLaunch")
"""How calls of CUDA begin that put work on a stream. A graph is one, whatever is in it."""


def launches(action: Action, calls: int = 20) -> dict[str, float] | None:
    """How often one call of `action` calls what puts work on a stream, by name; None without a CUDA device."""
    if not torch.cuda.is_available():
        return None
    action()
    torch.cuda.synchronize()
    with _profile(cuda=True) as profiled:
        for _ in repeat(None, calls):
            action()
        torch.cuda.synchronize()
    return count_launches(((event.key, event.count) for event in profiled.key_averages()), calls)


def _profile(*, cuda: bool = False) -> Any:
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # else it tells standard error each time that it starts and stops
    return profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda], acc_events=True)


def count_launches(events: Iterable[tuple[str, int]], calls: int) -> dict[str, float]:
    """Of events with their counts those that are launches, for one of `calls`."""
    return {name: count / calls for name, count in events if name.startswith(LAUNCHES)}


def device_allocations(action: Action, calls: int = 100) -> float | None:
    """Allocations from torch's caching allocator in one call of `action`; None without a CUDA device."""
    if not torch.cuda.is_available():
        return None
    action()
    before = _allocated()
    for _ in repeat(None, calls):
        action()
    after = _allocated()
    torch.cuda.synchronize()
    return (after - before) / calls


def _allocated() -> int:
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def blocks_kept(action: Action, calls: int = 200, tries: int = 3) -> float:
    """Blocks of Python's memory that a call of `action` leaves behind: the median of some tries, since others work."""
    action()
    with uncollected():
        return median(_blocks_kept(action, calls) for _ in range(tries))


def _blocks_kept(action: Action, calls: int) -> float:
    before = sys.getallocatedblocks()
    for _ in repeat(None, calls):
        action()
    return (sys.getallocatedblocks() - before) / calls


def tensors_made(action: Action) -> int:
    """How many operators of one call of `action` return new tensors, views included. Its steady calls are asked.

    Counted by torch's profiler: a dispatch mode would be noticed by what compares tensors, and change the call.
    """
    action()
    with _profile() as profiled:
        action()
    return sum(makes_tensors(event.name) for event in profiled.events() if event.cpu_parent is None)


@functools.cache
def makes_tensors(operator: str) -> bool:
    """Whether an operator, by its name, returns a tensor that it was not given to write to; calls of CUDA do not."""
    if "::" not in operator:
        return False
    schemas = torch._C._jit_get_schemas_for_operator(operator)  # noqa: SLF001 - there is no other way to ask
    plain = [schema for schema in schemas if not schema.overload_name.endswith("out")]
    return any("Tensor" in str(one.type) and not _written(one) for schema in plain[:1] for one in schema.returns)


def _written(returned: Any) -> bool:
    return returned.alias_info is not None and bool(returned.alias_info.is_write)
