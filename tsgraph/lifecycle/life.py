"""One slot's life: its state, its history, and the only way to change them, `fire`.

`fire` keeps one order, whatever the spec says: refuse before any effect (a wrong state, or a rule that refuses in a
simulation on copies); then do each step's work, asking its rules just before and writing its event just after; ask the
trigger's rules; change the state. If anything raises once work has begun, the slot fails: its cleanup runs to the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from tsgraph.errors import CallerError, InternalError, WrongThread
from tsgraph.lifecycle.law import Law, Refusal
from tsgraph.lifecycle.ledger import Cause, Entry, Failure, Ledger
from tsgraph.lifecycle.monitors import Scopes
from tsgraph.lifecycle.shared import Perform, Shared
from tsgraph.lifecycle.trouble import Trouble
from tsgraph.spec.model import Spec, Step, Transition

if TYPE_CHECKING:
    from tsgraph.lifecycle.machine import Lifecycle


@attrs.frozen
class Explanation:
    """What firing `trigger` in `state` would do: the steps it would take (`trace`), or the first refusal after them."""

    trigger: str
    state: str
    allowed: bool
    refusal: Refusal | None
    trace: tuple[str, ...]

    def __str__(self) -> str:
        steps = ", ".join(self.trace) or "none"
        if self.refusal is None:
            return f"`{self.trigger}` in {self.state}: allowed\n  steps: {steps}"
        return f"`{self.trigger}` in {self.state}: refused\n" + "\n".join(self._reasons(self.refusal, steps))

    @staticmethod
    def _reasons(refusal: Refusal, steps: str) -> list[str]:
        reasons = {"what": refusal.what, "because": refusal.because, "fix": refusal.fix}
        legal = {"legal here": ", ".join(refusal.legal), "steps before": steps if refusal.kind == "rule" else ""}
        return [f"  {name}: {reason}" for name, reason in {**reasons, **legal}.items() if reason]


@attrs.define(eq=False)
class _Attempt:
    """A transition under way: what it tried so far, and where it is (None: after its steps)."""

    transition: Transition
    state: str
    perform: Perform
    tried: list[str] = attrs.field(factory=list)
    step: str | None = None

    def begin(self, step: Step) -> None:
        self.step = step.name
        self.tried.append(step.name)


@attrs.define(eq=False)
class Life:
    """The life of one slot; `Lifecycle.begin` makes it. `scopes`: the monitors that its rules read."""

    name: str
    variant: str
    _lifecycle: Lifecycle
    scopes: Scopes
    _state: str
    _cause: Cause | None = None
    _last_failure: Failure | None = None
    _busy: bool = False
    _ledger: Ledger = attrs.field(factory=Ledger)

    def __attrs_post_init__(self) -> None:
        self._ledger.append(self._state, "state", "begin")

    # -- what it is --

    @property
    def spec(self) -> Spec:
        """The spec that it lives by."""
        return self._lifecycle.spec

    @property
    def state(self) -> str:
        """The slot's state."""
        return self._state

    @property
    def cause(self) -> Cause | None:
        """Why the slot is stale or failed; None again after a reset."""
        return self._cause

    @property
    def last_failure(self) -> Failure | None:
        """Where a transition of this life failed last; None again after a reset."""
        return self._last_failure

    @property
    def history(self) -> tuple[Entry, ...]:
        """The newest entries of all its lives, oldest first."""
        return self._ledger.entries

    # -- what it may do --

    def can(self, trigger: str) -> bool:
        """Whether `fire(trigger)` would be refused neither by the state nor by a rule, if each step does its work."""
        return self.explain(trigger).allowed

    def explain(self, trigger: str) -> Explanation:
        """What `fire(trigger)` would do: its steps, simulated on copies up to the first refusal. Changes nothing."""
        legal = self._lifecycle.legal[self._state]
        trace: list[str] = []
        refusal = self._simulate(trigger, trace) if trigger in legal else self._lifecycle.illegal(trigger, self._state)
        refusal = attrs.evolve(refusal, legal=legal) if refusal else None
        return Explanation(trigger, self._state, refusal is None, refusal, tuple(trace))

    def require(self, trigger: str) -> None:
        """Raises what `fire(trigger)` would before any effect: IllegalTransition or RuleViolation. Changes nothing."""
        self._require(self.explain(trigger).refusal, trigger)

    def _simulate(self, trigger: str, trace: list[str]) -> Refusal | None:
        transition = self._lifecycle.transitions[trigger]
        scopes = self.scopes.copy()
        opening = self._shared.simulate_open(scopes, trace) if self._opens_session(transition) else None
        return opening or self._law.simulate(transition, scopes, trace)

    def _opens_session(self, transition: Transition) -> bool:
        works = bool(transition.steps) and self._law.spec.lifecycle.refusable(transition)
        return works and not self._shared.session_open

    # -- what it does --

    def fire(self, trigger: str, perform: Perform | None = None, *, cause: Cause | None = None) -> None:
        """Take the steps of `trigger`, with `perform` doing the work of each, and change the state.

        A transition with steps opens a session of its own where none is open. `cause` is kept until a reset.

        Raises: IllegalTransition or RuleViolation, before any effect. Whatever `perform` raises, and the RuleViolation
        of a rule that refuses once steps have run, after the slot has failed (`cause` and `last_failure` say how). A
        transition that only cleans up, and the failure's own, is completed first. What leaving its own session raises.
        """
        attempt = self._begin(trigger, perform)
        self._busy = True
        try:
            self._proceed(attempt, cause)
        finally:
            self._busy = False

    def _begin(self, trigger: str, perform: Perform | None) -> _Attempt:
        if self._busy:
            raise WrongThread(f"slot {self.name} is in a transition already", hint="fire from outside of `perform`")
        self.require(trigger)
        transition = self._lifecycle.transitions[trigger]
        steps = ", ".join(transition.steps + transition.cleanup)
        if steps and perform is None:
            raise CallerError(f"`{trigger}` has steps, and nothing performs them", hint=f"pass perform=, for {steps}")
        return _Attempt(transition, self._state, perform or _nothing)

    def _require(self, refusal: Refusal | None, trigger: str) -> None:
        if refusal is not None:
            whose = f"slot {self.name} is {self._state}: `{trigger}`"
            raise refusal.error(whose, slot=self.name, state=self._state, trigger=trigger)

    def _proceed(self, attempt: _Attempt, cause: Cause | None) -> None:
        if not self._law.spec.lifecycle.refusable(attempt.transition):
            self._conclude(attempt, cause)
        elif self._opens_session(attempt.transition):
            with self._shared.session(attempt.perform):
                self._advance(attempt, cause)
        else:
            self._advance(attempt, cause)

    def _advance(self, attempt: _Attempt, cause: Cause | None) -> None:
        try:
            self._work(attempt)
            self._enter(attempt.transition, cause)
        except BaseException as error:
            self._fail(attempt, error)
            raise

    def _work(self, attempt: _Attempt) -> None:
        transition = attempt.transition
        for _ in self._law.rounds(transition, self.scopes):
            for step in self._law.steps(transition.steps):
                attempt.begin(step)
                self._require(self._law.step_refusal(step, self.scopes), transition.on)
                self._do(step, attempt)
        for step in self._law.steps(transition.cleanup):
            attempt.begin(step)
            self._do(step, attempt)
        attempt.step = None
        self._require(self._law.refusal(transition.on, self.scopes), transition.on)

    def _do(self, step: Step, attempt: _Attempt) -> None:
        event = self._law.outcome(step, attempt.perform(step))
        self.scopes.apply(self._law.effects[step.name, event])
        self._ledger.append(event, "event", step.name)

    def _enter(self, transition: Transition, cause: Cause | None, detail: str = "") -> None:
        if not self._lifecycle.machine.events[transition.on].trigger(self):
            raise InternalError(f"slot {self.name}: the machine refuses `{transition.on}`, which every rule allows")
        if transition.on == self._law.spec.lifecycle.on_reset:
            self._begin_life()
        self._cause = cause or self._cause
        self._ledger.append(self._state, "state", transition.on, detail or str(cause or ""))

    def _begin_life(self) -> None:
        self._ledger.begin_life()
        self._cause = self._last_failure = None
        self.scopes = self.scopes.begun_again(self._law.layout)

    # -- what it does when something goes wrong --

    def _fail(self, attempt: _Attempt, error: BaseException) -> None:
        """Clean up after `error` and fire the failure's trigger, where it exists. Raises only what is graver."""
        self._last_failure = failure = Failure(attempt.transition.on, attempt.state, attempt.step)
        error.add_note(f"slot {self.name}: {failure}")
        trouble = Trouble(error)
        self._attempt(attempt.transition.cleanup, attempt, trouble)
        roles = self._law.spec.lifecycle
        if roles.on_failure in self._lifecycle.legal[self._state]:
            failing = self._lifecycle.transitions[roles.on_failure]
            self._attempt_all(failing, attempt, trouble)
            cause = Cause.of(error)
            self._enter(failing, cause, f"{failure}: {cause}")
        trouble.settle()

    def _conclude(self, attempt: _Attempt, cause: Cause | None) -> None:
        trouble = Trouble()
        self._attempt_all(attempt.transition, attempt, trouble)
        self._enter(attempt.transition, cause)
        trouble.settle()

    def _attempt_all(self, transition: Transition, attempt: _Attempt, trouble: Trouble) -> None:
        """Clean up, then take the steps that were not tried yet: a rank that has voted does not vote again."""
        untried = (name for name in transition.steps if name not in attempt.tried)
        self._attempt((*transition.cleanup, *untried), attempt, trouble)

    def _attempt(self, names: Iterable[str], attempt: _Attempt, trouble: Trouble) -> None:
        trouble.attempt(self._law.steps(names), lambda step: self._do(step, attempt))

    @property
    def _law(self) -> Law:
        return self._lifecycle.law

    @property
    def _shared(self) -> Shared:
        return self._lifecycle.shared


def _nothing(step: Step) -> None:
    """Performs no step: for transitions that have none."""
