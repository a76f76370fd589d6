"""The device as tsgraph sees it: memory, one capture stream, recordings, events. Implemented in `tsgraph.backends`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        """Block the host until it is done. Raises what the work raised."""

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
        """Run what was recorded, on the same addresses, on the caller's current stream. Python does not run again."""

    def release(self) -> None:
        """Give back the recording and its share of the pool. Twice is once."""


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

    def record(self, pool: Pool) -> AbstractContextManager[Graph]:
        """Record the block into a graph of `pool`, on the capture stream.

        On an exception inside, the recording is ended, the stream clean, its memory back, and the exception goes on.

        Raises: CaptureUnsupported for an operation that no recording may contain, where the backend can tell.
        """

    def synchronize(self) -> None:
        """Wait for all work of the device. Raises what asynchronous work raised."""

    def ready(self) -> Ready:
        """A mark after everything queued so far on the caller's current stream."""

    def trim(self) -> None:
        """Give memory that nothing uses any more back to the system."""

    def memory(self) -> Memory:
        """Bytes now."""
