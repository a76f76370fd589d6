"""Whether this thread is recording: what no recording may contain is refused by asking here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tsgraph.backends.emulated.refusal import refuse

_THREAD = threading.local()


@contextmanager
def recording() -> Iterator[None]:
    """The block is a recording of this thread. Raises: CaptureUnsupported inside another one."""
    refuse_inside("a recording", "end the outer recording first")
    _THREAD.recording = True
    try:
        yield
    finally:
        _THREAD.recording = False


def refuse_inside(what: str, hint: str) -> None:
    """Raises: CaptureUnsupported if this thread is recording."""
    if getattr(_THREAD, "recording", False):
        raise refuse(what, "not inside a recording", hint)
