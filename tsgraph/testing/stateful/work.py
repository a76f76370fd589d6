"""What programs about lives are written with: work that fails as it is told, and outcomes and facts as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

from tsgraph.lifecycle import Life, Lifecycle, Monitors
from tsgraph.lifecycle.ledger import BOUND
from tsgraph.spec.model import Step

How = Literal["error", "interrupt"]


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt and its like, which are graver than errors."""


@attrs.define(eq=False, repr=False)
class Work:
    """Performs steps and notes their names.

    `fails`: steps that raise, each an `"error"` (OSError) or an `"interrupt"`, after they have worked `working` times.
    `says`: outcomes of steps that have several.
    """

    fails: Mapping[str, How] = attrs.field(factory=dict)
    says: Mapping[str, str] = attrs.field(factory=dict)
    working: int = 0
    performed: list[str] = attrs.field(factory=list)

    def __call__(self, step: Step) -> str | None:
        """Do `step`."""
        self.performed.append(step.name)
        if step.name in self.fails and self.performed.count(step.name) > self.working:
            raise Interrupt(step.name) if self.fails[step.name] == "interrupt" else OSError(step.name)
        return self.says.get(step.name)

    def __repr__(self) -> str:
        given = {"fails": self.fails, "says": self.says, "working": self.working}
        return f"Work({', '.join(f'{name}={value!r}' for name, value in given.items() if value)})"


def outcome(call: Callable[..., Any], *args: Any, **words: Any) -> str:
    """What calling came to: `done`, or the error's class and, where a rule refused, its id."""
    try:
        call(*args, **words)
    except BaseException as error:  # noqa: BLE001  whatever it is, it is the outcome
        return f"{type(error).__name__} {getattr(error, 'rule', '')}".strip()
    return "done"


def facts(lifecycle: Lifecycle, variants: tuple[str, ...] = (), **lives: Life) -> dict[str, Any]:
    """Everything that rules and people can read of `lifecycle`, of `variants` and of `lives`, as plain data."""
    return {
        "session": lifecycle.session_open,
        "runtime": _books(lifecycle, lifecycle.runtime_scope),
        "variants": {name: _books(lifecycle, lifecycle.variant_scope(name)) for name in variants},
        "slots": {name: _life(lifecycle, life) for name, life in lives.items()},
    }


def _life(lifecycle: Lifecycle, life: Life) -> dict[str, Any]:
    failure = life.last_failure
    return {
        "state": life.state,
        "life": life.history[-1].life,
        "cause": life.cause.kind if life.cause else "",
        "failure": (failure.trigger, failure.state, failure.step or "") if failure else None,
        "history": [entry.name for entry in life.history[-BOUND:]],
        **_books(lifecycle, life.scopes.slot),
    }


def _books(lifecycle: Lifecycle, monitors: Monitors) -> dict[str, Any]:
    layout = lifecycle.law.layout
    happened = {event: number for event, number in layout.events.items() if monitors.count[number]}
    counters = {name: monitors.counters[number] for name, number in layout.counters.items()}
    return {
        "count": {event: monitors.count[number] for event, number in happened.items()},
        "order": sorted(happened, key=lambda event: monitors.newest[happened[event]]),
        "counters": {name: value for name, value in counters.items() if value},
        "modes": sorted(mode for mode, number in layout.modes.items() if monitors.modes[number]),
    }


def explained(life: Life, trigger: str) -> tuple[str, str, tuple[str, ...]]:
    """What `life.explain(trigger)` says, in the words of `outcome`; where it would be refused; the steps before."""
    explanation = life.explain(trigger)
    refusal = explanation.refusal
    if refusal is None:
        return "done", "", explanation.trace
    label = "IllegalTransition" if refusal.kind == "state" else f"RuleViolation {refusal.rule}"
    return label, refusal.at, explanation.trace
