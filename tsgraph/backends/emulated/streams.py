"""Streams and events of the emulated device, with the rules of torch.cuda.

Work is done where it is asked for, so nothing is ever waited for outside a recording. Inside one, streams and events
say what is ordered after what: a stream joins a capture by waiting on an event recorded in it, and must be joined back
by the stream on which the capture began. Work on a stream that has not joined is not recorded: it is done at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import attrs
import torch

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.current import Capture
from tsgraph.backends.emulated.hazards import Access, Clock, Region
from tsgraph.backends.emulated.memory import lease_of
from tsgraph.backends.emulated.refusal import UNSUPPORTED, refuse
from tsgraph.backends.emulated.trees import describe
from tsgraph.errors import CaptureUnsupported, NotEmulated

_IDS = count(1)
_THREAD = threading.local()
_OUTSIDE = "wait before or after the recording; inside it, let streams wait for each other's events"


class Stream:
    """A queue of work. `capture` is the capture that it takes part in now."""

    def __init__(self, priority: int = 0, *, name: str = "") -> None:
        self.stream_id = next(_IDS)
        self.priority = priority
        self.name = name or f"stream {self.stream_id}"
        self.capture: Capture | None = None

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event`, by default a new one, after all work put on this stream so far."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_stream(self, stream: Stream) -> None:
        """Order all work put here from now on after all work put on `stream` so far.

        Raises: CaptureUnsupported as `wait_event` does.
        """
        self.wait_event(stream.record_event())

    def wait_event(self, event: Event) -> None:
        """Order all work put here from now on after `event`. One that was never recorded is no wait.

        If `event` was recorded in a capture, this stream takes part in it from now on.

        Raises: CaptureUnsupported for a dependency that would cross the bounds of a capture.
        """
        mark = event.mark
        if mark is None:
            return
        if self.capture is not None:
            self.capture.refuse_if_invalid("Stream.wait_event")
        if mark.capture is None:
            self._stay_inside(event)
        else:
            self._join(mark.capture)
            mark.capture.timeline.wait(mark.capture.lane(self), mark.clock)

    def query(self) -> bool:
        """True: work is done where it is asked for. Raises: CaptureUnsupported where a capture forbids to ask."""
        self._refuse_capturing("Stream.query")
        return True

    def synchronize(self) -> None:
        """Nothing to wait for. Raises: CaptureUnsupported where a capture forbids to wait."""
        self._refuse_capturing("Stream.synchronize")

    def _refuse_capturing(self, what: str) -> None:
        if self.capture is None:
            current.refuse_unsafe(what, _OUTSIDE)
            return
        raise _invalidate(refuse(what, f"{self} is being recorded", _OUTSIDE, cuda=UNSUPPORTED), self.capture)

    def _stay_inside(self, event: Event) -> None:
        if self.capture is None:
            return
        why = f"{self} is being recorded, and would wait for {event}, which was recorded outside the recording"
        hint = "wait for it before the recording begins, or record it on a stream that takes part"
        raise _invalidate(refuse("Stream.wait_event", why, hint, cuda="cudaErrorStreamCaptureIsolation"), self.capture)

    def _join(self, capture: Capture) -> None:
        if self.capture is capture:
            return
        if capture.ended:
            why = f"{self} would wait for an event that was last recorded in a recording, which has ended"
            hint = "record the event again, outside the recording"
            raise refuse("Stream.wait_event", why, hint, cuda="cudaErrorInvalidValue")
        if capture.error is not None:
            why, hint = "this event was recorded in a recording that is invalid since", "end that recording"
            raise refuse("Stream.wait_event", why, hint, cuda="cudaErrorInvalidValue") from capture.error
        if self.capture is not None:
            why = f"{self} would make two recordings one"
            error = refuse("Stream.wait_event", why, "keep them apart", cuda="cudaErrorStreamCaptureMerge")
            raise _invalidate(error, capture, self.capture)
        if self is default_stream():
            why = "the default stream would take part in a recording, which it never may"
            error = refuse("Stream.wait_event", why, "use another stream", cuda="cudaErrorStreamCaptureImplicit")
            raise _invalidate(error, capture)
        _refuse_other_thread(capture)
        capture.admit(self)


@attrs.frozen
class Mark:
    """Where an event was last recorded: at which point of which capture, or outside all (None)."""

    capture: Capture | None
    clock: Clock


class Event:
    """A point of a stream that streams wait for. `mark` is where it was last recorded, None if it never was."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self.mark: Mark | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Record it after all work put on `stream`, by default the current one, so far.

        Raises: CaptureUnsupported in a recording that is invalid.
        """
        current.refuse_in_host_function("Event.record")
        stream = stream or current_stream()
        capture = stream.capture
        if capture is None:
            self.mark = Mark(None, {})
            return
        capture.refuse_if_invalid("Event.record")
        self.mark = Mark(capture, capture.timeline.clock(capture.lane(stream)))

    def wait(self, stream: Stream | None = None) -> None:
        """Order all work put on `stream`, by default the current one, from now on after it.

        Raises: CaptureUnsupported as `Stream.wait_event` does.
        """
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        """True: work is done where it is asked for. Raises: CaptureUnsupported where a capture forbids to ask."""
        self._refuse_captured("Event.query")
        return True

    def synchronize(self) -> None:
        """Nothing to wait for. Raises: CaptureUnsupported where a capture forbids to wait."""
        self._refuse_captured("Event.synchronize")

    def elapsed_time(self, end_event: Event) -> float:
        """Raises: NotEmulated, always: nothing measured here says anything about a GPU."""
        why = f"the emulated device keeps no time: none lies between {self} and {end_event}"
        raise NotEmulated(why, hint="measure on a GPU")

    def _refuse_captured(self, what: str) -> None:
        capture = None if self.mark is None else self.mark.capture
        if capture is None:
            current.refuse_unsafe(what, _OUTSIDE)
            return
        cuda = "cudaErrorInvalidValue" if capture.ended else "cudaErrorCapturedEvent"
        raise _invalidate(refuse(what, "this event was last recorded in a recording", _OUTSIDE, cuda=cuda), capture)


def record_stream(tensor: torch.Tensor, stream: Stream) -> None:
    """Say that `stream`, too, uses the memory of `tensor`: then nothing else gets it before the recording ends.

    So it is with CUDA's caching allocator, which cannot ask, while it captures, whether `stream` is done with it.
    """
    capture, lease = current.of_thread(), lease_of(tensor)
    if capture is not None and lease is not None and lease.block.segment.stream != stream.stream_id:
        capture.keep(tensor.untyped_storage())


def _refuse_other_thread(capture: Capture) -> None:
    if capture.thread != threading.get_ident() and not capture.ended:
        hint = "put work on it in the thread that records"
        raise NotEmulated("this stream is recorded by another thread, which sees no operation of this one", hint=hint)


def _refuse_outer(capture: Capture) -> None:
    if capture is not current.of_thread():
        hint = "end the inner recording first"
        raise NotEmulated("this stream takes part in a recording that began before the one in progress", hint=hint)


def _invalidate(error: CaptureUnsupported, *captures: Capture) -> CaptureUnsupported:
    for capture in captures:
        capture.invalidate(error)
    return error


_DEFAULT = Stream(name="the default stream")
_DEFAULT.stream_id = 0


def default_stream() -> Stream:
    """The stream that every thread begins with. No capture can take place on it."""
    return _DEFAULT


def current_stream() -> Stream:
    """The stream on which this thread puts its work."""
    stream: Stream = getattr(_THREAD, "stream", _DEFAULT)
    return stream


def set_stream(stream: Stream) -> None:
    """Put the work of this thread on `stream` from now on.

    Raises: NotEmulated for a stream that takes part in the recording of another thread, or in one of this thread that
    began before another that is in progress.
    """
    if stream.capture is not None:
        _refuse_other_thread(stream.capture)
        _refuse_outer(stream.capture)
    _THREAD.stream = stream


@contextmanager
def using(stream: Stream | None) -> Iterator[None]:
    """Put the work of the block on `stream`; None changes nothing."""
    before = current_stream()
    set_stream(before if stream is None else stream)
    try:
        yield
    finally:
        _THREAD.stream = before


def access(tensor: torch.Tensor, writes: bool) -> Iterator[Access]:
    """How a step touches `tensor`: not at all if there is nothing in it, or nothing that has an address."""
    if tensor.layout is torch.strided and tensor.numel() > 0:
        yield Access(Region.of(tensor), writes, f"a tensor {describe(tensor)}")


def is_current_stream_capturing() -> bool:
    """Whether what this thread does now is recorded."""
    return current_stream().capture is not None
