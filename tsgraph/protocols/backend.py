"""The device as tsgraph sees it: memory, one capture stream, recordings, events. Implemented in `tsgraph.backends`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

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


class Graph(Protocol):
    """One recording. It is replayable from the moment the `record` context is left without an exception."""

    @property
    def bytes(self) -> int:
        """Bytes by which this recording grew its pool."""

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

    def record(self, pool: Pool) -> AbstractContextManager[Graph]:
        """Record the block into a graph of `pool`, on the capture stream.

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

    def synchronize(self) -> None:
        """Wait for all work of the device. Raises what asynchronous work raised.

        Raises: HostFunctionFailed for host functions whose errors were not raised yet.
        """

    def ready(self) -> Ready:
        """A mark after everything queued so far on the caller's current stream."""

    def trim(self) -> None:
        """Give memory that nothing uses any more back to the system."""

    def memory(self) -> Memory:
        """Bytes now."""
