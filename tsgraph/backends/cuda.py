"""CUDA through torch: graphs in one shared pool, recorded on one capture stream.

`torch.cuda.graph` is not used: it collects garbage and empties the cache at every capture, and a capture that fails
inside it leaves the allocator and its pool open (faults L2, L3, L4). Here whatever a recording sets up is undone.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal
from weakref import WeakSet

import attrs
import torch

from tsgraph.backends import driver, hostfunc, kernels
from tsgraph.backends.blame import failing_line
from tsgraph.backends.pools import CudaPool
from tsgraph.backends.reach import Handed
from tsgraph.backends.stager import Feed, Stager
from tsgraph.backends.turns import Claim, HostFunction, Turns, land
from tsgraph.backends.workspaces import own_workspaces
from tsgraph.errors import BadBatch, CaptureUnsupported, InternalError
from tsgraph.protocols.backend import GraphNode, Lane, Memory, Pool, Reached

_TORCHS = "torch.cuda.graphs"
"""Where what is torch's own comes from: what stands in for it is called as it is."""


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
    claim: Claim | None = None

    def wait(self) -> None:
        """Block the host until it is done. Raises: HostFunctionFailed for the host functions before it."""
        hostfunc.refuse_inside("a wait")
        self.event.synchronize()
        if self.claim is not None:
            self.claim.tell()

    def done(self) -> bool:
        """Whether it is done, without blocking."""
        return bool(self.event.query())


def launcher(graph: Any) -> Callable[[], None]:
    """What launches `graph`: the function of C++ that torch's method calls after a look at a tracker that is not on."""
    kind = type(graph)
    launch: Callable[[], None] = super(kind, graph).replay if kind.__module__ == _TORCHS else graph.replay
    return launch


@attrs.define(eq=False, weakref_slot=True)
class CudaGraph:
    """A `torch.cuda.CUDAGraph`, by how much it grew its pool, the host functions in it, and what the driver tells."""

    pool: CudaPool
    turns: Turns
    functions: list[HostFunction] = attrs.field(factory=list)
    graph: torch.cuda.CUDAGraph = attrs.field(factory=lambda: torch.cuda.CUDAGraph())  # noqa: PLW0108 - the class of now
    bytes: int = 0
    listing: tuple[GraphNode, ...] | None = None
    handed: Handed | None = None
    feed: Feed | None = None
    launch: Callable[[], None] = attrs.field(init=False)

    @launch.default
    def _launch(self) -> Callable[[], None]:
        return launcher(self.graph)

    @property
    def reach(self) -> Mapping[int, Reached] | None:
        """What memory outside of its pool it is handed: see `tsgraph.protocols.backend.Graph.reach`."""
        if self.handed is None:
            return None
        staging = {} if self.feed is None else self.feed.stager.memory()
        return self.handed.reach(self.pool.outside, {tensor.data_ptr() for tensor in staging.values()})

    def replay(self) -> None:
        """Launch on the caller's current stream. Raises: HostFunctionFailed for earlier work, and nothing is run."""
        if hostfunc.INSIDE:
            hostfunc.refuse_inside("a replay")
        feed = self.feed
        if feed is not None and feed.ring.filled != feed.size:
            feed.offer()
        if self.functions or self.turns.open:
            self._take_turn()
        else:
            self.launch()
        if feed is not None:
            feed.ring.advance()

    def _take_turn(self) -> None:
        """Launch, with a turn for the host functions, once it is told what those of earlier turns have raised."""
        turn = self.turns.begin(self.functions)
        try:
            self.launch()
        except BaseException as error:
            if turn is not None:
                self.turns.cancel(turn, error)
            raise

    def release(self) -> None:
        """Destroy the graph; its share of the pool can be reused at once. Turns under way keep host functions."""
        self.pool.leave(self)
        self.graph.reset()
        self.functions.clear()
        self.feed = None
        _destroy_dropped()
        land()

    def __del__(self) -> None:
        """Torch's destructor keeps the interpreter's lock, and a replay under way may need it: leave it for later."""
        if self.functions:
            _DROPPED.append(self.graph)


@attrs.frozen(eq=False)
class CudaBranch:
    """A stream beside the caller's."""

    stream: torch.cuda.Stream

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Put the work of the block on the branch, after everything that is on the caller's current stream so far."""
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Order the caller's current stream after everything that was put on the branch."""
        torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


_DROPPED: deque[torch.cuda.CUDAGraph] = deque()


def _destroy_dropped() -> None:
    while _DROPPED:
        _DROPPED.popleft().reset()


def _recording_teller() -> Callable[[], bool]:
    """What says whether the current stream is recorded: the function of C++ that torch's only calls."""
    told: Callable[[], bool] = torch.cuda.is_current_stream_capturing
    plain = told.__module__ == _TORCHS
    return torch._C._cuda_isCurrentStreamCapturing if plain else told


class CudaBackend:
    """The device that the modules live on. Recordings go to one stream, warm-ups to the same (fault N3)."""

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self.device)
        self._pools: WeakSet[CudaPool] = WeakSet()
        self._turns = Turns()
        self._is_recorded = _recording_teller()
        self._recording: CudaGraph | None = None

    @property
    def stream(self) -> torch.cuda.Stream:
        """The capture stream."""
        return self._stream

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, fill: float) -> torch.Tensor:
        """A static device tensor of `shape`, every element `fill`: never an inference tensor (fault R3)."""
        with torch.inference_mode(mode=False):
            return torch.full(tuple(shape), fill, dtype=dtype, device=self.device)

    def pin(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A host tensor in pinned memory, zeroed."""
        with torch.inference_mode(mode=False):
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
        pool = CudaPool()
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

    def branch(self) -> CudaBranch:
        """A new branch. Torch hands out its streams in turn: one that another has, too, is only more orderly."""
        stream = torch.cuda.Stream(self.device)
        return CudaBranch(stream if stream != self._stream else torch.cuda.Stream(self.device))

    @property
    def recording(self) -> bool:
        """Whether what this thread puts on its current stream is being recorded."""
        return bool(self._is_recorded())

    @contextmanager
    def record(self, pool: Pool, *, reach: bool = False) -> Iterator[CudaGraph]:
        """Record the block into a graph of `pool`, which can tell its `reach`, if asked to. On an exception it is gone.

        Raises: CaptureUnsupported inside another capture, or where CUDA says that an operation cannot be recorded.
        """
        hostfunc.refuse_inside("a recording")
        if not isinstance(pool, CudaPool):
            raise InternalError(f"a CUDA recording needs a CUDA pool, not {type(pool).__name__}")
        if torch.cuda.is_current_stream_capturing():
            raise CaptureUnsupported(
                "a recording cannot be made inside another capture", hint="capture before or after it"
            )
        _destroy_dropped()
        recording, before = CudaGraph(pool, self._turns), pool.bytes
        with self.side_stream(), own_workspaces(self._stream.cuda_stream):
            handle = pool.handle()
            recording.handed = Handed(pool.outside()) if reach else None
            recording.graph.capture_begin(pool=handle, capture_error_mode="thread_local")
            try:
                with self._taking(recording):
                    yield recording
            except BaseException as error:
                pool.fail()
                self._abort(recording.graph, handle)
                if isinstance(error, RuntimeError) and _forbidden(error):
                    raise _refuse(error) from error
                raise
            # while it can still be asked for
            recording.listing = driver.list_nodes(self._stream.cuda_stream, recording.handed)
            self._end(recording, handle)
        recording.bytes = pool.bytes - before

    @contextmanager
    def _taking(self, recording: CudaGraph) -> Iterator[None]:
        """Host functions that the block puts on a capturing stream are of `recording`."""
        self._recording = recording
        try:
            yield
        finally:
            self._recording = None

    def _end(self, recording: CudaGraph, handle: Any) -> None:
        try:
            recording.graph.capture_end()
        except RuntimeError as error:
            recording.pool.fail()
            self._abandon(recording.graph, handle)
            raise CaptureUnsupported(
                f"CUDA could not end the recording: {error}",
                hint="an operation inside synchronised, allocated, or left work on an unjoined stream",
            ) from error
        recording.pool.keep(recording)

    def _abort(self, graph: torch.cuda.CUDAGraph, handle: Any) -> None:
        """End a recording whose block raised. An invalidated capture cannot be ended by torch alone."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is empty is no news
            try:
                graph.capture_end()
            except RuntimeError:
                self._abandon(graph, handle)
            else:
                graph.reset()

    def _abandon(self, graph: torch.cuda.CUDAGraph, handle: Any) -> None:
        """Close what `capture_end` left open when it raised: allocator routing, then the pool's use count (L3)."""
        for undo in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
            with suppress(RuntimeError):
                undo(self.device.index, handle)
        graph.reset()

    def host_function(self, function: Callable[[], object], *, on_error: Callable[[], object] | None = None) -> None:
        """Put Python on the caller's current stream: see `tsgraph.protocols.backend.Backend.host_function`.

        It runs in a thread of CUDA's. What it calls of this backend is refused; CUDA forbids all other calls, too, and
        may answer them with a deadlock.

        Raises: CaptureUnsupported without the runtime library of torch's CUDA, in a capture of somebody else's, and
        inside a host function.
        """
        hostfunc.refuse_inside("a host function")
        called = HostFunction(self._turns, function, on_error)
        with torch.cuda.device(self.device):
            if torch.cuda.is_current_stream_capturing():
                self._put_into(self._recording, called)
            else:
                self._put_alone(called)

    def _put_into(self, recording: CudaGraph | None, function: HostFunction) -> None:
        if recording is None:
            what = "a capture that is not the backend's would lose its host function"
            raise CaptureUnsupported(what, hint="record with Backend.record")
        hostfunc.launch(torch.cuda.current_stream().cuda_stream, function)
        recording.functions.append(function)

    def _put_alone(self, function: HostFunction) -> None:
        turn = self._turns.add((function,))
        try:
            hostfunc.launch(torch.cuda.current_stream().cuda_stream, function)
        except BaseException as error:
            self._turns.cancel(turn, error)
            raise

    def stager(self, lanes: Sequence[Lane], rows: int, *, reads: Literal["ring", "landing"] = "ring") -> Stager:
        """What brings rows into `lanes` by a kernel of its own. Raises: CaptureUnsupported without NVRTC or driver."""
        kernel = kernels.load(self, len(lanes))
        return Stager(lanes, rows, self, kernel, lambda: self._recording, reads)

    def synchronize(self) -> None:
        """Wait for all work of the device. Raises what asynchronous work raised, host functions' errors included."""
        hostfunc.refuse_inside("a synchronisation")
        torch.cuda.synchronize(self.device)
        _destroy_dropped()
        self._turns.tell_all()

    def ready(self) -> CudaReady:
        """A mark after everything queued so far on the caller's current stream."""
        hostfunc.refuse_inside("a mark")
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return CudaReady(event, self._turns.claim())

    def trim(self) -> None:
        """Give cached memory back to the driver."""
        torch.cuda.empty_cache()

    @property
    def allocated(self) -> int:
        """Bytes that live tensors take."""
        return int(torch.cuda.memory_allocated(self.device))

    def memory(self) -> Memory:
        """Bytes now."""
        free, total = torch.cuda.mem_get_info(self.device)
        pooled = sum(pool.bytes for pool in self._pools)
        return Memory(free=free, total=total, allocated=self.allocated, pooled=pooled)
