"""The same question asked in another way: a slot as dicts and lists, walked move by move, as slow as it is plain.

It shares no code with `tsgraph.proving` and reads the machine's rules from its documents: what a slot may do, what is
asked, and what runs when something fails. It walks by depth and stops at the first depth that is too wide; what it has
found until then is complete.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

import attrs

from tsgraph.spec.model import After, AtLeast, CounterIs, ModeIs, Spec

LEDGERS = ("slot", "variant", "runtime")
FAR = 12
State = dict[str, Any]


class Underflow(Exception):
    """A counter would fall below its floor."""


@attrs.define
class Walk:
    """`broken`: by property, the moves of the shortest way to break it. `depth`: how far the walk is complete."""

    spec: Spec
    broken: dict[str, int] = attrs.field(factory=dict)
    depth: int = 0
    false: set[str] = attrs.field(factory=set)

    def run(self, widest: int) -> Walk:
        level = {_key(state): state for state in [self.unborn()]}
        seen = set(level)
        while level and len(seen) <= widest:
            following: dict[str, State] = {}
            for state in level.values():
                for after, false in self.moves(state):
                    for name in false:
                        self.broken.setdefault(name, self.depth + 1)
                    key = _key(after)
                    if key not in seen and not self.too_far(after):
                        seen.add(key)
                        following[key] = after
            self.depth += 1
            level = following
        if not level:
            self.depth = 1_000_000
        return self

    def unborn(self) -> State:
        return {
            "at": None,
            "doing": None,
            "session": "none",
            "tried": [],
            **{ledger: self.blank() for ledger in LEDGERS},
        }

    def blank(self) -> State:
        return {
            "order": [],
            "times": {},
            "counters": dict.fromkeys(self.spec.counters, 0),
            "modes": dict.fromkeys(self.spec.modes, False),
        }

    def too_far(self, state: State) -> bool:
        return any(abs(value) > FAR for ledger in LEDGERS for value in state[ledger]["counters"].values())

    # -- what is asked --

    def true(self, condition: Any, ledger: str, state: State) -> Any:
        match condition:
            case After(event, than):
                order = state[ledger]["order"]
                if event not in order:
                    return False
                return than not in order or order.index(event) > order.index(than)
            case AtLeast(event, n):
                return state[ledger]["times"].get(event, 0) >= n
            case CounterIs(counter, equals):
                own = self.spec.counters[counter].sums
                mine = 0 if own is None else state["slot"]["counters"][own]
                return state[self.spec.counters[counter].scope]["counters"][counter] + mine == equals
            case ModeIs(mode, value):
                return state[self.spec.modes[mode].scope]["modes"][mode] == value

    def ledger_of(self, asker: Any) -> Any:
        match asker.condition:
            case CounterIs(counter):
                return self.spec.counters[counter].scope
            case ModeIs(mode):
                return self.spec.modes[mode].scope
        return asker.scope

    def allowed(self, at: str, state: State, visible: tuple[str, ...] = LEDGERS) -> bool:
        rules = [rule for rule in self.spec.rules if at in rule.guards and self.ledger_of(rule) in visible]
        return all(self.true(rule.condition, rule.scope, state) for rule in rules)

    def judge(self, moment: str, state: State, when: str) -> list[str]:
        return [
            prop.id
            for prop in self.spec.properties
            if moment in prop.when
            for clause in getattr(prop, when)
            if not self.true(clause.condition, clause.scope, state)
        ]

    # -- what happens --

    def happen(self, name: str, event: str, state: State, ledgers: tuple[str, ...] = LEDGERS) -> State:
        """The state after a step. Raises Underflow and leaves everything as it was."""
        after = copy.deepcopy(state)
        self.count(self.spec.steps[name].count, after, ledgers)
        for table, moved in (("counters", self.spec.steps[name].set), ("modes", self.spec.steps[name].mode)):
            for what, value in moved.items():
                ledger = getattr(self.spec, table)[what].scope
                if ledger in ledgers:
                    after[ledger][table][what] = value
        for ledger in ledgers:
            self.append(after[ledger], event, ledger)
        return after

    def count(self, deltas: Any, after: State, ledgers: tuple[str, ...]) -> None:
        for counter, delta in deltas.items():
            declared = self.spec.counters[counter]
            if declared.scope in ledgers:
                value = after[declared.scope]["counters"][counter] + delta
                if delta < 0 and declared.floor is not None and value < declared.floor:
                    raise Underflow
                after[declared.scope]["counters"][counter] = value

    def append(self, ledger: State, event: str, name: str) -> None:
        """What nobody asks about is not kept, or the walk would be too wide."""
        asked = [asker for asker in (*self.spec.rules, *self.clauses()) if self.ledger_of(asker) == name]
        if any(isinstance(a.condition, After) and event in (a.condition.event, a.condition.than) for a in asked):
            ledger["order"] = [*(other for other in ledger["order"] if other != event), event]
        most = max(
            [a.condition.n for a in asked if isinstance(a.condition, AtLeast) and a.condition.event == event] or [0]
        )
        if most > 0:
            ledger["times"][event] = min(most, ledger["times"].get(event, 0) + 1)

    def clauses(self) -> Iterator[Any]:
        return (clause for prop in self.spec.properties for clause in (*prop.before, *prop.holds))

    def do(self, name: str, state: State, *, own: bool, asked: bool) -> list[tuple[State, list[str]]]:
        """A step done, once for each outcome; nothing if it is refused. Own or, else, of a session."""
        if asked and not self.allowed(name, state, LEDGERS if own else ("runtime",)):
            return []
        results = []
        for event in self.spec.steps[name].event:
            try:
                after = self.happen(name, event, state, LEDGERS if own else ("runtime",))
            except Underflow:
                return []
            if own:
                after["tried"] = sorted({*after["tried"], name})
            results.append((after, self.judge(event, state, "before") + self.judge(event, after, "holds")))
        return results

    def must(self, name: str, state: State, *, own: bool = True) -> list[tuple[State, list[str]]]:
        """A step that runs whatever the others do: where a floor forbids it, nothing happens."""
        return self.do(name, state, own=own, asked=False) or [(state, [])]

    def all_of(self, names: Any, branches: Any, work: Any) -> Any:
        for name in names:
            branches = [(now, false + more) for state, false in branches for now, more in work(name, state)]
        return branches

    def enter(self, to: str, trigger: str, state: State) -> tuple[State, list[str]]:
        after = {**copy.deepcopy(state), "at": to}
        if trigger == self.spec.lifecycle.on_reset:
            after["slot"] = self.blank()
        return after, self.judge(to, state, "before") + self.judge(to, after, "holds")

    # -- moves --

    def moves(self, state: State) -> Iterator[tuple[State, list[str]]]:
        if state["doing"]:
            yield from self.inside(state)
        else:
            yield from self.around(state)
            yield from self.fired(state)

    def fired(self, state: State) -> Iterator[tuple[State, list[str]]]:
        law = self.spec.lifecycle
        if state["at"] is None:
            yield self.enter(law.initial, "", state)
        for transition in law.transitions:
            if state["at"] not in transition.source:
                continue
            if transition.on == law.on_failure or (transition.cleanup and not transition.steps):
                branches = self.all_of(transition.cleanup, [(state, [])], self.must)
                branches = self.all_of(transition.steps, branches, self.maybe)
                yield from self.entering(transition, branches)
            elif not transition.steps:
                if self.allowed(transition.on, state):
                    yield from self.entering(transition, [(state, [])])
            elif self.simulated(transition, state):
                own = "own" if state["session"] == "none" else state["session"]
                yield {**state, "doing": transition.on, "session": own, "tried": []}, []

    def entering(self, transition: Any, branches: Any) -> Iterator[tuple[State, list[str]]]:
        for now, false in branches:
            after, more = self.enter(transition.to, transition.on, now)
            yield {**after, "tried": []}, false + more

    def maybe(self, name: str, state: State) -> list[tuple[State, list[str]]]:
        """A failure's step: done, or raising."""
        return [(state, []), *self.do(name, state, own=True, asked=False)]

    def simulated(self, transition: Any, state: State) -> bool:
        """The declared steps in order, each with its first outcome."""
        enter = self.spec.session.enter if state["session"] == "none" else ()
        now = self.in_order(enter, state, own=False, asked=True)
        shared = [
            rule
            for rule in self.spec.rules
            if transition.on in rule.guards and isinstance(rule.condition, AtLeast) and rule.scope != "slot"
        ]
        for _ in range(transition.repeat):
            if now is None or (shared and all(self.true(rule.condition, rule.scope, now) for rule in shared)):
                break
            now = self.in_order(transition.steps, now, own=True, asked=True)
        now = now and self.in_order(transition.cleanup, now, own=True, asked=False)
        return now is not None and self.allowed(transition.on, now)

    def in_order(self, names: Any, state: State, *, own: bool, asked: bool) -> State | None:
        """Each step with its first outcome; None if one is refused."""
        for name in names:
            results = self.do(name, state, own=own, asked=asked)
            if not results:
                return None
            state = results[0][0]
        return state

    def inside(self, state: State) -> Iterator[tuple[State, list[str]]]:
        transition = self.spec.lifecycle.transition(state["doing"])
        for name in transition.steps:
            yield from self.do(name, state, own=True, asked=True)
        if state["session"] == "own":
            for name in self.spec.session.enter:
                yield from self.do(name, state, own=False, asked=True)
        yield from self.others(state)
        for name in transition.steps:
            yield from self.failed(transition, {**state, "tried": sorted({*state["tried"], name})}, [])
        yield from self.ended(transition, state)

    def ended(self, transition: Any, state: State) -> Iterator[tuple[State, list[str]]]:
        branches: Any = [(state, [])]
        for name in transition.cleanup:
            following = []
            for now, false in branches:
                results = self.do(name, now, own=True, asked=False)
                following += [(after, false + more) for after, more in results]
                if not results:
                    yield from self.failed(transition, {**now, "tried": sorted({*now["tried"], name})}, false)
            branches = following
        for now, false in branches:
            if self.allowed(transition.on, now):
                after, more = self.enter(transition.to, transition.on, now)
                yield from self.left(after, false + more)
            else:
                yield from self.failed(transition, now, false)

    def failed(self, transition: Any, state: State, false: list[str]) -> Iterator[tuple[State, list[str]]]:
        law = self.spec.lifecycle
        branches = self.all_of(transition.cleanup, [(state, false)], self.must)
        failure = law.transition(law.on_failure)
        if state["at"] in failure.source:
            tried = set(state["tried"])
            branches = self.all_of(failure.cleanup, branches, self.must)
            for name in failure.steps:
                if name not in tried:
                    branches = self.all_of([name], branches, self.maybe)
            branches = [
                (after, before + more)
                for now, before in branches
                for after, more in [self.enter(failure.to, failure.on, now)]
            ]
        for now, before in branches:
            yield from self.left(now, before)

    def left(self, state: State, false: list[str]) -> Iterator[tuple[State, list[str]]]:
        branches: Any = [({**state, "doing": None, "tried": []}, false)]
        if state["session"] == "own":
            branches = self.all_of(self.spec.session.leave, branches, lambda n, s: self.must(n, s, own=False))
            branches = [({**now, "session": "none"}, before) for now, before in branches]
        yield from branches

    def around(self, state: State) -> Iterator[tuple[State, list[str]]]:
        if state["at"] is None:
            for name in self.spec.setup.steps:
                yield from self.do(name, state, own=False, asked=True)
        if state["session"] == "outside":
            for name in self.spec.session.enter:
                yield from self.do(name, state, own=False, asked=True)
            branches = self.all_of(self.spec.session.leave, [(state, [])], lambda n, s: self.must(n, s, own=False))
            yield from (({**now, "session": "none"}, false) for now, false in branches)
        elif self.opens(state):
            yield {**state, "session": "outside"}, []
        for kind in ("push", "replay", "eager", "abandon"):
            yield from self.served(kind, state)
        yield from self.others(state)

    def opens(self, state: State) -> bool:
        return self.in_order(self.spec.session.enter, state, own=False, asked=True) is not None

    def served(self, kind: str, state: State) -> Iterator[tuple[State, list[str]]]:
        now: State = state
        false: list[str] = []
        for name in getattr(self.spec.serving, kind):
            results = self.do(name, now, own=False, asked=True)
            if not results:
                return
            now, more = results[0]
            false = false + more
        mine = kind != "replay" or state["at"] in self.spec.lifecycle.replays_in
        yield now, false if mine else []

    def others(self, state: State) -> Iterator[tuple[State, list[str]]]:
        """Any step that slots take, by a slot of the variant or another: asked the rules that read what is shared."""
        law = self.spec.lifecycle
        asked: set[str] = set()
        forced: set[str] = set()
        for transition in law.transitions:
            (forced if transition.on == law.on_failure else asked).update(transition.steps)
            forced.update(transition.cleanup)
        for name, shared in itertools.product(sorted(asked | forced), (("variant", "runtime"), ("runtime",))):
            if name in forced or self.allowed(name, state, shared):
                for event, had in itertools.product(self.spec.steps[name].event, self.held(name, state)):
                    try:
                        yield self.summed(name, self.happen(name, event, state, shared), had), []
                    except Underflow:
                        continue
        for total in (name for name, counter in self.spec.counters.items() if counter.sums):
            for less in range(state["runtime"]["counters"][total]):
                yield self.moved(total, state, -less - 1), []

    # A sum is kept as what the other slots have: this one's own share is added when it is asked.

    def held(self, name: str, state: State) -> list[dict[str, int]]:
        """How much another slot may have of what its step sets, by the name of the sum."""
        sums = [t for t, c in self.spec.counters.items() if c.sums and c.sums in self.spec.steps[name].set]
        ranges = (range(state["runtime"]["counters"][total] + 1) for total in sums)
        return [dict(zip(sums, numbers, strict=True)) for numbers in itertools.product(*ranges)]

    def summed(self, name: str, after: State, had: dict[str, int]) -> State:
        """The sums after a step of another slot. Raises Underflow where nobody else has so much."""
        step = self.spec.steps[name]
        for total, counter in self.spec.counters.items():
            if counter.sums:
                by = step.set[counter.sums] - had[total] if total in had else step.count.get(counter.sums, 0)
                after = self.moved(total, after, by)
        return after

    @staticmethod
    def moved(total: str, state: State, by: int) -> State:
        after = copy.deepcopy(state)
        after["runtime"]["counters"][total] += by
        if after["runtime"]["counters"][total] < 0:
            raise Underflow
        return after


def _key(state: State) -> str:
    return json.dumps(state, sort_keys=True)
