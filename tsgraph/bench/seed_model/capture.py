"""How the wrapper captures (§3; §6, "Capture loop"): sizes ascending, four warm-ups each, one pool.

The bind of metadata and the barriers are left out: with stub metadata and one rank both cost nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch

from tsgraph.bench.settings import is_emulated
from tsgraph.keys import Batch
from tsgraph.protocols.backend import Backend

WARM_UPS = 4
Step = Callable[[Batch], Any]


@attrs.frozen(eq=False)
class Captured:
    """Graphs by size, what each returned, and what the pool holds, in bytes."""

    replays: Mapping[int, Callable[[], None]]
    outputs: Mapping[int, Any]
    pool_bytes: int
    kept: Any


def capture_all(step: Step, batches: Mapping[int, Batch], backend: Backend, *, freeze: bool = False) -> Captured:
    """Capture `step` on each of `batches`, by size.

    `freeze`: as the wrapper would with its collector option set. That setting never reaches it (§5.7).
    """
    with _collected(freeze=freeze):
        return _captured(step, [(batches[size], WARM_UPS) for size in sorted(batches)], backend)


def capture_barely(step: Step, batches: Mapping[int, Batch], backend: Backend) -> Captured:
    """The least that captures `step` on `batches`: largest first, one warm-up for all, no collector, and no check.

    Not the wrapper's way, nor anybody's: the floor.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        ordered = [batches[size] for size in sorted(batches, reverse=True)]
        return _captured(step, [(batch, int(batch is ordered[0])) for batch in ordered], backend)
    finally:
        if enabled:
            gc.enable()


def _captured(step: Step, batches: Sequence[tuple[Batch, int]], backend: Backend) -> Captured:
    """Captures on batches, each after so many warm-ups, in this order."""
    recorder = _Emulated(backend) if is_emulated(backend) else _Cuda()
    replays, outputs = {}, {}
    with torch.inference_mode():
        for batch, warm_ups in batches:
            replays[batch.rows], outputs[batch.rows] = _capture(step, batch, backend, recorder, warm_ups)
    return Captured(replays, outputs, recorder.pool_bytes(), recorder)


def _capture(
    step: Step, batch: Batch, backend: Backend, recorder: _Cuda | _Emulated, warm_ups: int
) -> tuple[Callable[[], None], Any]:
    for _ in range(warm_ups):
        backend.synchronize()
        batch.seq_lens.fill_(batch.tokens // batch.rows)
        recorder.warm(lambda: step(batch))
    backend.synchronize()
    replay, returned = recorder.record(lambda: step(batch))
    backend.synchronize()
    return replay, returned


@contextmanager
def _collected(*, freeze: bool) -> Iterator[None]:
    """Collect, and freeze if asked to; thaw and collect (R43)."""
    gc.collect()
    if freeze:
        gc.freeze()
    try:
        yield
    finally:
        if freeze:
            gc.unfreeze()
        gc.collect()


class _Cuda:
    """`torch.cuda.graph` as it comes: whatever it collects and empties at each capture is part of what is timed."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()
        self.graphs: list[torch.cuda.CUDAGraph] = []

    def warm(self, forward: Callable[[], Any]) -> None:
        """On the caller's stream, as the wrapper does."""
        forward()

    def record(self, forward: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            returned = forward()
        self.graphs.append(graph)
        return graph.replay, returned

    def pool_bytes(self) -> int:
        """Bytes of the segments of its pool."""
        mine = tuple(self.pool)
        segments = torch.cuda.memory_snapshot()
        return sum(each["total_size"] for each in segments if tuple(each.get("segment_pool_id", ())) == mine)


class _Emulated:
    """The same on the emulated device, which has `torch.cuda.graph` only while it stands in for torch's own."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.pool = backend, backend.pool()
        self.graphs: list[Any] = []

    def warm(self, forward: Callable[[], Any]) -> None:
        with self.backend.side_stream():
            forward()

    def record(self, forward: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.backend.trim()
        with self.backend.record(self.pool) as graph:
            returned = forward()
        self.graphs.append(graph)
        return graph.replay, returned

    def pool_bytes(self) -> int:
        return self.pool.bytes
