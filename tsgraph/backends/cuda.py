"""CUDA through torch: graphs in one shared pool, recorded on one capture stream.

`torch.cuda.graph` is not used: it collects garbage and empties the cache at every capture, and a capture that fails
inside it leaves the allocator and its pool open (faults L2, L3, L4). Here whatever a recording sets up is undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet, finalize

import attrs
import torch

from tsgraph.backends.blame import failing_line
from tsgraph.errors import BadBatch, CaptureUnsupported, InternalError
from tsgraph.protocols.backend import Memory, Pool


def _forbidden(error: RuntimeError) -> bool:
    """Whether CUDA refused an operation because the stream is capturing (it has one message for all of them)."""
    return "captur" in str(error)


def _refuse(error: RuntimeError) -> CaptureUnsupported:
    line, says = failing_line(error), str(error).partition("\n")[0]
    what = f"an operation at {line} cannot be recorded: {says}"
    return CaptureUnsupported(what, hint="host syncs and pageable copies belong outside the recording", line=line)


@attrs.define(eq=False)
class CudaReady:
    """Done when everything queued before it on its stream is."""

    event: torch.cuda.Event

    def wait(self) -> None:
        """Block the host until it is done."""
        self.event.synchronize()

    def done(self) -> bool:
        """Whether it is done, without blocking."""
        return bool(self.event.query())


class CudaPool:
    """One private pool of torch's caching allocator.

    It counts as a user of the pool itself: torch refuses to record into a pool whose last graph was destroyed.
    """

    def __init__(self, device: int) -> None:
        self.handle: Any = torch.cuda.graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(device, self.handle)
        torch._C._cuda_endAllocateToPool(device, self.handle)
        finalize(self, torch._C._cuda_releasePool, device, self.handle)

    @property
    def bytes(self) -> int:
        """Bytes of the segments that the pool holds. Walks the allocator: not for the hot path."""
        segments = torch.cuda.memory_snapshot()
        return sum(s["total_size"] for s in segments if tuple(s.get("segment_pool_id", ())) == tuple(self.handle))


@attrs.define(eq=False)
class CudaGraph:
    """A `torch.cuda.CUDAGraph` and by how much it grew its pool. `replay` is the graph's own bound method."""

    graph: torch.cuda.CUDAGraph = attrs.field(factory=torch.cuda.CUDAGraph)
    bytes: int = 0

    def replay(self) -> None:
        """Launch on the caller's current stream."""
        self.graph.replay()

    def release(self) -> None:
        """Destroy the graph; its share of the pool can be reused at once."""
        self.graph.reset()


class CudaBackend:
    """The device that the modules live on. Recordings go to one stream, warm-ups to the same (fault N3)."""

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self.device)
        self._pools: WeakSet[CudaPool] = WeakSet()

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, fill: float) -> torch.Tensor:
        """A static device tensor of `shape`, every element `fill`."""
        return torch.full(tuple(shape), fill, dtype=dtype, device=self.device)

    def pin(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A host tensor in pinned memory, zeroed."""
        return torch.zeros(tuple(shape), dtype=dtype, pin_memory=True)

    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        """Check that `tensors` live on this device. Raises BadBatch for the first that does not."""
        for tensor in tensors:
            if not self.holds(tensor):
                raise BadBatch(
                    f"a tensor of shape {tuple(tensor.shape)} lives on {tensor.device}, not on {self.device}",
                    hint="move modules and states to the device before the runtime is built",
                )

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` lives on this device."""
        return tensor.device == self.device

    def pool(self) -> CudaPool:
        """A new, empty graph pool."""
        pool = CudaPool(self.device.index)
        self._pools.add(pool)
        return pool

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Run the block on the capture stream, ordered after the caller's stream, and the caller's after it."""
        caller = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):
            try:
                yield
            finally:
                caller.wait_stream(self._stream)

    @contextmanager
    def record(self, pool: Pool) -> Iterator[CudaGraph]:
        """Record the block into a graph of `pool`. On an exception nothing of the recording is left.

        Raises: CaptureUnsupported inside another capture, or where CUDA says that an operation cannot be recorded.
        """
        if not isinstance(pool, CudaPool):
            raise InternalError(f"a CUDA recording needs a CUDA pool, not {type(pool).__name__}")
        if torch.cuda.is_current_stream_capturing():
            raise CaptureUnsupported(
                "a recording cannot be made inside another capture", hint="capture before or after it"
            )
        recording, before = CudaGraph(), pool.bytes
        with self.side_stream():
            recording.graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
            try:
                yield recording
            except BaseException as error:
                self._abort(recording.graph, pool)
                if isinstance(error, RuntimeError) and _forbidden(error):
                    raise _refuse(error) from error
                raise
            self._end(recording.graph, pool)
        recording.bytes = pool.bytes - before

    def _end(self, graph: torch.cuda.CUDAGraph, pool: CudaPool) -> None:
        try:
            graph.capture_end()
        except RuntimeError as error:
            self._abandon(graph, pool)
            raise CaptureUnsupported(
                f"CUDA could not end the recording: {error}",
                hint="an operation inside synchronised, allocated, or left work on an unjoined stream",
            ) from error

    def _abort(self, graph: torch.cuda.CUDAGraph, pool: CudaPool) -> None:
        """End a recording whose block raised. An invalidated capture cannot be ended by torch alone."""
        try:
            graph.capture_end()
        except RuntimeError:
            self._abandon(graph, pool)
        else:
            graph.reset()

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: CudaPool) -> None:
        """Close what `capture_end` left open when it raised: allocator routing, then the pool's use count (L3)."""
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self.device.index, pool.handle)
            torch._C._cuda_releasePool(self.device.index, pool.handle)
        graph.reset()

    def synchronize(self) -> None:
        """Wait for all work of the device. Raises what asynchronous work raised."""
        torch.cuda.synchronize(self.device)

    def ready(self) -> CudaReady:
        """A mark after everything queued so far on the caller's current stream."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return CudaReady(event)

    def trim(self) -> None:
        """Give cached memory back to the driver."""
        torch.cuda.empty_cache()

    def memory(self) -> Memory:
        """Bytes now."""
        free, total = torch.cuda.mem_get_info(self.device)
        allocated = torch.cuda.memory_allocated(self.device)
        return Memory(free=free, total=total, allocated=allocated, pooled=sum(pool.bytes for pool in self._pools))
