"""A way through a world, told in words, and done again on the machine's own monitors to see that it is one.

A counter at the bound of its bits stands for several values, so that a way on bits may be none. Here every act is done
on `Monitors`, as a slot does it, and asked there what it asked of the bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from tsgraph.lifecycle.law import Law
from tsgraph.lifecycle.monitors import Monitors, Scopes, reach
from tsgraph.proving.acts import FEEDS, OTHERS, Act, Claim, Kind, Whose
from tsgraph.proving.bits import SCOPES, Bits
from tsgraph.proving.explore import Break, Exploration
from tsgraph.proving.gate import taken
from tsgraph.proving.values import Counterexample
from tsgraph.proving.world import BORN, Move, World
from tsgraph.spec.model import After, AtLeast, Clause, Condition, CounterIs, ModeIs, Scope, Spec

WHOSE: Mapping[Whose, str] = {
    "own": "",
    "setup": "setup: ",
    "session": "session: ",
    "serving": "",
    "sibling": "another slot of the variant: ",
    "other": "another slot: ",
}
TOLD: Mapping[Kind, str] = {
    "raise": "  {} raises",
    "refuse": "  the rules refuse `{}` after its steps",
    "overflow": "  {} would take a counter below its floor, and is not done",
    "forget": "another slot: `{}`, with what it had still counted",
}


class Impossible(Exception):
    """A way on bits that is none on monitors."""


@attrs.define
class Retelling:
    """Does moves again, and tells them. `newest`: the line at which each event last happened, by scope.

    `telling`: the steps whose absence explains something.
    """

    world: World
    law: Law
    scopes: Scopes
    telling: frozenset[str] = frozenset()
    lines: list[str] = attrs.field(factory=list)
    newest: dict[tuple[Scope, str], int] = attrs.field(factory=dict)
    switched: dict[str, int] = attrs.field(factory=dict)
    tried: set[str] = attrs.field(factory=set)

    @classmethod
    def of(cls, world: World, telling: frozenset[str] = frozenset()) -> Retelling:
        """The beginning, in which nothing has happened yet."""
        law = Law.of(attrs.evolve(world.spec, rules=tuple(world.acts.all_in_force)))
        return cls(world, law, Scopes(*(law.layout.monitors() for _ in SCOPES)), telling)

    def make(self, move: Move, until: Claim | None = None) -> tuple[Claim, ...]:
        """Make `move`, up to the moment of `until`; returns what is false there. Raises: Impossible."""
        if self._refused(move):
            raise Impossible
        self._begin(move)
        for act in move.acts:
            if false := self._act(act, move, until):
                return false
        return ()

    def _refused(self, move: Move) -> bool:
        """Whether the machine would not begin it."""
        if move.gate is None:
            return False
        scopes = self.scopes.copy()
        if not taken(move.gate.opening, frozenset((self.encoded(),))):
            return True
        for act in move.gate.opening:
            scopes.runtime.apply(self.law.effects[act.name, act.event].runtime)
        transition = self.world.spec.lifecycle.transition
        return move.sort == "begin" and self.law.simulate(transition(move.name), scopes, []) is not None

    # -- acts --

    def _act(self, act: Act, move: Move, until: Claim | None) -> tuple[Claim, ...]:
        """Do one act; returns what is false at it, if it is the moment of `until`."""
        if not act.happens(self.encoded()):
            raise Impossible
        claims = tuple(claim for claim in act.claims if until and claim.property == until.property)
        claims = claims if until in claims else ()
        self._tell(act, move)
        if false := self._false(claim for claim in claims if claim.before):
            return false
        self._change(act)
        return self._false(claim for claim in claims if not claim.before)

    def _false(self, claims: Iterable[Claim]) -> tuple[Claim, ...]:
        now = self.encoded()
        return tuple(claim for claim in claims if not claim.test.holds(now))

    def _change(self, act: Act) -> None:
        if act.tries:
            self.tried.add(act.name)
        if act.kind == "step":
            self._feed(act)
        elif act.kind == "state" and act.event == self.world.spec.lifecycle.on_reset:
            self.scopes = self.scopes.begun_again(self.law.layout)
            self.newest = {key: line for key, line in self.newest.items() if key[0] != "slot"}
        elif act.kind == "forget":
            self._give(act, {})

    def _feed(self, act: Act) -> None:
        effects, spec = self.law.effects[act.name, act.event], self.world.spec
        if act.whose == "own":
            self.scopes.adjust(effects.sums)
        self._give(act, spec.steps[act.name].set)
        for scope in FEEDS[act.whose]:
            getattr(self.scopes, scope).apply(getattr(effects, scope))
            self.newest[scope, act.event] = len(self.lines)
        for mode in spec.steps[act.name].mode:
            if spec.modes[mode].scope in FEEDS[act.whose]:
                self.switched[mode] = len(self.lines)

    def _give(self, act: Act, to: Mapping[str, int]) -> None:
        """Another slot's counter, of which a sum is kept, goes from what it had to what its step sets it to."""
        counters, numbers = self.scopes.runtime.counters, self.law.layout.counters
        for name, had in act.given:
            counters[numbers[name]] += to.get(self.world.spec.counters[name].sums or "", 0) - had

    def encoded(self) -> int:
        """What the monitors are as bits."""
        return encoded(self.world.bits, self.law, self.scopes, self.tried)

    # -- words --

    def _begin(self, move: Move) -> None:
        if move.sort == "begin":
            own = ", with a session of its own" if move.target.session == "own" else ""
            self._line(f"`{move.name}` begins in {move.target.state}{own}")
            self.tried.clear()
        told = {"open": "a session opens", "close": "the session closes", "serve": f"a forward is served: {move.name}"}
        if move.sort in told:
            self._line(told[move.sort])

    def _tell(self, act: Act, move: Move) -> None:
        if act.kind == "state":
            self._line(self._state_told(act, move))
        elif act.kind == "step":
            self._line(f"{'' if act.whose in OTHERS else '  '}{WHOSE[act.whose]}{act.name}: {act.event}")
        else:
            self._line(TOLD[act.kind].format(act.name or "a step"))

    def _state_told(self, act: Act, move: Move) -> str:
        if act.event == BORN:
            return f"the slot begins: {act.name}"
        steps = self.world.spec.lifecycle.transition(move.name).steps if move.sort == "end" else ()
        skipped = [name for name in dict.fromkeys(steps) if name in self.telling and name not in self.tried]
        without = f", without {', '.join(skipped)}" if skipped else ""
        return f"`{act.event}` → {act.name}{without}"

    def _line(self, words: str) -> None:
        self.lines.append(f"{len(self.lines) + 1:>3}  {words}")

    # -- facts --

    def facts(self, clause: Clause) -> Iterator[str]:
        """What makes `clause` false here."""
        scope = reach(clause.condition, clause.scope, self.world.spec)
        match clause.condition:
            case After(event, than):
                yield from (f"the newest {name}: {self._when(scope, name)}" for name in (event, than))
            case AtLeast(event):
                yield f"{event} has happened {self._monitors(scope).count[self.law.layout.events[event]]} times"
            case CounterIs(counter):
                yield f"counter {counter} is {self._monitors(scope).counters[self.law.layout.counters[counter]]}"
            case ModeIs(mode):
                line = f"switched at line {self.switched[mode]}" if mode in self.switched else "never switched"
                yield f"mode {mode}: {line}"

    def _monitors(self, scope: Scope) -> Monitors:
        monitors: Monitors = getattr(self.scopes, scope)
        return monitors

    def _when(self, scope: Scope, event: str) -> str:
        line = self.newest.get((scope, event))
        return "never" if line is None else f"line {line}"


def encoded(bits: Bits, law: Law, scopes: Scopes, tried: set[str]) -> int:
    """What `scopes` are as bits."""
    monitors: dict[Scope, Monitors] = dict(zip(SCOPES, scopes, strict=True))
    numbers, result = law.layout, 0
    for (scope, event, than), field in bits.newer.items():
        newest = monitors[scope].newest
        result |= field.mask if newest[numbers.events[event]] > newest[numbers.events[than]] else 0
    for (scope, event), field in bits.counts.items():
        result |= field.ones(min(monitors[scope].count[numbers.events[event]], field.width))
    for name, gauge in bits.gauges.items():
        counter = bits.spec.counters[name]
        value = monitors[counter.scope].counters[numbers.counters[name]]
        value -= monitors["slot"].counters[numbers.counters[counter.sums]] if counter.sums else 0
        result |= gauge.put(min(max(value, gauge.low), gauge.high))
    for name, field in bits.modes.items():
        result |= field.mask if monitors[bits.spec.modes[name].scope].modes[numbers.modes[name]] else 0
    return result | sum(mask for name, mask in bits.tried.items() if name in tried)


def counterexample(found: Exploration, broken: Break, present: tuple[str, ...]) -> Counterexample:
    """The way to `broken`, told. Raises: Impossible if it is none."""
    prop = next(prop for prop in found.world.spec.properties if prop.id == broken.claim.property)
    retelling = Retelling.of(found.world, frozenset(_telling(broken.claim.clause.condition, found.world.spec)))
    way = found.way(broken.start)
    for move in way:
        retelling.make(move)
    false = retelling.make(broken.move, broken.claim)
    if not false:
        raise Impossible
    return Counterexample(
        property=prop.id,
        says=prop.says,
        present=present,
        moves=len(way) + 1,
        trace=tuple(retelling.lines),
        broken=tuple(map(_told, false)),
        facts=tuple(dict.fromkeys(fact for claim in false for fact in retelling.facts(claim.clause))),
    )


def told(found: Exploration, configuration: int) -> tuple[str, ...]:
    """The way to a configuration, in words, as far as it is one."""
    retelling = Retelling.of(found.world)
    try:
        for move in found.way(configuration):
            retelling.make(move)
    except Impossible:
        retelling.lines.append("(and so on, with a counter far from zero)")
    return tuple(retelling.lines)


def _told(claim: Claim) -> str:
    scope = "" if claim.clause.scope == "slot" else f" (in the {claim.clause.scope}'s ledger)"
    return f"just {'before' if claim.before else 'after'} {claim.moment}, {claim.clause.condition}{scope}"


def _telling(condition: Condition, spec: Spec) -> Iterator[str]:
    """The steps that could have made `condition` true."""
    for step in spec.steps.values():
        match condition:
            case After(event) | AtLeast(event) if event in step.event:
                yield step.name
            case CounterIs(counter) if counter in {*step.count, *step.set}:
                yield step.name
            case ModeIs(mode, value) if step.mode.get(mode) is value:
                yield step.name
