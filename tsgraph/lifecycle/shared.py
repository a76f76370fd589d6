"""What all slots share: the runtime's and the variants' monitors, sessions of captures, and served forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import attrs

from tsgraph.errors import CallerError
from tsgraph.lifecycle.law import Law, Refusal
from tsgraph.lifecycle.monitors import Effect, Monitors, Scopes
from tsgraph.lifecycle.trouble import Trouble
from tsgraph.spec.model import Step

Perform = Callable[[Step], str | None]
"""Does the work of one step. Returns the event that happened, if the step declares several (None: the first)."""

Kind = Literal["push", "replay", "eager", "abandon"]
KINDS: tuple[Kind, ...] = ("push", "replay", "eager", "abandon")
TOLD: Mapping[Kind, str] = {
    "push": "pushing the entry of a forward",
    "replay": "serving a forward (replay)",
    "eager": "serving a forward (eager)",
    "abandon": "taking an entry back",
}


@attrs.frozen
class ServingEffects:
    """What served forwards and their entries do to the runtime scope, ready for `runtime_scope.apply`."""

    push: tuple[Effect, ...]
    replay: tuple[Effect, ...]
    eager: tuple[Effect, ...]
    abandon: tuple[Effect, ...]


@attrs.define(eq=False)
class Shared:
    """The scopes that slots share, and the steps that belong to no slot.

    Of such steps only the rules are asked that read the runtime scope: there is no slot that another could mean.
    """

    law: Law
    runtime: Monitors = attrs.field(init=False)
    session_open: bool = attrs.field(default=False, init=False)
    serving: ServingEffects = attrs.field(init=False)
    _nobody: Scopes = attrs.field(init=False)
    _variants: dict[str, Monitors] = attrs.field(factory=dict, init=False)
    _guarded: dict[Kind, tuple[Step, ...]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.law = self.law.shared()
        self.runtime = self.law.layout.monitors()
        self._nobody = Scopes(self.law.layout.monitors(), self.law.layout.monitors(), self.runtime)
        self.serving = ServingEffects(*(tuple(self._effects(kind)) for kind in KINDS))
        self._guarded = {kind: self._asked(self._steps(kind)) for kind in KINDS}

    def scopes(self, variant: str) -> Scopes:
        """The scopes of a new slot of `variant`."""
        return Scopes(self.law.layout.monitors(), self.variant(variant), self.runtime)

    def variant(self, name: str) -> Monitors:
        """The monitors that the slots of one variant share."""
        return self._variants.setdefault(name, self.law.layout.monitors())

    # -- served forwards --

    def admit(self, kind: Kind) -> None:
        """Ask the rules that guard the serving steps of `kind`; free where there are none.

        Raises: RuleViolation for the first that refuses. Nothing is changed.
        """
        steps = self._guarded[kind]
        if steps:
            self._refuse(self._first_refusal(steps), TOLD[kind])

    def guarded(self, kind: Kind) -> bool:
        """Whether anything can refuse a serving of `kind`."""
        return bool(self._guarded[kind])

    def _first_refusal(self, steps: tuple[Step, ...]) -> Refusal | None:
        if len(steps) == 1:
            return self.law.step_refusal(steps[0], self._nobody)
        return self.law.simulate_steps((step.name for step in steps), self._nobody.copy(), [])

    def _steps(self, kind: Kind) -> tuple[Step, ...]:
        return self.law.steps(getattr(self.law.spec.serving, kind))

    def _effects(self, kind: Kind) -> Iterator[Effect]:
        return (self.law.effects[step.name, step.event[0]].runtime for step in self._steps(kind))

    def _asked(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """`steps` up to the last one that anything can refuse."""
        refusable = [at for at, step in enumerate(steps, 1) if self._is_guarded(step)]
        return steps[: max(refusable, default=0)]

    def _is_guarded(self, step: Step) -> bool:
        return bool(self.law.guards.get(step.name) or self.law.effects[step.name, step.event[0]].runtime.floors)

    # -- setup --

    def set_up(self, perform: Perform) -> None:
        """Take the setup's steps. Raises: RuleViolation where a rule refuses one; whatever `perform` raises."""
        for step in self.law.steps(self.law.spec.setup.steps):
            self._refuse(self.law.step_refusal(step, self._nobody), "building a runtime")
            self._do(step, perform)

    # -- sessions --

    def simulate_open(self, scopes: Scopes, trace: list[str]) -> Refusal | None:
        """Simulate opening a session for a slot with `scopes` (pass copies): the first refusal."""
        nobody = Scopes(self._nobody.slot.copy(), self._nobody.variant.copy(), scopes.runtime)
        return self.law.simulate_steps(self.law.spec.session.enter, nobody, trace)

    def open(self, perform: Perform) -> None:
        """Enter a session. A failure leaves it again, then goes on.

        Raises: CallerError if one is open; RuleViolation, before any effect, where a rule refuses.
        """
        if self.session_open:
            raise CallerError("a session is open already", hint="close it first")
        self._refuse(self.simulate_open(self._nobody.copy(), []), "opening a session")
        self.session_open = True
        try:
            for step in self.law.steps(self.law.spec.session.enter):
                self._refuse(self.law.step_refusal(step, self._nobody), "opening a session")
                self._do(step, perform)
        except BaseException as error:
            self._leave(perform, Trouble(error))
            raise

    def close(self, perform: Perform) -> None:
        """Leave the session: every step runs, whatever the others raise; then the gravest of that is raised.

        Raises: CallerError if none is open.
        """
        if not self.session_open:
            raise CallerError("no session is open", hint="open one first")
        self._leave(perform, Trouble())

    @contextmanager
    def session(self, perform: Perform) -> Iterator[None]:
        """A session around a block, left on every exit."""
        self.open(perform)
        try:
            yield
        except BaseException as error:
            self._leave(perform, Trouble(error))
            raise
        self.close(perform)

    def _leave(self, perform: Perform, trouble: Trouble) -> None:
        trouble.attempt(self.law.steps(self.law.spec.session.leave), lambda step: self._do(step, perform))
        self.session_open = False
        trouble.settle()

    def _do(self, step: Step, perform: Perform) -> None:
        event = self.law.outcome(step, perform(step))
        self._nobody.apply(self.law.effects[step.name, event])

    def _refuse(self, refusal: Refusal | None, whose: str) -> None:
        if refusal is not None:
            raise refusal.error(whose)
