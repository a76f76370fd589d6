"""The declared course: what a spec's own steps do, in order, where all work succeeds and nobody misbehaves.

Two slots of one variant are brought up in one session. One is replayed, a forward is served eagerly and one given up,
each from an entry of its own, and another entry is pushed; then the slot goes stale, begins again, and is brought up a
second time in a session of its own, while that entry waits. Rules are asked and properties judged all along.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from tsgraph.lifecycle import Lifecycle
from tsgraph.lifecycle.law import Law, is_void
from tsgraph.lifecycle.monitors import Holds, Scopes, compile_condition, reach
from tsgraph.lifecycle.shared import Shared
from tsgraph.spec.model import Clause, Spec, Step, Transition


def route_of(spec: Spec) -> tuple[str, ...]:
    """The triggers that lead from the initial state to a replayable one."""
    return Lifecycle(spec).route


def follow(spec: Spec, route: tuple[str, ...]) -> str | None:
    """What goes wrong first along the declared course of `spec`; None if nothing does.

    `spec` is restricted to what is present already; `route` is that of `route_of`.
    """
    return next(_Course.of(spec, route).problems(), None)


@attrs.frozen
class _Claim:
    """One clause of a property, compiled: `holds` asks it."""

    property: str
    clause: Clause
    holds: Holds


_Claims = Mapping[str, tuple[_Claim, ...]]


@attrs.define(eq=False)
class _Slot:
    """Where one slot is."""

    scopes: Scopes
    state: str


@attrs.frozen(eq=False)
class _Course:
    """Walks the course. What it meets is a problem each; only the first means anything."""

    law: Law
    shared: Shared
    route: tuple[str, ...]
    before: _Claims
    after: _Claims

    @classmethod
    def of(cls, spec: Spec, route: tuple[str, ...]) -> _Course:
        law = Law.of(spec)
        return cls(law, Shared(law), route, _claims(law, "before"), _claims(law, "holds"))

    def problems(self) -> Iterator[str]:
        roles = self.law.spec.lifecycle
        slot, sibling = self._begun(), self._begun()
        yield from self._steps(self.law.spec.setup.steps, _Slot(self.shared.scopes("nobody"), ""), self.shared.law)
        yield from self._session([(slot, self.route), (sibling, self.route)])
        for kind in ("push", "replay", "push", "eager", "push", "abandon", "push"):
            yield from self._served(kind, slot)
        yield from self._fired(roles.on_change, slot)
        yield from self._fired(roles.on_reset, slot)
        yield from self._session([(slot, self.route)])

    def _begun(self) -> _Slot:
        return _Slot(self.shared.scopes("default"), self.law.spec.lifecycle.initial)

    # -- triggers and sessions --

    def _session(self, slots: Iterable[tuple[_Slot, tuple[str, ...]]]) -> Iterator[str]:
        nobody = _Slot(self.shared.scopes("nobody"), "")
        spec = self.law.spec
        yield from self._steps(spec.session.enter, nobody, self.shared.law)
        for slot, triggers in slots:
            for trigger in triggers:
                yield from self._fired(trigger, slot)
        yield from self._steps(spec.session.leave, nobody, self.shared.law)

    def _fired(self, trigger: str, slot: _Slot) -> Iterator[str]:
        transition = self.law.spec.lifecycle.transition(trigger)
        if slot.state not in transition.source:
            yield f"{trigger} does not exist in {slot.state}"
        for _ in self.law.rounds(transition, slot.scopes):
            yield from self._steps(transition.steps, slot, self.law)
        yield from self._steps(transition.cleanup, slot, self.law)
        yield from self._entered(transition, slot)

    def _entered(self, transition: Transition, slot: _Slot) -> Iterator[str]:
        refusal = self.law.refusal(transition.on, slot.scopes)
        if refusal is not None:
            yield f"rule {refusal.rule} refuses {transition.on}"
        yield from self._judged(self.before, transition.to, slot)
        slot.state = transition.to
        if transition.on == self.law.spec.lifecycle.on_reset:
            slot.scopes = slot.scopes.begun_again(self.law.layout)
        yield from self._judged(self.after, transition.to, slot)

    # -- steps --

    def _served(self, kind: str, slot: _Slot) -> Iterator[str]:
        yield from self._steps(getattr(self.law.spec.serving, kind), slot, self.shared.law)

    def _steps(self, names: Iterable[str], slot: _Slot, law: Law) -> Iterator[str]:
        for step in law.steps(names):
            yield from self._done(step, slot, law)

    def _done(self, step: Step, slot: _Slot, law: Law) -> Iterator[str]:
        refusal = law.step_refusal(step, slot.scopes)
        if refusal is not None:
            yield f"rule {refusal.rule} refuses {step.name}"
        yield from self._judged(self.before, step.event[0], slot)
        slot.scopes.apply(law.effects[step.name, step.event[0]])
        yield from self._judged(self.after, step.event[0], slot)

    def _judged(self, claims: _Claims, moment: str, slot: _Slot) -> Iterator[str]:
        for claim in claims.get(moment, ()):
            if not claim.holds(slot.scopes):
                yield f"property {claim.property} breaks at {moment}"


def _claims(law: Law, when: str) -> _Claims:
    claims: dict[str, tuple[_Claim, ...]] = {}
    for prop in law.spec.properties:
        found = tuple(_Claim(prop.id, clause, _compiled(clause, law)) for clause in getattr(prop, when))
        claims.update({moment: claims.get(moment, ()) + found for moment in prop.when})
    return claims


def _compiled(clause: Clause, law: Law) -> Holds:
    if is_void(clause.condition, law.spec):
        return lambda _scopes: True
    scope = reach(clause.condition, clause.scope, law.spec)
    return compile_condition(clause.condition, scope, law.layout)
