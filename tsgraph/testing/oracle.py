"""What slots should do, told by another reading of a spec: whole lists of events, plain dicts, errors as words.

Nothing is taken from `tsgraph.lifecycle`, nor from what `Spec.restricted_to` keeps: two readings that share a mistake
would agree on it. The oracle is slow and says the same thing twice where that makes it plainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from tsgraph.spec.model import (
    POLICIES,
    After,
    AtLeast,
    Condition,
    Counter,
    CounterIs,
    ModeIs,
    Rule,
    Scope,
    Spec,
    Step,
    Transition,
)
from tsgraph.testing.books import Books, Job, SlotBooks, Verdict, Wrong

DONE = "done"
UNDERFLOW = "RuleViolation R24"
SCOPES: tuple[Scope, ...] = ("slot", "variant", "runtime")


@attrs.define(eq=False)
class Oracle:
    """The slots of one runtime, whose spec is `spec` (whole) and whose collaborators are `present`."""

    spec: Spec
    present: frozenset[str]
    runtime: Books = attrs.field(factory=Books)
    variants: dict[str, Books] = attrs.field(factory=dict)
    slots: dict[str, SlotBooks] = attrs.field(factory=dict)
    nobody: SlotBooks = attrs.field(factory=lambda: SlotBooks(Books(), ""))
    session_open: bool = False
    elsewhere: dict[str, int] = attrs.field(factory=dict)

    # -- what there is --

    def begin(self, name: str, variant: str) -> None:
        """A new slot."""
        initial = self.spec.lifecycle.initial
        shared = self.variants.setdefault(variant, Books())
        self.slots[name] = SlotBooks(shared, initial, history=[initial])

    def legal(self, name: str) -> tuple[str, ...]:
        """The triggers that exist in the slot's state."""
        return tuple(t.on for t in self.spec.lifecycle.transitions if self.slots[name].state in t.source)

    def route(self) -> tuple[str, ...]:
        """The fewest triggers without a role that lead from the initial state to one that permits replays."""
        law = self.spec.lifecycle
        plain = [
            t for t in law.transitions if t.on not in (law.on_failure, law.on_change, law.on_release, law.on_reset)
        ]
        ways: list[tuple[str, tuple[str, ...]]] = [(law.initial, ())]
        for state, way in ways:  # grows as it is read
            if state in law.replays_in:
                return way
            ways += [(t.to, (*way, t.on)) for t in plain if state in t.source and t.to not in dict(ways)]
        return ()

    def facts(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "session": self.session_open,
            "runtime": attrs.evolve(self.runtime, counters={**self.runtime.counters, **self._sums()}).facts(),
            "variants": {name: books.facts() for name, books in self.variants.items()},
            "slots": {name: slot.facts() for name, slot in self.slots.items()},
        }

    def _has(self, thing: Any) -> bool:
        """Whether what `thing` needs is there: a collaborator, or a policy that is on."""
        return (
            thing.needs is None
            or thing.needs in self.present
            or (thing.needs in POLICIES and bool(getattr(self.spec.policy, thing.needs)))
        )

    def _steps(self, names: Iterable[str]) -> list[Step]:
        return [self.spec.steps[name] for name in names if self._has(self.spec.steps[name])]

    def _transition(self, trigger: str) -> Transition:
        (found,) = (t for t in self.spec.lifecycle.transitions if t.on == trigger)
        return found

    def _refusable(self, transition: Transition) -> bool:
        only_cleans = bool(self._steps(transition.cleanup)) and not self._steps(transition.steps)
        return transition.on != self.spec.lifecycle.on_failure and not only_cleans

    def _opens(self, transition: Transition) -> bool:
        works = bool(self._steps(transition.steps)) and self._refusable(transition)
        return works and not self.session_open

    def _sums(self) -> dict[str, int]:
        """What is summed over all slots, those of an imagined world elsewhere included."""
        return {name: self._summed(counter) for name, counter in self.spec.counters.items() if counter.sums is not None}

    def _summed(self, counter: Counter) -> int:
        own = counter.sums or ""
        if not self._has(counter) or not self._has(self.spec.counters[own]):
            return 0
        return self.elsewhere.get(own, 0) + sum(slot.own.counters.get(own, 0) for slot in self.slots.values())

    # -- rules --

    def _books(self, scope: Scope, slot: SlotBooks) -> Books:
        return {"slot": slot.own, "variant": slot.variant, "runtime": self.runtime}[scope]

    def _scope(self, condition: Condition, scope: Scope) -> Scope | None:
        """Where a condition is judged: a counter or mode where it lives, events where the rule says. None: nowhere."""
        match condition:
            case CounterIs(counter):
                declared = self.spec.counters.get(counter)
                return declared.scope if declared is not None and self._has(declared) else None
            case ModeIs(mode):
                return self.spec.modes[mode].scope if mode in self.spec.modes else None
        return scope

    def _holds(self, condition: Condition, scope: Scope, slot: SlotBooks) -> bool:
        books = self._books(scope, slot)
        match condition:
            case After(event, than):
                return books.later(event, than)
            case AtLeast(event, n):
                return books.events.count(event) >= n
            case CounterIs(counter, equals) if self.spec.counters[counter].sums is not None:
                return self._summed(self.spec.counters[counter]) == equals
            case CounterIs(counter, equals):
                return books.counters.get(counter, 0) == equals
            case ModeIs(mode, value):
                return books.modes.get(mode, False) == value

    def _rules(self, at: str, slot: SlotBooks) -> Iterator[tuple[Rule, Scope]]:
        """The rules that guard `at`; for what belongs to no slot, only those that are judged over the runtime."""
        for rule in self.spec.rules:
            scope = self._scope(rule.condition, rule.scope)
            asked = slot is not self.nobody or scope == "runtime"
            if asked and at in rule.guards and self._has(rule) and scope is not None:
                yield rule, scope

    def _ask(self, at: str, slot: SlotBooks) -> None:
        for rule, scope in self._rules(at, slot):
            if not self._holds(rule.condition, scope, slot):
                raise Wrong(f"RuleViolation {rule.id}", at=at)

    def _ask_floors(self, step: Step, slot: SlotBooks, scopes: tuple[Scope, ...] = SCOPES) -> None:
        for name, counter, by in self._moves(step, scopes):
            value = self._books(counter.scope, slot).counters.get(name, 0)
            if counter.floor is not None and by < 0 and value + by < counter.floor:
                raise Wrong(UNDERFLOW, at=step.name)

    def _moves(self, step: Step, scopes: tuple[Scope, ...]) -> list[tuple[str, Counter, int]]:
        moves = [(name, self.spec.counters[name], by) for name, by in step.count.items()]
        return [(name, counter, by) for name, counter, by in moves if self._has(counter) and counter.scope in scopes]

    # -- what happens --

    def _happen(self, step: Step, event: str, slot: SlotBooks, scopes: tuple[Scope, ...] = SCOPES) -> None:
        """In all of `scopes`, or in none where a counter would fall below its floor."""
        self._ask_floors(step, slot, scopes)
        for scope in scopes:
            self._books(scope, slot).events.append(event)
        for name, counter, by in self._moves(step, scopes):
            self._books(counter.scope, slot).counters[name] = by + self._books(counter.scope, slot).counters.get(
                name, 0
            )
        for name, value in step.set.items():
            counter = self.spec.counters[name]
            if self._has(counter) and counter.scope in scopes:
                self._books(counter.scope, slot).counters[name] = value
        for mode, on in step.mode.items():
            if self.spec.modes[mode].scope in scopes:
                self._books(self.spec.modes[mode].scope, slot).modes[mode] = on

    def _do(self, step: Step, slot: SlotBooks, job: Job) -> None:
        event = job.perform(step)
        self._happen(step, event, slot)
        if slot is not self.nobody:
            slot.history.append(event)

    def _do_all(self, steps: Iterable[Step], slot: SlotBooks, job: Job, wrongs: list[Wrong]) -> None:
        """Steps that must all run: what goes wrong is kept for later."""
        for step in steps:
            try:
                self._do(step, slot, job)
            except Wrong as wrong:
                wrongs.append(wrong)

    def _rounds(self, transition: Transition, slot: SlotBooks) -> Iterator[None]:
        """`repeat` rounds, or fewer once all counts that slots share are reached."""
        shared = [
            (rule, scope)
            for rule, scope in self._rules(transition.on, slot)
            if isinstance(rule.condition, AtLeast) and scope != "slot"
        ]
        for _ in range(transition.repeat):
            if shared and all(self._holds(rule.condition, scope, slot) for rule, scope in shared):
                return
            yield

    # -- what would happen --

    def foresee(self, name: str, trigger: str) -> Verdict:
        """What firing `trigger` would come to if every step did its work; `performed`: the steps up to a refusal."""
        if trigger not in self.legal(name):
            return Verdict("IllegalTransition", at=trigger)
        world, taken = self._imagined(name), []
        slot, transition = world.slots[name], self._transition(trigger)
        if not self._refusable(transition):
            return Verdict(DONE, tuple(step.name for step in self._steps(transition.cleanup + transition.steps)))
        try:
            for step, whose, asked in world._course(transition, slot):
                if asked:
                    world._ask(step.name, whose)
                world._happen(step, step.event[0], whose)
                taken.append(step.name)
            world._ask(trigger, slot)
        except Wrong as wrong:
            return Verdict(wrong.label, tuple(taken), wrong.at)
        return Verdict(DONE, tuple(taken))

    def _course(self, transition: Transition, slot: SlotBooks) -> Iterator[tuple[Step, SlotBooks, bool]]:
        """The steps of `transition` one by one, whose they are, and whether rules guard them."""
        if self._opens(transition):
            yield from ((step, self.nobody, True) for step in self._steps(self.spec.session.enter))
        for _ in self._rounds(transition, slot):
            yield from ((step, slot, True) for step in self._steps(transition.steps))
        yield from ((step, slot, False) for step in self._steps(transition.cleanup))

    def _imagined(self, name: str | None = None) -> Oracle:
        """This world with nothing but one slot in it."""
        nobody = attrs.evolve(self.nobody, variant=self.nobody.variant.copy(), own=self.nobody.own.copy())
        world = Oracle(self.spec, self.present, self.runtime.copy(), nobody=nobody, session_open=self.session_open)
        counted = {own for slot in self.slots.values() for own in slot.own.counters}
        others = [slot for other, slot in self.slots.items() if other != name]
        world.elsewhere = {own: sum(slot.own.counters.get(own, 0) for slot in others) for own in counted}
        if name is not None:
            slot = self.slots[name]
            world.slots[name] = attrs.evolve(slot, variant=slot.variant.copy(), own=slot.own.copy(), history=[])
        return world

    # -- attempts --

    def fire(self, name: str, trigger: str, job: Job, cause: str = "") -> Verdict:
        """Fire `trigger` of a slot."""
        foreseen = self.foresee(name, trigger)
        if foreseen.label != DONE:
            return Verdict(foreseen.label, at=foreseen.at)
        slot, transition = self.slots[name], self._transition(trigger)
        return self._attempt(job, lambda: self._fire(slot, transition, job, cause))

    def _attempt(self, job: Job, deed: Any) -> Verdict:
        try:
            deed()
        except Wrong as wrong:
            return Verdict(wrong.label, tuple(job.performed), wrong.at)
        return Verdict(DONE, tuple(job.performed))

    def _fire(self, slot: SlotBooks, transition: Transition, job: Job, cause: str) -> None:
        if not self._refusable(transition):
            self._conclude(slot, transition, job, cause)
        elif not self._opens(transition):
            self._advance(slot, transition, job, cause)
        else:
            self._open(job)
            wrongs: list[Wrong] = []
            try:
                self._advance(slot, transition, job, cause)
            except Wrong as wrong:
                wrongs.append(wrong)
            self._leave(job, wrongs)

    def _conclude(self, slot: SlotBooks, transition: Transition, job: Job, cause: str) -> None:
        wrongs: list[Wrong] = []
        self._do_all(self._steps(transition.cleanup + transition.steps), slot, job, wrongs)
        self._enter(slot, transition, cause)
        _raise_gravest(wrongs)

    def _advance(self, slot: SlotBooks, transition: Transition, job: Job, cause: str) -> None:
        tried: list[str] = []
        try:
            for _ in self._rounds(transition, slot):
                for step in self._steps(transition.steps):
                    tried.append(step.name)
                    self._ask(step.name, slot)
                    self._ask_floors(step, slot)
                    self._do(step, slot, job)
            for step in self._steps(transition.cleanup):
                tried.append(step.name)
                self._do(step, slot, job)
            tried.append("")
            self._ask(transition.on, slot)
        except Wrong as wrong:
            self._fail(slot, transition, job, tried, wrong)
        else:
            self._enter(slot, transition, cause)

    def _fail(self, slot: SlotBooks, transition: Transition, job: Job, tried: list[str], wrong: Wrong) -> None:
        """Clean up, then take the way of failures if there is one; a step that was tried is not taken again."""
        slot.failure = (transition.on, slot.state, tried[-1])
        wrongs = [wrong]
        self._do_all(self._steps(transition.cleanup), slot, job, wrongs)
        failing = self._transition(self.spec.lifecycle.on_failure)
        if slot.state in failing.source:
            untried = tuple(name for name in failing.steps if name not in tried)
            self._do_all(self._steps(failing.cleanup + untried), slot, job, wrongs)
            self._enter(slot, failing, wrong.kind)
        _raise_gravest(wrongs)

    def _enter(self, slot: SlotBooks, transition: Transition, cause: str) -> None:
        slot.state = transition.to
        if transition.on == self.spec.lifecycle.on_reset:
            slot.own, slot.life, slot.cause, slot.failure = Books(), slot.life + 1, "", None
        slot.cause = cause or slot.cause
        slot.history.append(slot.state)

    # -- setup, sessions and served forwards --

    def set_up(self, job: Job) -> Verdict:
        """Build the runtime: the setup's steps, once."""
        return self._attempt(job, lambda: self._set_up(job))

    def open_session(self, job: Job) -> Verdict:
        """Open a session."""
        return Verdict("CallerError") if self.session_open else self._attempt(job, lambda: self._open(job))

    def close_session(self, job: Job) -> Verdict:
        """Close it."""
        return self._attempt(job, lambda: self._leave(job, [])) if self.session_open else Verdict("CallerError")

    def _set_up(self, job: Job) -> None:
        for step in self._steps(self.spec.setup.steps):
            self._ask(step.name, self.nobody)
            self._ask_floors(step, self.nobody)
            self._do(step, self.nobody, job)

    def _open(self, job: Job) -> None:
        world = self._imagined()
        for step in self._steps(self.spec.session.enter):
            world._ask(step.name, world.nobody)
            world._happen(step, step.event[0], world.nobody)
        self.session_open = True
        wrongs: list[Wrong] = []
        try:
            for step in self._steps(self.spec.session.enter):
                self._ask(step.name, self.nobody)
                self._ask_floors(step, self.nobody)
                self._do(step, self.nobody, job)
        except Wrong as wrong:
            wrongs.append(wrong)
            self._leave(job, wrongs)

    def _leave(self, job: Job, wrongs: list[Wrong]) -> None:
        self._do_all(self._steps(self.spec.session.leave), self.nobody, job, wrongs)
        self.session_open = False
        _raise_gravest(wrongs)

    def serve(self, kind: str) -> Verdict:
        """Serve a forward: rules of the runtime may refuse it, and only the runtime's books see it."""
        steps, world = self._steps(getattr(self.spec.serving, kind)), self._imagined()
        try:
            for step in steps:
                world._serve(step)
        except Wrong as wrong:
            return Verdict(wrong.label, at=wrong.at)
        for step in steps:
            self._serve(step)
        return Verdict(DONE)

    def _serve(self, step: Step) -> None:
        self._ask(step.name, self.nobody)
        self._happen(step, step.event[0], self.nobody, ("runtime",))


def _raise_gravest(wrongs: list[Wrong]) -> None:
    """The first that went wrong; an interrupt before any error."""
    if wrongs:
        raise next((wrong for wrong in wrongs if wrong.grave), wrongs[0])
