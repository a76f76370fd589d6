"""One call at a time: who is inside a runtime, and what is told to anybody who comes in meanwhile.

Two users of a runtime are reported and not queued: buffers, pool and outputs are shared, so the results of the one
would be overwritten by the other (R5), and a call from inside a call would wait for itself. Threads may take turns.

`inside` is looked at and set without a lock: between the two nothing is called, so that no other thread gets the
interpreter. The hot path does that itself, in `Server.serve`; every other call passes through `passing`.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from types import TracebackType

import attrs

from tsgraph.errors import CallerError, CaptureUnsupported, TsgraphError, WrongThread

NOBODY, CLOSED = 0, -1
STEP = "a step"


@attrs.define(eq=False)
class Turnstile:
    """Lets one call at a time into a runtime, and none once it is closed. `recording`: see `Backend.recording`.

    `inside`: the thread whose call is inside, or `NOBODY`, or `CLOSED`. `doing`: what that call does.
    """

    recording: Callable[[], bool]
    inside: int = NOBODY
    doing: str = STEP

    def passing(self, doing: str, *, recorded: bool = False) -> Passage:
        """A call that does `doing` passes for the block. `recorded`: it may be part of a recording.

        Raises: WrongThread, CallerError or CaptureUnsupported before the block, with nothing changed.
        """
        return Passage(self, doing, recorded)

    def close(self) -> None:
        """Let nobody in any more. Only from inside."""
        self.inside = CLOSED

    def refusal(self, doing: str) -> CallerError:
        """Why a call that does `doing` may not come in."""
        if self.inside == CLOSED:
            return CallerError(f"{doing} was asked of a runtime that is closed", hint="build a new runtime")
        if self.inside == get_ident():
            what = f"{doing} was asked for from inside of {self.doing} of the same runtime"
            hint = "let the outer call return first: steps, refreshes, host functions and observers call no runtime"
        else:
            what = f"{doing} was asked for in one thread while another is inside, with {self.doing}"
            hint = "use a runtime from one thread at a time: put a lock around its calls, or give each thread its own"
        return WrongThread(what, hint=hint, doing=self.doing, asked=doing)

    def refusal_of_recording(self, doing: str) -> TsgraphError:
        """Why a call that does `doing` may not be made where its work would be recorded (fault R1)."""
        what = f"{doing} was asked for while the current stream is being recorded"
        hint = "call the step itself, or runtime.eager(…), to have its operations recorded; replay outside"
        return CaptureUnsupported(what, hint=hint, asked=doing)


@attrs.frozen(eq=False)
class Passage:
    """One call's way through a turnstile."""

    turnstile: Turnstile
    doing: str
    recorded: bool

    def __enter__(self) -> None:
        turnstile, thread = self.turnstile, get_ident()
        if turnstile.inside:
            raise turnstile.refusal(self.doing)
        turnstile.inside = thread
        if not self.recorded and turnstile.recording():
            turnstile.inside = NOBODY
            raise turnstile.refusal_of_recording(self.doing)
        turnstile.doing = self.doing

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        turnstile = self.turnstile
        turnstile.doing = STEP
        if turnstile.inside != CLOSED:
            turnstile.inside = NOBODY
