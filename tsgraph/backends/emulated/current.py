"""Which captures are in progress, in which threads and on which streams, and what CUDA forbids meanwhile.

The names of CUDA's errors are given with each refusal as `cuda=`. Where CUDA invalidates a capture, so does a refusal
here: what is recorded after it, and the end of the capture, are refused in turn, also where the first was swallowed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import attrs

from tsgraph.backends.emulated.hazards import Access, Timeline
from tsgraph.backends.emulated.refusal import UNSUPPORTED, refuse
from tsgraph.errors import CaptureUnsupported

if TYPE_CHECKING:
    from tsgraph.backends.emulated.nodes import Launch
    from tsgraph.backends.emulated.streams import Stream
    from tsgraph.backends.emulated.trace import Node

INVALIDATED = "cudaErrorStreamCaptureInvalidated"
ErrorMode = Literal["global", "thread_local", "relaxed"]

_THREAD = threading.local()
_LOCK = threading.RLock()
_CAPTURES: list[Capture] = []


class Capture:
    """A capture in progress: the stream on which it began, those that joined it, and what they have recorded.

    `error` is what invalidated it. It stays with the thread that began it.
    """

    def __init__(self, origin: Stream, mode: ErrorMode, launches: list[Launch]) -> None:
        self.origin, self.mode, self.launches = origin, mode, launches
        self.thread = threading.get_ident()
        self.timeline = Timeline()
        self.error: CaptureUnsupported | None = None
        self.ended = False
        self._streams: list[Stream] = []
        self._kept: list[object] = []

    def admit(self, stream: Stream) -> None:
        """`stream` takes part from now on: what is put on it is recorded."""
        self._streams.append(stream)
        stream.capture = self

    def lane(self, stream: Stream) -> int:
        """The number of `stream` in this capture: 0 is the one on which it began."""
        return self._streams.index(stream)

    def append(self, stream: Stream, node: Node, accesses: Iterable[Access]) -> Node:
        """`stream` records an operation that touches this memory. Returns the node with its lane; None stands for 0."""
        lane = self.lane(stream)
        self.timeline.append(lane, str(stream), node.operator, node.line, accesses)
        return attrs.evolve(node, stream=lane) if lane else node

    def invalidate(self, error: CaptureUnsupported) -> None:
        """What was recorded is lost. The first error stays the cause."""
        self.error = self.error or error

    def refuse_if_invalid(self, what: object) -> None:
        """Raises: CaptureUnsupported, chained to what invalidated this capture."""
        if self.error is not None:
            why = f"this recording is invalid since {self.error.context.get('operation', 'an operation')} was refused"
            raise refuse(what, why, "end the recording at the first error", cuda=INVALIDATED) from self.error

    def keep(self, memory: object) -> None:
        """Keep `memory` from being used again in this capture."""
        self._kept.append(memory)

    def leave(self) -> None:
        """No stream takes part any more."""
        self.ended = True
        self._kept.clear()
        for stream in self._streams:
            stream.capture = None


@contextmanager
def capturing(capture: Capture) -> Iterator[None]:
    """`capture` is in progress in the block, in this thread: beside another one of its own, that one waits."""
    with _LOCK:
        _CAPTURES.append(capture)
    capture.admit(capture.origin)
    before, _THREAD.capture = of_thread(), capture
    try:
        yield
    finally:
        _THREAD.capture = before
        capture.leave()
        with _LOCK:
            _CAPTURES.remove(capture)


def of_thread() -> Capture | None:
    """The capture that this thread began last, of those in progress."""
    capture: Capture | None = getattr(_THREAD, "capture", None)
    return capture


@contextmanager
def in_host_function() -> Iterator[None]:
    """The block is a host function, which must not call the device."""
    before = getattr(_THREAD, "host", False)
    _THREAD.host = True
    try:
        yield
    finally:
        _THREAD.host = before


def refuse_in_host_function(what: str) -> None:
    """Raises: CaptureUnsupported inside a host function."""
    if getattr(_THREAD, "host", False):
        hint = "hand over what it needs in pinned memory, by copies before and after it"
        raise refuse(what, "a host function may not call the device", hint, cuda="cudaErrorNotPermitted")


@contextmanager
def invalidating() -> Iterator[None]:
    """What CUDA refuses in the block makes the recording of this thread invalid, and those that forbid it to all."""
    try:
        yield
    except CaptureUnsupported as error:
        if "cuda" in error.context:
            for capture in _forbidding() + _own():
                capture.invalidate(error)
        raise


def refuse_inside(what: str, hint: str) -> None:
    """Raises: CaptureUnsupported if this thread is recording, or runs a host function."""
    refuse_in_host_function(what)
    if of_thread() is not None:
        raise refuse(what, "not inside a recording", hint, cuda=UNSUPPORTED)


def refuse_unsafe(what: str, hint: str) -> None:
    """Refuse a call that CUDA counts as potentially unsafe, where a capture forbids it; that capture is invalid then.

    Those of this thread do unless they are relaxed, those of other threads if they are global.

    Raises: CaptureUnsupported.
    """
    refuse_in_host_function(what)
    _refuse(what, hint, _forbidding())


def refuse_if_invalid(what: object) -> None:
    """Raises: CaptureUnsupported where the recording of this thread is invalid."""
    capture = of_thread()
    if capture is not None:
        capture.refuse_if_invalid(what)


def may_wait() -> bool:
    """Whether this thread may make potentially unsafe calls now: no capture, its own or another's, forbids them."""
    return not _forbidding()


def refuse_on_device(what: str, hint: str) -> None:
    """Refuse what waits for the whole device. Any capture forbids it, of whatever mode and thread, and is invalid then.

    Raises: CaptureUnsupported.
    """
    refuse_in_host_function(what)
    with _LOCK:
        captures = list(_CAPTURES)
    _refuse(what, hint, captures)


def _forbidding() -> list[Capture]:
    """The captures that forbid potentially unsafe calls to this thread."""
    here = threading.get_ident()
    with _LOCK:
        return [
            each for each in _CAPTURES if (each.mode != "relaxed" if each.thread == here else each.mode == "global")
        ]


def _own() -> list[Capture]:
    capture = of_thread()
    return [] if capture is None else [capture]


def _refuse(what: str, hint: str, forbidding: list[Capture]) -> None:
    if not forbidding:
        return
    mine = any(capture.thread == threading.get_ident() for capture in forbidding)
    why = "not inside a recording" if mine else f"another thread is recording ({forbidding[0].mode} error mode)"
    error = refuse(what, why, hint, cuda=UNSUPPORTED)
    for capture in forbidding:
        capture.invalidate(error)
    raise error
