"""The lifecycle of all slots of one runtime: states and transitions, run by `transitions`, as a spec declares them.

The machine is for lifecycle changes, never per replay, and it is the last defence only: the risky work is done and the
rules are asked before it is triggered (it is not transactional, and by itself says False where it refuses). Slots are
not registered as its models, so it holds nothing of them; they are handed to its events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import cast

import attrs
from transitions import EventData, Machine

from tsgraph.errors import SpecError
from tsgraph.lifecycle.law import Guard, Law, Refusal
from tsgraph.lifecycle.life import Life
from tsgraph.lifecycle.monitors import Monitors
from tsgraph.lifecycle.shared import Kind, Perform, ServingEffects, Shared
from tsgraph.spec import model
from tsgraph.spec.model import Spec, Transition


@attrs.define(eq=False)
class Lifecycle:
    """Makes the lives of a runtime's slots, and holds what they share. Compiled once, from a spec already restricted.

    `legal`: the triggers that exist in each state. `route`: the shortest way from the initial state to one that permits
    replays, without the triggers that play a role (failure, change, release, reset).

    Raises: SpecError for names that no state, step or transition has.
    """

    spec: Spec
    law: Law = attrs.field(init=False)
    shared: Shared = attrs.field(init=False)
    machine: Machine = attrs.field(init=False)
    transitions: Mapping[str, Transition] = attrs.field(init=False)
    legal: Mapping[str, tuple[str, ...]] = attrs.field(init=False)
    route: tuple[str, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        roles = self.spec.lifecycle
        problems = tuple(_problems(self.spec))
        if problems:
            raise SpecError(self.spec.source, problems)
        self.law = Law.of(self.spec)
        self.shared = Shared(self.law)
        self.machine = _machine(self.law)
        self.transitions = {transition.on: transition for transition in roles.transitions}
        self.legal = {state: roles.triggers(state) for state in roles.states}
        self.route = _way(roles, roles.initial, roles.replays_in, without=_roles(roles)) or ()

    # -- slots --

    def begin(self, key_name: str, variant: str) -> Life:
        """The life of a new slot, in the initial state; `variant` says with which slots it shares a scope."""
        return Life(key_name, variant, self, self.shared.scopes(variant), self.spec.lifecycle.initial)

    def illegal(self, trigger: str, state: str) -> Refusal:
        """Why `trigger` does not exist in `state`, and which triggers lead to where it does."""
        legal = ", ".join(self.legal[state]) or "none"
        what = f"it does not exist in {state}; legal: {legal}"
        if trigger not in self.transitions:
            what = f"there is no such trigger; legal in {state}: {legal}"
        return Refusal(kind="state", at=trigger, what=what, fix=self._way_to(trigger, state), legal=self.legal[state])

    def _way_to(self, trigger: str, state: str) -> str:
        if trigger not in self.transitions:
            return f"fire one of {', '.join(self.transitions)}"
        way = _way(self.spec.lifecycle, state, self.transitions[trigger].source)
        return f"fire {', '.join(way)} first" if way else f"begin a new slot: nothing leads there from {state}"

    # -- what slots share --

    @property
    def runtime_scope(self) -> Monitors:
        """The monitors that all slots and served forwards feed."""
        return self.shared.runtime

    @property
    def serving(self) -> ServingEffects:
        """What served forwards do to `runtime_scope`."""
        return self.shared.serving

    @property
    def session_open(self) -> bool:
        """Whether a session of captures is open."""
        return self.shared.session_open

    def variant_scope(self, variant: str) -> Monitors:
        """The monitors that the slots of `variant` share."""
        return self.shared.variant(variant)

    def set_up(self, perform: Perform) -> None:
        """Take the setup's steps, once, before the first slot.

        Raises: RuleViolation where a rule refuses one; whatever `perform` raises.
        """
        self.shared.set_up(perform)

    def open_session(self, perform: Perform) -> None:
        """Take the session's `enter` steps; after a failure, also the `leave` steps.

        Raises: CallerError if a session is open; RuleViolation, before any effect, where a rule refuses.
        """
        self.shared.open(perform)

    def close_session(self, perform: Perform) -> None:
        """Take all of the session's `leave` steps, then raise the gravest of what they raised.

        Raises: CallerError if no session is open.
        """
        self.shared.close(perform)

    def session(self, perform: Perform) -> AbstractContextManager[None]:
        """A session around a block, left on every exit; what leaving raises after an error becomes notes on it."""
        return self.shared.session(perform)

    def admit(self, kind: Kind) -> None:
        """Ask the rules that guard serving a forward, or its entry, as `kind` says; free where there are none.

        Raises: RuleViolation for the first that refuses; nothing is changed.
        """
        self.shared.admit(kind)

    def guarded(self, kind: Kind) -> bool:
        """Whether `admit` has anything to ask: where not, nobody need call it."""
        return self.shared.guarded(kind)


def _machine(law: Law) -> Machine:
    """Callables only, and nothing of what `transitions` offers beyond states, transitions and conditions."""
    roles = law.spec.lifecycle
    return Machine(
        model=None,
        states=list(roles.states),
        initial=roles.initial,
        transitions=[_row(transition, law) for transition in roles.transitions],
        auto_transitions=False,
        send_event=True,
        model_attribute="_state",
    )


def _row(transition: Transition, law: Law) -> dict[str, object]:
    guards = law.guards.get(transition.on, ()) if law.spec.lifecycle.refusable(transition) else ()
    conditions = [_Condition(guard) for guard in guards]
    source = list(transition.source)
    return {"trigger": transition.on, "source": source, "dest": transition.to, "conditions": conditions}


@attrs.frozen
class _Condition:
    """A guard as the machine asks it. It answers with a bool: `transitions` takes any other value for a refusal."""

    guard: Guard

    def __call__(self, event: EventData) -> bool:
        return bool(self.guard.holds(cast(Life, event.model).scopes))


# -- the spec as a graph ----------------------------------------------------------------------------------------------


def _roles(roles: model.Lifecycle) -> frozenset[str]:
    return frozenset((roles.on_failure, roles.on_change, roles.on_release, roles.on_reset))


def _way(
    roles: model.Lifecycle, start: str, goals: tuple[str, ...], without: frozenset[str] = frozenset()
) -> tuple[str, ...] | None:
    """The fewest triggers that lead from `start` into one of `goals`, breadth first; None if none do."""
    ways: dict[str, tuple[str, ...]] = {start: ()}
    for state in (queue := [start]):
        if state in goals:
            return ways[state]
        for transition in roles.transitions:
            if state in transition.source and transition.on not in without and transition.to not in ways:
                ways[transition.to] = (*ways[state], transition.on)
                queue.append(transition.to)
    return None


def _problems(spec: Spec) -> Iterator[str]:
    """What `transitions` would find only when fired, or never: it validates nothing up front."""
    roles = spec.lifecycle
    triggers = [transition.on for transition in roles.transitions]
    for trigger in sorted(_roles(roles) - set(triggers)):
        yield f"lifecycle: no transition is named {trigger!r}"
    for state in sorted({roles.initial, *roles.final, *roles.replays_in} - set(roles.states)):
        yield f"lifecycle: there is no state {state!r}"
    for transition in roles.transitions:
        yield from _transition_problems(transition, spec, triggers)


def _transition_problems(transition: Transition, spec: Spec, triggers: list[str]) -> Iterator[str]:
    where = f"transitions.{transition.on}"
    if triggers.count(transition.on) > 1:
        yield f"{where}: declared more than once"
    for state in sorted({*transition.source, transition.to} - set(spec.lifecycle.states)):
        yield f"{where}: there is no state {state!r}"
    for step in sorted({*transition.steps, *transition.cleanup} - set(spec.steps)):
        yield f"{where}: there is no step {step!r}"
    for rule in spec.rules:
        if transition.on in rule.guards and not spec.lifecycle.refusable(transition):
            yield f"{where}: rule {rule.id} guards it, but it cannot be refused"
