"""DeepEP as the engine keeps it: one buffer in a class, and a mode that recordings and replays must find on."""

from __future__ import annotations

from importlib import import_module
from typing import Any

HOME = "tokenspeed_kernel.ops.communication.deep_ep"


class DeepEPCudaGraphRunnerAdapter:
    """Sets the low-latency mode for a recording, and again before each replay, with a clean buffer.

    Without the library or the buffer there is nothing to do.
    """

    def __init__(self) -> None:
        self._active = False

    def capture(self) -> None:
        """Before a recording: from now on replays restore."""
        home = _home()
        if home is not None:
            self._active = True
            home.set_dispatch_mode_as_low_latency()

    def replay(self) -> None:
        """Before a replay: set the mode again, since eager steps may have left another, and clean the buffer."""
        home = _home() if self._active else None
        if home is not None:
            home.set_dispatch_mode_as_low_latency()
            home.clean_buffer()


def _home() -> Any:
    """The class that keeps the buffer, where both are there."""
    try:
        home = import_module(HOME).DeepEPBuffer
    except (ImportError, AttributeError):
        return None
    return home if home._buffer is not None else None  # noqa: SLF001 — where the engine keeps it
