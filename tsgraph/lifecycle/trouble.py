"""What goes wrong in steps that must all run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from tsgraph.spec.model import Step


@attrs.define(eq=False)
class Trouble:
    """What steps that must all run have raised. It keeps the gravest error; the others become notes on it.

    `original`: the error that is being handled meanwhile, if any. It is graver than later ones, save that an interrupt
    (a BaseException that is no Exception) is graver than an Exception.
    """

    original: BaseException | None = None
    gravest: BaseException | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.gravest = self.original

    def attempt(self, steps: Iterable[Step], work: Callable[[Step], object]) -> None:
        """Do `work` for each of `steps`, whatever happens."""
        for step in steps:
            try:
                work(step)
            except BaseException as error:  # noqa: BLE001  what must all run runs whatever is raised
                error.add_note(f"raised by step {step.name}, which had to run")
                self._keep(error, f"step {step.name}, which had to run, raised {type(error).__name__}: {error}")

    def _keep(self, error: BaseException, note: str) -> None:
        if self.gravest is None:
            self.gravest = error
        elif isinstance(self.gravest, Exception) and not isinstance(error, Exception):
            error.add_note(f"raised while handling {type(self.gravest).__name__}: {self.gravest}")
            self.gravest = error
        else:
            self.gravest.add_note(note)

    def settle(self) -> None:
        """Raise the gravest error, unless it is the original (whose handler re-raises it). Keeps neither afterwards.

        An error that a frame of its own traceback holds is freed only by a garbage collection, and so are the tensors
        of all its frames.
        """
        gravest, original = self.gravest, self.original
        self.gravest = self.original = None
        try:
            if gravest is not None and gravest is not original:
                raise gravest
        finally:
            del gravest, original
