"""`torch.cuda.Stream`, `Event` and their companions, over the emulated device's streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from tsgraph.backends.emulated import streams
from tsgraph.testing.cuda.places import DEVICE, check_index
from tsgraph.testing.cuda.refusals import not_emulated

_IPC = "events of other processes are unknown here"
_TIMING = "nothing that is measured here says anything about a GPU"


class _Entered(threading.local):
    """The streams that were current before each block of a stream that this thread is in."""

    def __init__(self) -> None:
        self.here: list[streams.Stream] = []


_ENTERED = _Entered()


class Stream(streams.Stream):
    """Stands in for `torch.cuda.Stream`."""

    device = DEVICE
    device_index = 0
    device_type = 1  # as torch numbers CUDA

    def __init__(self, device: Any = None, priority: int = 0, *, name: str = "", **kwargs: Any) -> None:
        if kwargs:
            raise not_emulated("torch.cuda.Stream", f"a stream is not made of {', '.join(kwargs)}")
        check_index(device)
        super().__init__(priority, name=name)

    @property
    def cuda_stream(self) -> int:
        """A number for a handle that nothing can launch on; 0 is the default stream's."""
        return self.stream_id

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority."""
        return 0, -5

    def record_event(self, event: streams.Event | None = None) -> streams.Event:
        """Record `event`, by default a new one, after all work put on this stream so far."""
        return super().record_event(Event() if event is None else event)

    def __enter__(self) -> Self:
        _ENTERED.here.append(streams.current_stream())
        streams.set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        streams.set_stream(_ENTERED.here.pop())

    def is_capturing(self) -> bool:
        """Whether it takes part in a capture."""
        return self.capture is not None


class Event(streams.Event):
    """Stands in for `torch.cuda.Event`."""

    device = DEVICE

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        if interprocess:
            raise not_emulated("torch.cuda.Event(interprocess=True)", _IPC)
        if external:
            raise not_emulated("torch.cuda.Event(external=True)", "a graph here has no nodes for events")
        super().__init__(enable_timing)
        self.blocking = blocking

    @property
    def cuda_event(self) -> int:
        """A number for a handle that nothing can wait on."""
        return id(self)

    def elapsed_time(self, end_event: streams.Event) -> float:
        """Raises: NotEmulated."""
        raise not_emulated("torch.cuda.Event.elapsed_time", _TIMING, "measure on a GPU")

    def ipc_handle(self) -> bytes:
        """Raises: NotEmulated."""
        raise not_emulated("torch.cuda.Event.ipc_handle", _IPC)

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: Any) -> Event:
        """Raises: NotEmulated."""
        raise not_emulated("torch.cuda.Event.from_ipc_handle", _IPC)


class StreamContext:
    """`torch.cuda.stream(...)`: puts the work of a block on a stream; None changes nothing."""

    def __init__(self, stream: streams.Stream | None) -> None:
        self.stream = stream
        self._before: list[streams.Stream] = []

    def __enter__(self) -> None:
        self._before.append(streams.current_stream())
        if self.stream is not None:
            streams.set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        streams.set_stream(self._before.pop())


@contextmanager
def default_stream_as_torchs() -> Iterator[None]:
    """In the block the default stream, which all threads share, is of the class that stands in for torch's."""
    default = streams.default_stream()
    before = type(default)
    default.__class__ = Stream
    try:
        yield
    finally:
        default.__class__ = before
