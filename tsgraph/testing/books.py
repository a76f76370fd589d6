"""What the oracle writes down: whole lists of events by scope and slot, the work of an attempt, what came of it."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import attrs

from tsgraph.spec.model import Step


@attrs.define(eq=False)
class Books:
    """What one scope saw: every event, in order, and where its counters and modes stand."""

    events: list[str] = attrs.field(factory=list)
    counters: dict[str, int] = attrs.field(factory=dict)
    modes: dict[str, bool] = attrs.field(factory=dict)

    def copy(self) -> Books:
        """The same, to imagine something on."""
        return Books(self.events[:], dict(self.counters), dict(self.modes))

    def later(self, event: str, than: str) -> bool:
        """Whether the newest `event` comes after the newest `than`: the first of the two that is met from the end."""
        met = next((seen for seen in reversed(self.events) if seen in (event, than)), than)
        return met != than

    def facts(self) -> dict[str, Any]:
        """How often each event happened, in which order each did last, counters that are not 0, modes that are on."""
        return {
            "count": dict(collections.Counter(self.events)),
            "order": list(dict.fromkeys(reversed(self.events)))[::-1],
            "counters": {name: value for name, value in self.counters.items() if value},
            "modes": sorted(mode for mode, on in self.modes.items() if on),
        }


@attrs.define(eq=False)
class SlotBooks:
    """One slot: where it is, what its lives saw, and why it is there."""

    variant: Books
    state: str
    own: Books = attrs.field(factory=Books)
    life: int = 1
    cause: str = ""
    failure: tuple[str, str, str] | None = None
    history: list[str] = attrs.field(factory=list)

    def facts(self) -> dict[str, Any]:
        """All of it, as plain data."""
        return {
            "state": self.state,
            "life": self.life,
            "cause": self.cause,
            "failure": self.failure,
            "history": self.history,
            **self.own.facts(),
        }


class Wrong(Exception):
    """Something goes wrong, as `outcome` would word it. `grave`: an interrupt rather than an error."""

    def __init__(self, label: str, *, at: str = "", grave: bool = False) -> None:
        super().__init__(label)
        self.label, self.at, self.grave = label, at, grave

    @property
    def kind(self) -> str:
        """The class of the error."""
        return self.label.partition(" ")[0]


@attrs.define(eq=False)
class Job:
    """The work of one attempt: which steps fail, how (`error`, `interrupt`), after how many good ones; outcomes."""

    fails: Mapping[str, str] = attrs.field(factory=dict)
    says: Mapping[str, str] = attrs.field(factory=dict)
    working: int = 0
    performed: list[str] = attrs.field(factory=list)

    def perform(self, step: Step) -> str:
        """Do `step`; returns its event."""
        self.performed.append(step.name)
        if step.name in self.fails and self.performed.count(step.name) > self.working:
            grave = self.fails[step.name] == "interrupt"
            raise Wrong("Interrupt" if grave else "OSError", at=step.name, grave=grave)
        return self.says.get(step.name, step.event[0])


@attrs.frozen
class Verdict:
    """What an attempt comes to: `done` or an error in words, at which step or trigger, and the steps performed."""

    label: str
    performed: tuple[str, ...] = ()
    at: str = ""
