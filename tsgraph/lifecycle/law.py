"""A spec's rules and steps, compiled once per runtime, and how a run of steps is judged before anything runs.

A rule guards steps (asked just before the step) or triggers (asked after the trigger's steps). A transition that only
cleans up, and the one that a failure fires, cannot be refused: no rule is asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import attrs

from tsgraph.errors import CallerError, IllegalTransition, InternalError, RuleViolation
from tsgraph.lifecycle.monitors import Effects, Holds, Layout, Scopes, compile_condition, reach
from tsgraph.spec.model import AtLeast, Condition, CounterIs, ModeIs, Rule, Scope, Spec, Step, Transition


@attrs.frozen(kw_only=True)
class Refusal:
    """Why a trigger may not fire: it does not exist in this state (`kind` "state"), or a rule refuses (`kind` "rule").

    `rule`: the rule's id. `at`: the step or trigger that it refuses. `what` is wrong, `because` of what it matters,
    `fix`: what to do. `legal`: the triggers that exist in this state.
    """

    kind: Literal["state", "rule"]
    rule: str = ""
    at: str
    what: str
    because: str = ""
    fix: str
    legal: tuple[str, ...] = ()

    def error(self, whose: str, **facts: object) -> CallerError:
        """The refusal as an error: `whose` says who asked for what, in which state."""
        because = f" ({self.because})" if self.because else ""
        what = f"{whose} is refused: {self.what}{because}"
        facts |= {"at": self.at, "legal": self.legal}
        if self.kind == "state":
            return IllegalTransition(what, hint=self.fix, **facts)
        return RuleViolation(what, rule=self.rule, hint=self.fix, **facts)


@attrs.frozen
class Guard:
    """A rule, compiled: `holds` asks it, `reach` is the scope whose monitors it reads."""

    rule: Rule
    reach: Scope
    holds: Holds

    @property
    def shares_count(self) -> bool:
        """Whether it counts what other slots do too."""
        return isinstance(self.rule.condition, AtLeast) and self.reach != "slot"

    def refusal(self, at: str) -> Refusal:
        """What to say where it does not hold."""
        rule = self.rule
        what = f"at {at}, rule {rule.id} demands that {rule.condition}"
        return Refusal(kind="rule", rule=rule.id, at=at, what=what, because=rule.because, fix=rule.fix)


def is_void(condition: Condition, spec: Spec) -> bool:
    """A counter whose collaborator is absent stays 0 and is not checked; likewise a mode."""
    match condition:
        case CounterIs(counter):
            return counter not in spec.counters
        case ModeIs(mode):
            return mode not in spec.modes
    return False


@attrs.frozen
class Law:
    """The compiled rules and steps of one spec, already restricted to what is present."""

    spec: Spec
    layout: Layout
    guards: Mapping[str, tuple[Guard, ...]]
    effects: Mapping[tuple[str, str], Effects]

    @classmethod
    def of(cls, spec: Spec) -> Law:
        """Compile `spec`."""
        layout = Layout.of(spec)
        effects = {(s.name, event): layout.effects(s, event) for s in spec.steps.values() for event in s.event}
        return cls(spec, layout, _guards(spec, layout), effects)

    def shared(self) -> Law:
        """The law for steps that belong to no slot: only the rules that read the runtime scope."""
        guards = {at: tuple(g for g in guards if g.reach == "runtime") for at, guards in self.guards.items()}
        return attrs.evolve(self, guards=guards)

    # -- one step --

    def refusal(self, at: str, scopes: Scopes) -> Refusal | None:
        """The first rule that refuses the step or trigger `at` now."""
        for guard in self.guards.get(at, ()):
            if not guard.holds(scopes):
                return guard.refusal(at)
        return None

    def step_refusal(self, step: Step, scopes: Scopes) -> Refusal | None:
        """The first rule, or else counter floor, that refuses `step` now."""
        return self.refusal(step.name, scopes) or self._underflow(step, scopes)

    def _underflow(self, step: Step, scopes: Scopes) -> Refusal | None:
        try:
            scopes.check(self.effects[step.name, step.event[0]])
        except RuleViolation as error:
            what = f"at {step.name}, {error.what}"
            return Refusal(kind="rule", rule=error.rule, at=step.name, what=what, fix=error.hint)
        return None

    def outcome(self, step: Step, said: str | None) -> str:
        """The event that `step` had, as its work `said`; None is the first declared.

        Raises: InternalError for an event that the step does not declare.
        """
        event = step.event[0] if said is None else said
        if event not in step.event:
            declared = ", ".join(step.event)
            raise InternalError(f"step {step.name} had the outcome {said!r}, but the spec declares {declared}")
        return event

    # -- runs of steps --

    def steps(self, names: Iterable[str]) -> tuple[Step, ...]:
        """The steps that are named."""
        return tuple(self.spec.steps[name] for name in names)

    def rounds(self, transition: Transition, scopes: Scopes) -> Iterator[int]:
        """How often the steps of `transition` run: `repeat` times.

        A trigger's `at_least` rule that counts in a wider scope than the slot's (warm-ups per variant) ends the rounds
        as soon as it holds: an earlier slot may have done the work.
        """
        shared = [guard for guard in self.guards.get(transition.on, ()) if guard.shares_count]
        for done in range(transition.repeat):
            if shared and all(guard.holds(scopes) for guard in shared):
                return
            yield done

    def simulate(self, transition: Transition, scopes: Scopes, trace: list[str]) -> Refusal | None:
        """Take the steps of `transition` on `scopes` (pass copies), as if each did its work: the first refusal.

        A step with several outcomes is taken to have the first. What was taken is appended to `trace`.
        """
        if not self.spec.lifecycle.refusable(transition):
            trace.extend(transition.cleanup + transition.steps)
            return None
        for _ in self.rounds(transition, scopes):
            refusal = self.simulate_steps(transition.steps, scopes, trace)
            if refusal:
                return refusal
        return self._simulate(transition.cleanup, scopes, trace, self._underflow) or self.refusal(transition.on, scopes)

    def simulate_steps(self, names: Iterable[str], scopes: Scopes, trace: list[str]) -> Refusal | None:
        """As `simulate`, of a plain run of steps."""
        return self._simulate(names, scopes, trace, self.step_refusal)

    def _simulate(self, names: Iterable[str], scopes: Scopes, trace: list[str], ask: _Ask) -> Refusal | None:
        for step in self.steps(names):
            refusal = ask(step, scopes)
            if refusal:
                return refusal
            scopes.apply(self.effects[step.name, step.event[0]])
            trace.append(step.name)
        return None


_Ask = Callable[[Step, Scopes], Refusal | None]


def _guards(spec: Spec, layout: Layout) -> dict[str, tuple[Guard, ...]]:
    compiled: dict[str, tuple[Guard, ...]] = {}
    for rule in spec.rules:
        if not is_void(rule.condition, spec):
            read = reach(rule.condition, rule.scope, spec)
            guard = Guard(rule, read, compile_condition(rule.condition, read, layout))
            compiled.update({at: (*compiled.get(at, ()), guard) for at in rule.guards})
    return compiled
