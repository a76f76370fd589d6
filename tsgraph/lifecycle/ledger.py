"""What happened to one slot, in order: the entries of its lives, and why it is in the state that it is in.

The ledger is for people: rules never read it (they read `monitors`), so that it may be bounded.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from typing import Literal

import attrs

BOUND = 1024
"""Entries a ledger keeps; older ones are forgotten. One life of the decode spec has about 60."""


@attrs.frozen
class Cause:
    """Why a slot is stale or failed, as text only: an exception would keep its frames, and their tensors, alive.

    `kind`: the sort of cause (an exception's class name). `summary`: one line. `detail`: all of it (a traceback).
    """

    kind: str
    summary: str
    detail: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Cause:
        """The cause that an exception is: its name, its message's first line, and its traceback as text."""
        summary = str(error).partition("\n")[0]
        return cls(type(error).__name__, summary, "".join(traceback.format_exception(error)))

    def __str__(self) -> str:
        return f"{self.kind}: {self.summary}" if self.summary else self.kind


@attrs.frozen
class Failure:
    """Where a transition failed: its trigger, the state it began in, and the step (None: the trigger's own rules)."""

    trigger: str
    state: str
    step: str | None

    def __str__(self) -> str:
        return f"`{self.trigger}` failed in {self.state}, {f'at step {self.step}' if self.step else 'after its steps'}"


@attrs.frozen
class Entry:
    """One line of a ledger.

    `index` counts from 0 over all lives; `life` from 1. `name` is an event or a state, as `kind` says; `step` is what
    appended it (a step, or the trigger of a state). `at`: seconds of the monotonic clock.
    """

    index: int
    life: int
    name: str
    kind: Literal["event", "state"]
    step: str
    at: float
    detail: str = ""


@attrs.define(eq=False)
class Ledger:
    """The newest `BOUND` entries of one slot, through all its lives."""

    life: int = 1
    _entries: deque[Entry] = attrs.field(factory=lambda: deque(maxlen=BOUND))
    _next: int = 0

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries kept, oldest first."""
        return tuple(self._entries)

    def append(self, name: str, kind: Literal["event", "state"], step: str, detail: str = "") -> None:
        """Write that `name` happened now."""
        self._entries.append(Entry(self._next, self.life, name, kind, step, time.monotonic(), detail))
        self._next += 1

    def begin_life(self) -> None:
        """Count what follows to a new life; what was written stays."""
        self.life += 1
