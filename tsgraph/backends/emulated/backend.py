"""The emulated backend: a CUDA device whose memory is plain CPU tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

import attrs
import torch

from tsgraph.backends.emulated import current, hostfunc
from tsgraph.backends.emulated.allocator import CUDA, Geometry
from tsgraph.backends.emulated.dispatcher import is_plain
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.backends.emulated.memory import EmulatedPool, machine_bytes
from tsgraph.backends.emulated.recording import Recording
from tsgraph.backends.emulated.refusal import refuse
from tsgraph.backends.emulated.residence import Place, Residence
from tsgraph.backends.emulated.staging import EmulatedKernel
from tsgraph.backends.emulated.streams import Event, Stream, current_stream, using
from tsgraph.backends.emulated.tracking import tracking
from tsgraph.backends.emulated.trees import describe
from tsgraph.backends.stager import Stager
from tsgraph.backends.turns import Claim, HostFunction, Turns, land
from tsgraph.errors import BadBatch
from tsgraph.protocols.backend import Lane, Memory, Pool, Ready


@attrs.frozen
class Mark:
    """A mark after work that is done already: nothing here is queued."""

    event: Event
    claim: Claim | None = None

    def wait(self) -> None:
        """Nothing to wait for.

        Raises: CaptureUnsupported where a recording forbids to wait; HostFunctionFailed for host functions before it.
        """
        self.event.synchronize()
        if self.claim is not None:
            self.claim.tell()

    def done(self) -> bool:
        """True. Raises: CaptureUnsupported where a recording forbids to ask."""
        return self.event.query()


@attrs.frozen(eq=False)
class EmulatedBranch:
    """A stream beside the caller's."""

    stream: Stream

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Put the work of the block on the branch, after everything that is on the caller's current stream so far."""
        self.stream.wait_stream(current_stream())
        with using(self.stream):
            yield

    def join(self) -> None:
        """Order the caller's current stream after everything that was put on the branch."""
        current_stream().wait_stream(self.stream)


class EmulatedBackend:
    """CUDA-graph semantics on CPU tensors. Implements `tsgraph.protocols.backend.Backend`.

    Recordings go to one stream, so one thread records at a time. What other threads do is not recorded, and may be
    forbidden meanwhile, as CUDA's thread-local capture mode has it. `checked`: faults that a GPU would not report, such
    as a missing wait between streams, are errors.
    """

    name = "emulated"
    device = torch.device("cpu")

    def __init__(self, *, checked: bool = True, geometry: Geometry = CUDA) -> None:
        self._residence = Residence()
        self._stream = Stream(name="the capture stream")
        self._checked, self._geometry = checked, geometry
        self._pools: weakref.WeakSet[EmulatedPool] = weakref.WeakSet()
        self._turns = Turns()
        self._recording: EmulatedGraph | None = None

    @property
    def stream(self) -> Stream:
        """The capture stream."""
        return self._stream

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, fill: float) -> torch.Tensor:
        """A static device tensor of `shape`, every element `fill`: never an inference tensor (fault R3).

        Raises: CaptureUnsupported inside a recording.
        """
        return self._make(shape, dtype, fill, "device")

    def pin(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A zeroed host tensor that counts as pinned: CPU builds of torch cannot pin.

        Raises: CaptureUnsupported inside a recording.
        """
        return self._make(shape, dtype, 0, "pinned")

    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        """Say that `tensors` live on the device. Keeps none of them alive.

        Raises: BadBatch for one that is not a plain strided CPU tensor; then none is adopted.
        """
        adopted = list(tensors)
        for index, tensor in enumerate(adopted):
            _check_adoptable(index, tensor)
        for tensor in adopted:
            self._residence.add(tensor)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` lives on the device; views live where their memory does."""
        return self._residence.holds(tensor)

    def pool(self) -> EmulatedPool:
        """A new, empty graph pool."""
        pool = EmulatedPool(checked=self._checked, geometry=self._geometry)
        self._pools.add(pool)
        return pool

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Run the block on the capture stream, ordered after the caller's stream, and the caller's after it.

        What it makes on the device lives there from then on, as long as it lives.
        """
        with self._on_stream(), tracking(self._residence):
            yield

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        caller = current_stream()
        self._stream.wait_stream(caller)
        with using(self._stream):
            try:
                yield
            finally:
                caller.wait_stream(self._stream)

    def branch(self) -> EmulatedBranch:
        """A new branch."""
        return EmulatedBranch(Stream(name="a branch"))

    @property
    def recording(self) -> bool:
        """Whether what this thread puts on its current stream is being recorded."""
        return current_stream().capture is not None

    def record(self, pool: Pool, *, reach: bool = False) -> AbstractContextManager[EmulatedGraph]:  # noqa: ARG002
        """Record the block into a graph of `pool`. On an exception everything is as before, and it goes on.

        The graph can tell its `reach`, asked to or not.

        Raises: CaptureUnsupported for an operation that no recording may contain, with its name and the step's line,
        for work on streams that were not joined back, and inside another recording or beside that of another thread;
        (checked) for a wait that is missing between streams; BadBatch for a pool of another backend.
        """
        if not isinstance(pool, EmulatedPool):
            raise BadBatch(f"{type(pool).__name__} is a pool of another backend", hint="take one from backend.pool()")
        return self._record(pool)

    @contextmanager
    def _record(self, pool: EmulatedPool) -> Iterator[EmulatedGraph]:
        hint = "end the outer recording first"
        current.refuse_inside("a recording", hint)
        if self._stream.capture is not None:
            raise refuse("a recording", "another thread is recording on the capture stream", hint)
        turns, checked = self._turns, self._checked
        recording = Recording(self._residence, pool, checked=checked, mode="thread_local", turns=turns)
        with self._on_stream(), recording.run() as graph:
            self._recording = graph
            try:
                yield graph
            finally:
                self._recording = None

    def host_function(self, function: Callable[[], object], *, on_error: Callable[[], object] | None = None) -> None:
        """Put Python on the caller's current stream: see `tsgraph.protocols.backend.Backend.host_function`.

        It runs in the thread that replays, or at once outside a recording. What calls the device is refused inside.

        Raises: CaptureUnsupported in a recording that is invalid or not this backend's, and inside a host function.
        """
        called, capture = HostFunction(self._turns, function, on_error), current_stream().capture
        if capture is None:
            self._run(called)
        elif self._recording is None or capture is not self._stream.capture:
            why = "this recording is not the backend's, and would lose it"
            raise refuse("host_function", why, "record with EmulatedBackend.record")
        else:
            hostfunc.put(called, called, self._residence)
            self._recording.functions.append(called)

    def _run(self, function: HostFunction) -> None:
        turn = self._turns.add((function,))
        try:
            hostfunc.put(function, function, self._residence)
        except BaseException as error:
            self._turns.cancel(turn, error)
            raise
        land()

    def stager(self, lanes: Sequence[Lane], rows: int, *, reads: Literal["ring", "landing"] = "ring") -> Stager:
        """What brings rows into `lanes`: by the tables and trays of a GPU's kernel, read by numpy."""
        return Stager(lanes, rows, self, EmulatedKernel(), lambda: self._recording, reads)

    def synchronize(self) -> None:
        """Nothing to wait for: work is done where it was asked for.

        Raises: CaptureUnsupported while any thread records, and that recording is invalid then, as on a GPU;
        HostFunctionFailed for host functions whose errors were not raised yet.
        """
        current.refuse_on_device("a synchronisation", "synchronise before or after the recording")
        self._turns.tell_all()

    def ready(self) -> Ready:
        """A mark after everything queued so far on the caller's current stream."""
        return Mark(current_stream().record_event(), self._turns.claim())

    def trim(self) -> None:
        """Nothing to give back: memory that nothing uses any more is free already."""

    @property
    def allocated(self) -> int:
        """Bytes that live device tensors take."""
        return self._residence.bytes

    def memory(self) -> Memory:
        """Bytes now. `free` and `total` are the machine's; `allocated` are those of live device tensors."""
        free, total = machine_bytes()
        pooled = sum(pool.bytes for pool in self._pools)
        return Memory(free=free, total=total, allocated=self.allocated, pooled=pooled)

    def _make(self, shape: Sequence[int], dtype: torch.dtype, fill: float, place: Place) -> torch.Tensor:
        what, hint = f"an allocation of {place} memory", "allocate buffers before the recording"
        current.refuse_inside(what, hint)
        current.refuse_unsafe(what, hint)
        with torch.inference_mode(mode=False):
            tensor = torch.full(tuple(shape), fill, dtype=dtype, device=self.device)
        self._residence.add(tensor, place)
        return tensor


def _check_adoptable(index: int, tensor: torch.Tensor) -> None:
    if is_plain(type(tensor)) and tensor.device.type == "cpu" and tensor.layout is torch.strided:
        return
    kind = type(tensor).__name__
    raise BadBatch(
        f"tensor {index}, a {kind} {describe(tensor)} on {tensor.device}, cannot live on the emulated device",
        hint="the emulated device takes plain strided CPU tensors",
    )
