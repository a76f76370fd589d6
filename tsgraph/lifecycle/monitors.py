"""What the rules of one scope remember, as integers, and the conditions that read it.

Theory of operation. Every step is compiled, once, to one `Effect` a scope: an event number and integer changes. Each of
the three scopes (slot, variant, runtime) has its own `Monitors`, and every event is fed to all three; a counter or mode
moves only in the scope that the spec declares for it. A condition is compiled to a closure over numbers. So feeding a
served forward to the runtime scope is `monitors.apply(effect)`: well under a microsecond, and no name is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import attrs

from tsgraph.errors import RuleViolation
from tsgraph.spec.model import After, AtLeast, Condition, CounterIs, ModeIs, Scope, Spec, Step

FLOOR_RULE = "R24"
"""The rule that a counter's declared floor stands for: an underflow is an error when it happens."""

NEVER = -1
_SCOPES: tuple[Scope, ...] = ("slot", "variant", "runtime")


class Floor(NamedTuple):
    """A falling counter that must not fall below `least`."""

    counter: int
    delta: int
    least: int
    name: str

    def violation(self, value: int) -> RuleViolation:
        """The error for a fall from `value`."""
        what = f"counter {self.name} is {value}: {self.delta} more would take it below its floor {self.least}"
        return RuleViolation(what, rule=FLOOR_RULE, hint="count it up first", counter=self.name, value=value)


@attrs.frozen
class Effect:
    """What one step, with one outcome, does to the monitors of one scope."""

    event: int
    deltas: tuple[tuple[int, int], ...] = ()
    sets: tuple[tuple[int, int], ...] = ()
    modes: tuple[tuple[int, bool], ...] = ()
    floors: tuple[Floor, ...] = ()


@attrs.define
class Monitors:
    """The state of all rules in one scope.

    `newest`: for each event, the clock when it last happened (-1: never). `count`: how often it has. `counters`,
    `modes`: their values. `clock`: how many events there were.
    """

    newest: list[int]
    count: list[int]
    counters: list[int]
    modes: list[bool]
    clock: int = 0

    def check(self, effect: Effect) -> None:
        """Raises: RuleViolation (R24) if `effect` would take a counter below its floor."""
        for floor in effect.floors:
            if self.counters[floor[0]] + floor[1] < floor[2]:
                raise floor.violation(self.counters[floor[0]])

    def apply(self, effect: Effect) -> None:
        """Let `effect` happen. Raises: RuleViolation (R24), before any change, for a counter below its floor."""
        if effect.floors:
            self.check(effect)
        event = effect.event
        self.newest[event] = self.clock
        self.clock += 1
        self.count[event] += 1
        for counter, delta in effect.deltas:
            self.counters[counter] += delta
        for counter, value in effect.sets:
            self.counters[counter] = value
        for mode, on in effect.modes:
            self.modes[mode] = on

    def copy(self) -> Monitors:
        """The same state, to try something on."""
        return Monitors(self.newest[:], self.count[:], self.counters[:], self.modes[:], self.clock)


class Sum(NamedTuple):
    """A wider scope's counter that is the sum of a counter of the slots. `value`: what a step sets that one to."""

    scope: int
    total: int
    counter: int
    value: int = 0


class Effects(NamedTuple):
    """One step's effect on each scope. `sums`: the slot's counters that it sets, and of which sums are kept."""

    slot: Effect
    variant: Effect
    runtime: Effect
    sums: tuple[Sum, ...] = ()


class Scopes(NamedTuple):
    """The monitors that one slot's rules read: its own, its variant's, and the runtime's."""

    slot: Monitors
    variant: Monitors
    runtime: Monitors

    def check(self, effects: Effects) -> None:
        """Raises: RuleViolation (R24) if a counter of any scope would fall below its floor."""
        self.slot.check(effects.slot)
        self.variant.check(effects.variant)
        self.runtime.check(effects.runtime)

    def apply(self, effects: Effects) -> None:
        """Let a step happen in all scopes, or in none. Raises: RuleViolation (R24), before any change."""
        self.check(effects)
        if effects.sums:
            self.adjust(effects.sums)
        self.slot.apply(effects.slot)
        self.variant.apply(effects.variant)
        self.runtime.apply(effects.runtime)

    def adjust(self, sums: Iterable[Sum]) -> None:
        """Let sums follow the slot's counters to the values that these are set to."""
        for scope, total, counter, value in sums:
            self[scope].counters[total] += value - self.slot.counters[counter]

    def begun_again(self, layout: Layout) -> Scopes:
        """The scopes of a slot's next life: its own ledger is new, so that sums lose what it had."""
        self.adjust(layout.sums)
        return self._replace(slot=layout.monitors())

    def copy(self) -> Scopes:
        """The same state, to try something on."""
        return Scopes(*(monitors.copy() for monitors in self))


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _sums(spec: Spec, counters: Mapping[str, int]) -> Iterable[Sum]:
    for name, total in spec.counters.items():
        if total.sums is not None and total.sums in counters:
            yield Sum(_SCOPES.index(total.scope), counters[name], counters[total.sums])


def _named_events(condition: Condition) -> tuple[str, ...]:
    match condition:
        case After(event, than):
            return (event, than)
        case AtLeast(event):
            return (event,)
    return ()


@attrs.frozen
class Layout:
    """Which number each event, counter and mode of a spec has; the same in all scopes."""

    spec: Spec
    events: Mapping[str, int]
    counters: Mapping[str, int]
    modes: Mapping[str, int]
    sums: tuple[Sum, ...] = ()

    @classmethod
    def of(cls, spec: Spec) -> Layout:
        """Number what `spec` names. An event that only a rule names (its step is absent) just never happens."""
        named = (event for rule in spec.rules for event in _named_events(rule.condition))
        counters = _numbered(spec.counters)
        sums = tuple(_sums(spec, counters))
        return cls(spec, _numbered([*spec.events, *named]), counters, _numbered(spec.modes), sums)

    def monitors(self) -> Monitors:
        """The monitors of a scope in which nothing has happened yet."""
        events = len(self.events)
        return Monitors([NEVER] * events, [0] * events, [0] * len(self.counters), [False] * len(self.modes))

    def effects(self, step: Step, event: str) -> Effects:
        """What `step` does to each scope when its outcome is `event`."""
        sets = {self.counters[name]: value for name, value in step.set.items()}
        sums = tuple(s._replace(value=sets[s.counter]) for s in self.sums if s.counter in sets)
        slot, variant, runtime = (self._effect(step, event, scope) for scope in _SCOPES)
        return Effects(slot, variant, runtime, sums)

    def _effect(self, step: Step, event: str, scope: Scope) -> Effect:
        deltas = self._here(step.count, self.spec.counters, scope) | self._summed(step, scope)
        return Effect(
            self.events[event],
            tuple((self.counters[name], delta) for name, delta in deltas.items()),
            tuple((self.counters[n], value) for n, value in self._here(step.set, self.spec.counters, scope).items()),
            tuple((self.modes[name], on) for name, on in self._here(step.mode, self.spec.modes, scope).items()),
            tuple(self._floors(deltas)),
        )

    @staticmethod
    def _here(moves: Mapping[str, Any], declared: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
        return {name: move for name, move in moves.items() if declared[name].scope == scope}

    def _summed(self, step: Step, scope: Scope) -> dict[str, int]:
        """How far the sums of `scope` move with what `step` counts; what it sets is not known ahead."""
        moved = {own: delta for own, delta in step.count.items() if own not in step.set}
        totals = ((name, total.sums or "") for name, total in self.spec.counters.items() if total.scope == scope)
        return {name: moved[own] for name, own in totals if own in moved}

    def _floors(self, deltas: Mapping[str, int]) -> Iterable[Floor]:
        for name, delta in deltas.items():
            least = self.spec.counters[name].floor
            if least is not None and delta < 0:
                yield Floor(self.counters[name], delta, least, name)


Holds = Callable[[Scopes], bool]


def reach(condition: Condition, scope: Scope, spec: Spec) -> Scope:
    """The scope that `condition` reads: of events, the rule's own `scope`; of a counter or mode, the declared one."""
    match condition:
        case CounterIs(counter):
            return spec.counters[counter].scope
        case ModeIs(mode):
            return spec.modes[mode].scope
    return scope


def compile_condition(condition: Condition, read_scope: Scope, layout: Layout) -> Holds:
    """`condition` as a function of the scopes, reading `read_scope` (see `reach`)."""
    read = _SCOPES.index(read_scope)
    match condition:
        case After(event, than):
            return _after(read, layout.events[event], layout.events[than])
        case AtLeast(event, n):
            return _at_least(read, layout.events[event], n)
        case CounterIs(counter, equals):
            return _counter_is(read, layout.counters[counter], equals)
        case ModeIs(mode, value):
            return _mode_is(read, layout.modes[mode], value)


def _after(scope: int, event: int, than: int) -> Holds:
    def holds(scopes: Scopes) -> bool:
        newest = scopes[scope].newest
        return newest[event] > newest[than]

    return holds


def _at_least(scope: int, event: int, n: int) -> Holds:
    return lambda scopes: scopes[scope].count[event] >= n


def _counter_is(scope: int, counter: int, equals: int) -> Holds:
    return lambda scopes: scopes[scope].counters[counter] == equals


def _mode_is(scope: int, mode: int, value: bool) -> Holds:
    return lambda scopes: scopes[scope].modes[mode] == value
