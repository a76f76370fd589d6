"""The device as tsgraph sees it: memory, one capture stream, recordings, events. Implemented in `tsgraph.backends`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs

if TYPE_CHECKING:
    import torch


@attrs.frozen(kw_only=True)
class Memory:
    """Bytes of the device: `free` and `total` of all, `allocated` by this process, `pooled` held by graph pools."""

    free: int
    total: int
    allocated: int
    pooled: int


class Ready(Protocol):
    """When work that was queued so far is done."""

    def wait(self) -> None:
        """Block the host until it is done. Raises what the work raised.

        Raises: HostFunctionFailed for host functions queued before the mark: its own (those since the mark before it)
        whenever it is asked, those of earlier marks unless they were raised elsewhere.
        """

    def done(self) -> bool:
        """Whether it is done, without blocking."""


class Pool(Protocol):
    """Memory that the graphs of one runtime share (R5): replays are serialised, so each may use all of it."""

    @property
    def bytes(self) -> int:
        """Bytes the pool holds now."""

    def holds(self, address: int) -> bool:
        """Whether `address` lies in memory that the pool holds now, in use or not. Not for the hot path."""


@attrs.frozen
class GraphNode:
    """A node of a graph: its `kind` ("kernel", "memcpy", "memset", "host", …), its name, and the grid of a kernel.

    `name` is empty and `grid` None where the device does not tell them.
    """

    kind: str
    name: str = ""
    grid: tuple[int, int, int] | None = None


@attrs.frozen
class Reached:
    """Memory outside of a graph's pool that a node of it is handed, used or not.

    `node`: the name of the first node that is, or its kind where it has none. `bytes`: of the allocator's block, or of
    the storage. `own`: it was made while the graph was recorded, as the memory of random generators may be.
    """

    node: str
    bytes: int
    own: bool = False


class HostCall(Protocol):
    """A host function of a graph: what it is called, and the line that put it on its stream."""

    @property
    def name(self) -> str:
        """Its qualified name."""

    @property
    def line(self) -> str:
        """`file:line`."""


class Graph(Protocol):
    """One recording. It is replayable from the moment the `record` context is left without an exception."""

    @property
    def bytes(self) -> int:
        """Bytes by which this recording grew its pool."""

    @property
    def functions(self) -> Sequence[HostCall]:
        """Its host functions, in the order in which they were put there."""

    @property
    def listing(self) -> tuple[GraphNode, ...] | None:
        """Its nodes, in the order in which they were recorded; None where the device does not tell."""

    @property
    def reach(self) -> Mapping[int, Reached] | None:
        """What memory of the device outside of its pool its kernels, copies and fills are handed, by where it starts.

        That is the start of the allocator's block, or of the storage. It was live when the recording began, or is when
        this is first asked. What its staging node is handed is left out. None where the device does not tell, or was
        not asked to when the graph was recorded. Not for the hot path.
        """

    def replay(self) -> None:
        """Run what was recorded, on the same addresses, on the caller's current stream. Python does not run again.

        Only its host functions do, in their places.

        Raises: HostFunctionFailed, with nothing run, for host functions of earlier work that no living mark covers.
        """

    def release(self) -> None:
        """Give back the recording and its share of the pool. Twice is once.

        Replays that are queued still run; host functions are kept until they have.
        """


class Branch(Protocol):
    """A second queue of work beside the current stream. One branch has one block of work open at a time."""

    def fork(self) -> AbstractContextManager[None]:
        """Put the work of the block on the branch, after everything that is on the caller's current stream so far.

        In a recording it is recorded, too, and must be joined in it.
        """

    def join(self) -> None:
        """Order the caller's current stream after everything that was put on the branch."""


@attrs.frozen(kw_only=True, eq=False)
class Lane:
    """One static buffer, as what brings rows into it sees it.

    `target` [rows · per_row, …]: contiguous, on the device. Rows that a call does not bring hold `pad`, columns (of the
    last dimension) that it does not bring `column_pad`. Where a call brings no rows, those of the lane numbered
    `mirrors` are taken; without one, live rows stay. `in_place`: a call never brings any.
    """

    name: str
    target: torch.Tensor
    per_row: int
    pad: float
    column_pad: float | None = None
    mirrors: int | None = None
    in_place: bool = False


class Load(Protocol):
    """What calls of one number of live rows bring, lane by lane. Made once, changed where a call differs."""

    @property
    def live(self) -> int:
        """How many rows that is."""

    @property
    def rooms(self) -> Sequence[int]:
        """Bytes from the beginning of a tray to the rows of each lane: dense, one line of columns after the other."""

    @property
    def words(self) -> memoryview[int]:
        """64-bit words; those at `address_of` may be set to bring other rows of the same form."""

    def address_of(self, lane: int) -> int:
        """Which of the `words` is the address of the rows of `lane`."""

    def bring(self, lane: int, columns: int, at: int = 0, strides: tuple[int, int, int] = (0, 0, 0)) -> None:
        """The rows of `lane` lie in the tray (`at` 0), or on the device at that address with strides in bytes.

        `columns`: bytes of each line. `strides`: of an entry, of a line in it (all dimensions but the first and last),
        of an element.
        """

    def leave(self, lane: int) -> None:
        """No rows are brought for `lane`: those that it mirrors are, or what is there stays."""


class Stager(Protocol):
    """Brings the rows of a call into all lanes at once, and pads what is left of a slot: copies, margins and tails.

    Rows of the host go through *trays*: pinned memory that the caller fills and the device reads. A tray is used again
    only when it was read, so nothing waits while the host is a few calls ahead at most, and what a call has packed is
    never overwritten before it arrived (fault D4). Calls are serialised, like the replays that they are for.

    A load that is handed over was made here.
    """

    @property
    def hidden(self) -> bool:
        """Whether device tensors look like the host's, so that `Backend.holds` must be asked of each."""

    def lay_out(self, size: int) -> None:
        """Make what slots of `size` rows need on the device. Before the first of them is recorded."""

    def load(self, size: int, live: int) -> Load:
        """What calls of `live` rows bring for a slot of `size` rows: as yet, no rows for any lane."""

    def tray(self) -> int:
        """The address of the tray to fill. Waits, asleep, while the device has yet to read what is in it.

        Raises: InternalError where a replay before this found no tray that was filled for it.
        """

    def room(self, load: Any, lane: int, shape: Sequence[int]) -> torch.Tensor:
        """The rows of `lane` in the tray to fill, as a tensor of its dtype."""

    def launch(self, load: Any) -> None:
        """Bring what is in the tray and on the device now, in one launch on the caller's current stream."""

    def send(self, load: Any) -> None:
        """Leave what is in the tray to the next replay of a graph with a node for this size: no launch."""

    def withdraw(self) -> None:
        """Take back what was sent and not replayed: the next replay brings nothing."""

    def record(self, size: int) -> None:
        """Put a node into the recording under way: at each replay it brings what was sent for that replay, if anything.

        Raises: CaptureUnsupported outside of a recording of the backend's.
        """

    def memory(self) -> Mapping[str, torch.Tensor]:
        """Memory of its own that launches and nodes read and write, pinned and on the device, by name."""


class Backend(Protocol):
    """Everything device-specific. One backend serves one runtime."""

    @property
    def name(self) -> str:
        """`"cuda"` or `"emulated"`."""

    @property
    def device(self) -> torch.device:
        """Where buffers live."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, fill: float) -> torch.Tensor:
        """A static device tensor of `shape`, every element `fill`. An ordinary one in inference mode, too."""

    def pin(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A host tensor in pinned memory, zeroed: copies from it may be recorded and do not block. Ordinary, too."""

    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        """Say that `tensors` (parameters, states) live on the device. Raises BadBatch for one that cannot."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` lives on the device (else on the host)."""

    def pool(self) -> Pool:
        """A new, empty graph pool."""

    def side_stream(self) -> AbstractContextManager[None]:
        """Run the block on the capture stream, ordered after the caller's stream, and the caller's after it."""

    def branch(self) -> Branch:
        """A new branch: a stream of its own, neither the caller's nor the capture stream."""

    @property
    def recording(self) -> bool:
        """Whether what this thread puts on its current stream is being recorded."""

    def record(self, pool: Pool, *, reach: bool = False) -> AbstractContextManager[Graph]:
        """Record the block into a graph of `pool`, on the capture stream. `reach`: the graph is to tell its own.

        On an exception inside, the recording is ended, the stream clean, its memory back, and the exception goes on.

        Raises: CaptureUnsupported for an operation that no recording may contain, where the backend can tell.
        """

    def host_function(self, function: Callable[[], object], *, on_error: Callable[[], object] | None = None) -> None:
        """Put Python on the caller's current stream: the device runs `function()` in order with its other work.

        In a recording it becomes a node: not run then, but at each replay. Outside of one it runs once, when its turn
        comes. The graph, or the device until it has run, keeps it alive; a graph that is released keeps it until its
        queued replays have run. It may run in another thread, under the interpreter's lock, while the thread that
        queued it waits; it must not call the device.

        If it raises, `on_error()` runs at once in its place (fill a mask so that nothing is allowed, say), and what
        comes after runs as ever. The error is raised once, as HostFunctionFailed: by the `wait` of the mark that was
        made next, or of a later one; by the next replay where no living mark covers it; or by `synchronize`. That next
        mark raises it whenever it is waited for, so that nobody can take what the step made.

        Raises: CaptureUnsupported where the device cannot do it, in a recording that is not the backend's own, and
        inside a host function.
        """

    def stager(self, lanes: Sequence[Lane], rows: int, *, reads: Literal["ring", "landing"] = "ring") -> Stager:
        """What brings rows into `lanes`, for slots of up to `rows` rows.

        `reads`: whether nodes read trays where they lie, or a copy of them on the device that each call launches.

        Raises: CaptureUnsupported, saying what is missing, where the device has no kernel for it.
        """

    def synchronize(self) -> None:
        """Wait for all work of the device. Raises what asynchronous work raised.

        Raises: HostFunctionFailed for host functions whose errors were not raised yet.
        """

    def ready(self) -> Ready:
        """A mark after everything queued so far on the caller's current stream."""

    def trim(self) -> None:
        """Give memory that nothing uses any more back to the system."""

    @property
    def allocated(self) -> int:
        """Bytes that live tensors of the device take now: `memory().allocated`, and nothing is walked for it."""

    def memory(self) -> Memory:
        """Bytes now."""
