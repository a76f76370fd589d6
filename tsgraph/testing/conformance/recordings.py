"""What a backend promises about recordings: what they hold, what a replay does, what a failure leaves."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from tsgraph.errors import CaptureUnsupported
from tsgraph.protocols.backend import Backend, Graph, Pool
from tsgraph.testing.conformance.backend import BACKEND, PLANTED, BackendTrial, holding

LARGE, SMALL = 1 << 20, 1 << 18


def record(backend: Backend, pool: Pool, block: Callable[[], Any]) -> tuple[Graph, Any]:
    """A graph of `block` that is to tell all that it can, and what that returned."""
    with backend.record(pool, reach=True) as graph:
        returned = block()
    return graph, returned


def failure(backend: Backend, pool: Pool, block: Callable[[], Any]) -> tuple[type[BaseException] | None, str]:
    """The error's class and words when `block` is recorded; the error itself would keep the block's tensors."""
    try:
        with backend.record(pool):
            block()
    except Exception as error:  # noqa: BLE001 - it is what is asked for
        return type(error), str(error)
    return None, "no error"


def fails(x: torch.Tensor) -> Callable[[], Any]:
    """A block that allocates, works and raises."""

    def block() -> None:
        kept = x.repeat(4) * 2
        raise ValueError(PLANTED, kept.shape)

    return block


@BACKEND.promise("record", "no work done before a replay")
def record_runs_nothing(trial: BackendTrial) -> str | None:
    """A recording computes nothing."""
    x = trial.filled(1)
    record(trial.part, trial.part.pool(), lambda: x.add_(1))
    return holding(1, x)


@BACKEND.promise("record", "a graph that reads at each replay what its inputs hold then, and writes the same outputs")
def replay_reads_inputs(trial: BackendTrial) -> str | None:
    """Three times with other rows."""
    x = trial.filled(1)
    graph, doubled = record(trial.part, trial.part.pool(), lambda: x * 2)
    for value in (3, 4, 5):
        x.fill_(value)
        graph.replay()
        if told := holding(2 * value, doubled):
            return told
    return None


@BACKEND.promise("record", "a copy from pinned memory made again at each replay")
def replay_copies_pinned_memory(trial: BackendTrial) -> str | None:
    """It brings what the host wrote meanwhile."""
    x, host = trial.filled(0), trial.part.pin((4,), torch.float32)
    graph, _ = record(trial.part, trial.part.pool(), lambda: x.copy_(host, non_blocking=True))
    for value in (5, 6):
        host.fill_(value)
        graph.replay()
        trial.part.synchronize()
        if told := holding(value, x):
            return told
    return None


@BACKEND.promise("record", "an exception of the block to go on as it is")
def record_raises_the_blocks_error(trial: BackendTrial) -> str | None:
    """Neither swallowed nor turned into another."""
    found, says = failure(trial.part, trial.part.pool(), fails(trial.filled(1)))
    return None if found is ValueError and PLANTED in says else f"{found}: {says}"


@BACKEND.promise("record", "the stream clean after an exception")
def record_cleans_up(trial: BackendTrial) -> str | None:
    """Eager work and further recordings go on, after errors of the block and of the device."""
    x, pool = trial.filled(1), trial.part.pool()
    for block in (fails(x), lambda: (x * 2).sum().item()):
        failure(trial.part, pool, block)
        if told := holding(2, x * 2):
            return f"eager work that gives {told}"
        graph, tripled = record(trial.part, pool, lambda: x * 3)
        graph.replay()
        if told := holding(3, tripled):
            return f"a recording that gives {told}"
    return None


@BACKEND.promise("record", "the memory of a failed recording back")
def record_gives_memory_back(trial: BackendTrial) -> str | None:
    """The pool has the bytes of before."""
    x, pool = trial.filled(1, LARGE), trial.part.pool()
    for _ in range(3):
        failure(trial.part, pool, fails(x))
    gc.collect()
    trial.part.trim()
    return f"{pool.bytes} bytes in its pool" if pool.bytes else None


@BACKEND.promise("record", "the graphs of its pool unharmed by a failure")
def record_spares_other_graphs(trial: BackendTrial) -> str | None:
    """They replay as before."""
    x, pool = trial.filled(1), trial.part.pool()
    graph, doubled = record(trial.part, pool, lambda: x * 2)
    failure(trial.part, pool, fails(x))
    graph.replay()
    return holding(2, doubled)


@BACKEND.promise("record", "CaptureUnsupported for a read by the host")
def record_refuses_syncs(trial: BackendTrial) -> str | None:
    """`item` waits for the device."""
    x = trial.filled(1)
    found, says = failure(trial.part, trial.part.pool(), lambda: (x * 2).sum().item())
    return None if found and issubclass(found, CaptureUnsupported) else f"{found}: {says}"


@BACKEND.promise("record", "CaptureUnsupported inside another recording")
def record_refuses_nesting(trial: BackendTrial) -> str | None:
    """The outer one fails with it."""
    pool = trial.part.pool()
    found, says = failure(trial.part, pool, lambda: record(trial.part, pool, lambda: None))
    return None if found and issubclass(found, CaptureUnsupported) else f"{found}: {says}"


@BACKEND.promise("record", "the memory of its pool used again by later recordings")
def record_shares_its_pool(trial: BackendTrial) -> str | None:
    """A smaller one fits into what a larger one left (R5)."""
    x, pool = trial.filled(1, LARGE), trial.part.pool()
    large, _ = record(trial.part, pool, lambda: x.repeat(4).sum())
    small, _ = record(trial.part, pool, lambda: x[:SMALL].repeat(4).sum())
    return None if small.bytes < large.bytes else f"{small.bytes} bytes more for it, after {large.bytes}"


@BACKEND.promise("record", "a pool that serves again after its last graph is gone")
def record_reuses_a_pool(trial: BackendTrial) -> str | None:
    """A runtime that wakes records into it."""
    x, pool = trial.filled(1), trial.part.pool()
    record(trial.part, pool, lambda: x * 2)[0].release()
    graph, tripled = record(trial.part, pool, lambda: x * 3)
    graph.replay()
    return holding(3, tripled)
