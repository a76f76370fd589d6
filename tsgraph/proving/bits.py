"""The monitors of one slot's three scopes as the bits of one integer, no finer than rules and properties look.

Theory of operation. `After(event, than)` is one bit: `event` sets it, `than` clears it. `AtLeast(event, n)` counts up
to n and stays there. A mode is one bit. A counter counts between bounds a little beyond what is asked of it; at a bound
it stands for all values beyond, and a move back from there may lead to each of them. Of a sum over all slots the bits
hold what the other slots have: it is none where they have none and this one has none. Counts are unary, so that every
condition is one comparison under a mask. An event that no condition reads changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

import attrs

from tsgraph.lifecycle.law import is_void
from tsgraph.lifecycle.monitors import reach
from tsgraph.spec.model import After, AtLeast, Clause, Condition, Counter, CounterIs, ModeIs, Rule, Scope, Spec, Step

SCOPES: tuple[Scope, ...] = ("slot", "variant", "runtime")
SLACK = 2
"""How far beyond what is asked of it a counter counts, unless a counterexample turns out to need more."""


@attrs.frozen
class Test:
    """Whether the bits under `mask` are `value`."""

    __test__ = False  # pytest collects what is called like this

    mask: int
    value: int

    def holds(self, bits: int) -> bool:
        """Whether it does for `bits`."""
        return bits & self.mask == self.value

    def __and__(self, other: Test) -> Test:
        if self.value < 0 or other.value < 0 or (self.value ^ other.value) & self.mask & other.mask:
            return NEVER
        return Test(self.mask | other.mask, self.value | other.value)


ALWAYS = Test(0, 0)
NEVER = Test(0, -1)


def both(tests: Iterable[Test]) -> Test:
    """Whether all of `tests` hold, as one test."""
    result = ALWAYS
    for test in tests:
        result &= test
    return result


@attrs.frozen
class Field:
    """`width` bits from `shift` on, which hold a number of ones, lowest first."""

    shift: int
    width: int

    @property
    def mask(self) -> int:
        """All its bits."""
        return ((1 << self.width) - 1) << self.shift

    def ones(self, number: int) -> int:
        """The bits that hold `number`."""
        return ((1 << number) - 1) << self.shift

    def at_least(self, number: int) -> Test:
        """Whether it holds `number` or more."""
        if number <= 0:
            return ALWAYS
        bit = 1 << (self.shift + number - 1)
        return Test(bit, bit) if number <= self.width else NEVER

    def exactly(self, number: int) -> Test:
        """Whether it holds `number`; it is never asked for less than none."""
        over = self.at_least(number + 1)
        return self.at_least(number) & Test(over.mask, 0)


Table = tuple[tuple[int, ...], ...]
"""For each number of ones that a field may hold, the bits that it may hold next."""


@attrs.frozen
class Change:
    """What happens to bits: those of `clear` are put out, and of them those of `put` on; then `tables` replace fields.

    A table has several results where the bits do not say which. It comes with the mask of its field.
    """

    clear: int = 0
    put: int = 0
    tables: tuple[tuple[int, Table], ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether it changes no bits."""
        return not (self.clear or self.put or self.tables)

    def results(self, bits: int) -> tuple[int, ...]:
        """What `bits` may become."""
        results: tuple[int, ...] = (bits & ~self.clear | self.put,)
        for mask, table in self.tables:
            results = tuple(result & ~mask | now for result in results for now in table[(result & mask).bit_count()])
        return results


NOTHING = Change()


@attrs.frozen
class Gauge:
    """A counter's bits: values from `low` to `high`; at an `open` bound, that value or any beyond."""

    field: Field
    low: int
    high: int
    open_below: bool

    def at_least(self, value: int) -> Test:
        """Whether it is `value` or more."""
        return self.field.at_least(value - self.low)

    def equals(self, value: int) -> Test:
        """Whether it is `value`."""
        return self.field.exactly(value - self.low)

    def put(self, value: int) -> int:
        """The bits that hold `value`."""
        return self.field.ones(value - self.low)

    def moved(self, delta: int) -> Table:
        """What each value becomes when `delta` is added."""
        return tuple(tuple(map(self.put, self._moved(value, delta))) for value in range(self.low, self.high + 1))

    def _moved(self, value: int, delta: int) -> range:
        nearest = min(max(value + delta, self.low), self.high)
        if value == self.high and delta < 0:
            return range(nearest, self.high + 1)
        if value == self.low and delta > 0 and self.open_below:
            return range(self.low, nearest + 1)
        return range(nearest, nearest + 1)


Key = tuple[Scope, str, str]
Given = tuple[tuple[str, int], ...]
"""By the name of a sum, how much another slot had of what a step of it sets."""


@attrs.define
class _Allocation:
    """Hands out bits, and remembers which belong together and to which scope."""

    width: int = 0
    scopes: dict[Scope, int] = attrs.field(factory=lambda: dict.fromkeys(SCOPES, 0))
    fields: list[int] = attrs.field(factory=list)

    def field(self, scope: Scope, width: int) -> Field:
        field = Field(self.width, width)
        self.width += width
        self.scopes[scope] |= field.mask
        self.fields.append(field.mask)
        return field


@attrs.frozen
class Bits:
    """Which bits hold what, for one spec, already restricted to what is present.

    `width`: how many there are. `fresh`: the bits of scopes in which nothing has happened. `tried`: for each step of
    the failure's trigger, the bit that says that the transition under way has tried it.
    """

    spec: Spec
    newer: Mapping[Key, Field]
    counts: Mapping[tuple[Scope, str], Field]
    gauges: Mapping[str, Gauge]
    modes: Mapping[str, Field]
    tried: Mapping[str, int]
    scopes: Mapping[Scope, int]
    fields: tuple[int, ...]
    width: int
    fresh: int

    @classmethod
    def of(cls, spec: Spec, slack: int = SLACK) -> Bits:
        """The bits that the conditions of `spec` need."""
        asked = tuple(dict.fromkeys(_asked(spec)))
        bits = _Allocation()
        newer = {(s, c.event, c.than): bits.field(s, 1) for c, s in asked if isinstance(c, After) and c.event != c.than}
        counts = {key: bits.field(key[0], most) for key, most in _most(asked).items()}
        gauges = {c.name: _gauge(c, spec, asked, slack, bits) for c in spec.counters.values() if _is_read(c, asked)}
        read = [c.mode for c, _ in asked if isinstance(c, ModeIs)]
        modes = {name: bits.field(spec.modes[name].scope, 1) for name in dict.fromkeys(read)}
        failing = spec.lifecycle.transition(spec.lifecycle.on_failure)
        tried = {name: bits.field("slot", 1).mask for name in failing.steps}
        fresh = sum(gauge.put(0) for gauge in gauges.values())
        fields = tuple(mask for mask in bits.fields if mask.bit_count() > 1)
        return cls(spec, newer, counts, gauges, modes, tried, bits.scopes, fields, bits.width, fresh)

    # -- what is asked --

    def test(self, condition: Condition, scope: Scope) -> Test:
        """`condition` as a test; `scope` is a rule's or clause's own. One about what is absent always holds."""
        if is_void(condition, self.spec):
            return ALWAYS
        match condition:
            case After(event, than):
                return NEVER if event == than else self.newer[scope, event, than].at_least(1)
            case AtLeast(event, n):
                return self.counts[scope, event].at_least(n) if n > 0 else ALWAYS
            case CounterIs(counter, equals):
                own = self.spec.counters[counter].sums
                return self.gauges[counter].equals(equals) & (self.gauges[own].equals(0) if own else ALWAYS)
            case ModeIs(mode, value):
                mask = self.modes[mode].mask
                return Test(mask, mask if value else 0)

    def floors(self, step: Step, scopes: tuple[Scope, ...]) -> tuple[Test, ...]:
        """What must hold for `step` to leave every counter of `scopes` at or above its floor."""
        counters = self.spec.counters
        others = (self.gauges[name].at_least(-step.count.get(own, 0)) for name, own in self._sums_of_others(scopes))
        return (
            *others,
            *(
                self.gauges[name].at_least(floor - delta)
                for name, delta in step.count.items()
                if (floor := counters[name].floor) is not None and delta < 0 and counters[name].scope in scopes
            ),
        )

    def givens(self, step: Step, scopes: tuple[Scope, ...]) -> Iterator[Given]:
        """Every way in which another slot may have something of what `step` sets; one, without any, for what is own."""
        names = [name for name, own in self._sums_of_others(scopes) if own in step.set]
        held = (range(self.gauges[name].high + 1) for name in names)
        return (tuple(zip(names, numbers, strict=True)) for numbers in product(*held))

    def given(self, given: Given) -> Test:
        """Whether the other slots have that much."""
        return both(self.gauges[name].at_least(number) for name, number in given)

    def forgotten(self, given: Given) -> Change:
        """What happens when another slot forgets what it had."""
        return Change(tables=tuple((self.gauges[name].field.mask, self.gauges[name].moved(-n)) for name, n in given))

    def _sums_of_others(self, scopes: tuple[Scope, ...]) -> Iterator[tuple[str, str]]:
        """The sums, each with the slots' counter, where `scopes` are fed by what is not the slot's own."""
        for name in self.gauges if "slot" not in scopes else ():
            counter = self.spec.counters[name]
            if counter.sums and counter.scope in scopes:
                yield name, counter.sums

    def whole(self, mask: int) -> int:
        """`mask`, and all bits of every field that it touches."""
        for field in self.fields:
            if field & mask:
                mask |= field
        return mask

    # -- what changes --

    def change(self, step: Step, event: str, scopes: tuple[Scope, ...], given: Given = ()) -> Change:
        """What `step` does to the bits of `scopes` when its outcome is `event`; of another slot, that had `given`."""
        on = off = 0
        for (scope, newest, than), bit in self.newer.items():
            if scope in scopes:
                on |= bit.mask if newest == event else 0
                off |= bit.mask if than == event else 0
        for name, value in step.mode.items():
            if name in self.modes and self.spec.modes[name].scope in scopes:
                on |= self.modes[name].mask if value else 0
                off |= 0 if value else self.modes[name].mask
        for (scope, counted), field in self.counts.items():
            on |= field.mask if scope in scopes and counted == event and field.width == 1 else 0
        for name, gauge in self._gauges(step.set, scopes):
            on |= gauge.put(step.set[name])
            off |= gauge.field.mask
        summed = self._summed(step, scopes, dict(given))
        return Change(off | on, on, (*self._counted(event, scopes), *self._moved(step, scopes), *summed))

    def _summed(self, step: Step, scopes: tuple[Scope, ...], given: Mapping[str, int]) -> Iterator[tuple[int, Table]]:
        for name, own in self._sums_of_others(scopes):
            delta = step.set[own] - given[name] if own in step.set else step.count.get(own, 0)
            if delta:
                yield self.gauges[name].field.mask, self.gauges[name].moved(delta)

    def _gauges(self, names: Mapping[str, int], scopes: tuple[Scope, ...]) -> Iterator[tuple[str, Gauge]]:
        for name in names:
            if name in self.gauges and self.spec.counters[name].scope in scopes:
                yield name, self.gauges[name]

    def _counted(self, event: str, scopes: tuple[Scope, ...]) -> Iterator[tuple[int, Table]]:
        for (scope, counted), field in self.counts.items():
            if scope in scopes and counted == event and field.width > 1:
                yield field.mask, tuple((field.ones(min(n + 1, field.width)),) for n in range(field.width + 1))

    def _moved(self, step: Step, scopes: tuple[Scope, ...]) -> Iterator[tuple[int, Table]]:
        """A counter that the step also sets is not moved: setting comes last."""
        for name, gauge in self._gauges(step.count, scopes):
            if name not in step.set and step.count[name]:
                yield gauge.field.mask, gauge.moved(step.count[name])


def _asked(spec: Spec) -> Iterator[tuple[Condition, Scope]]:
    clauses = (clause for prop in spec.properties for clause in (*prop.before, *prop.holds))
    askers: tuple[Rule | Clause, ...] = (*spec.rules, *clauses)
    for asker in askers:
        if not is_void(asker.condition, spec):
            yield asker.condition, reach(asker.condition, asker.scope, spec)


def _most(asked: tuple[tuple[Condition, Scope], ...]) -> dict[tuple[Scope, str], int]:
    most: dict[tuple[Scope, str], int] = {}
    for condition, scope in asked:
        if isinstance(condition, AtLeast) and condition.n > 0:
            key = scope, condition.event
            most[key] = max(condition.n, most.get(key, 0))
    return most


def _is_read(counter: Counter, asked: tuple[tuple[Condition, Scope], ...]) -> bool:
    """Whether its value can make a difference: a condition reads it, or its floor refuses steps."""
    return counter.floor is not None or any(isinstance(c, CounterIs) and c.counter == counter.name for c, _ in asked)


def _gauge(
    counter: Counter, spec: Spec, asked: tuple[tuple[Condition, Scope], ...], slack: int, bits: _Allocation
) -> Gauge:
    name, steps = counter.name, spec.steps.values()
    read = [c.equals for c, _ in asked if isinstance(c, CounterIs) and c.counter == name]
    values = [0, *read, *(step.set[name] for step in steps if name in step.set)]
    if counter.floor is not None:
        falls = [-step.count.get(name, 0) for step in steps]
        values += [counter.floor, counter.floor + max([0, *falls])]
    is_open = counter.floor is None and counter.sums is None
    low = min(values) - (slack if is_open else 0)
    high = max(values) + (slack // SLACK if counter.sums else slack)  # of a sum only whether it is none is asked
    return Gauge(bits.field(counter.scope, high - low), low, high, open_below=is_open)
