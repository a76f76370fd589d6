"""Hostile values wherever nobody has promised anything, so that a read of what nobody refreshed becomes visible.

A read of a stale row is right as long as the row happens to hold what it should. Between two steps this takes the luck
away. It works on whole memory, so it makes steps slower, and it changes nothing that a right engine may read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tsgraph.backends.emulated.allocator import Block
from tsgraph.backends.emulated.memory import EmulatedPool, lease_of
from tsgraph.buffers.contract import Field
from tsgraph.buffers.hostile import NAN_BYTES, hostile_value
from tsgraph.keys import Mode
from tsgraph.runtime import GraphRuntime

_PATTERN_BYTES = 16


@contextmanager
def poison(runtime: GraphRuntime) -> Iterator[None]:
    """Before each step of `runtime` in the block, fill what that step may not read with hostile values.

    Filled are all rows and columns of static buffers, before the step is staged, except rows that the engine wrote in
    place; and on the emulated backend the outputs of earlier replays and every block of the graph pool that nobody
    holds, where the replays before left their intermediates. Floats become NaN, integers indices out of every range.

    The outputs of `runtime.eager` are not touched: it is what steps are compared with.
    """
    serve = runtime._serve

    def serve_poisoned(rows: int | None, mode: Mode, *rest: Any) -> Any:
        sources: Mapping[str, Any] = rest[-1]
        _fill_buffers(runtime, runtime._server.live_rows(rows, sources) if mode is Mode.DECODE else None)
        _fill_pool(runtime)
        return serve(rows, mode, *rest)

    runtime._serve = serve_poisoned
    try:
        yield
    finally:
        runtime._serve = serve


def _fill_buffers(runtime: GraphRuntime, live: int | None) -> None:
    """Fill static buffers; of those written in place only what lies beyond `live` rows (None: nothing)."""
    arena = runtime._parts.engine.arena
    tensors = arena.tensors()
    with torch.inference_mode():
        for field in arena.fields:
            whole = tensors[field.label]
            whole[_first_free(field, live, len(whole)) :].fill_(hostile_value(field.dtype, field.pad))


def _first_free(field: Field, live: int | None, entries: int) -> int:
    if field.source != "engine":
        return 0
    return entries if live is None else live * field.rows_per_request


def _fill_pool(runtime: GraphRuntime) -> None:
    """Fill outputs that lie in the pool, and its free blocks."""
    pool = runtime._parts.engine.pool
    if not isinstance(pool, EmulatedPool):
        return
    for slot in runtime.slots.values():
        for leaf in slot.outputs.leaves if slot.outputs is not None else ():
            lease = None if leaf is None else lease_of(leaf)
            if lease is not None:
                _fill(lease.block, _bytes_of(lease.dtype))
    pool.collect()
    for blocks in pool._allocator._free.values():
        for *_, block in blocks:
            _fill(block, np.resize(np.array(NAN_BYTES, np.uint8), _PATTERN_BYTES))


def _bytes_of(dtype: torch.dtype) -> np.ndarray[Any, np.dtype[np.uint8]]:
    sample = torch.full((_PATTERN_BYTES // dtype.itemsize,), hostile_value(dtype), dtype=dtype)
    found: np.ndarray[Any, np.dtype[np.uint8]] = sample.view(torch.uint8).numpy()
    return found


def _fill(block: Block, pattern: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    block.memory.reshape(-1, _PATTERN_BYTES)[:] = pattern
