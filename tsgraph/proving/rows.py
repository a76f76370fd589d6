"""Runs of acts as rows: each a comparison, two masks, and what is claimed on the way.

Theory of operation. Nearly all that acts do is to put bits on or out, whatever they were. So a run of acts is one
change, and what is asked half-way is asked of the bits before the run, less those that the run has put on or out by
then. A move that looks at the number in a field becomes a row for each number. What is left to do while exploring is a
comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import attrs

from tsgraph.proving.acts import Act, Claim
from tsgraph.proving.bits import ALWAYS, NEVER, NOTHING, Change, Test, both


@attrs.frozen
class Row:
    """A way through a move's acts: taken where `test` holds; `change` is what it does then.

    `claims`: what is claimed on the way, each as a test of the bits before the move.
    """

    test: Test = ALWAYS
    change: Change = NOTHING
    claims: tuple[tuple[Test, Claim], ...] = ()

    @cached_property
    def promise(self) -> Test:
        """Whether all that is claimed is true, as one test."""
        return both(tuple(test for test, _ in self.claims))

    def before(self, test: Test) -> Test:
        """What `test`, asked after this way, asks of the bits before it."""
        if test.value < 0 or (test.value ^ self.change.put) & test.mask & self.change.clear:
            return NEVER
        return Test(test.mask & ~self.change.clear, test.value & ~self.change.clear)

    def where(self, test: Test) -> Iterator[Row]:
        """This way, where `test` holds after it; nothing if it never does."""
        here = self.test & self.before(test)
        if here != NEVER:
            yield Row(here, self.change, self.claims)

    def elsewhere(self, test: Test) -> Iterator[Row]:
        """This way, where `test` does not hold after it: split by the first bit that is wrong."""
        if test.value < 0:
            yield self
            return
        seen = 0
        for bit in _single(test.mask):
            seen |= bit
            yield from self.where(Test(seen, test.value & seen ^ bit))

    def then(self, clear: int, put: int) -> Row:
        """This way, and then a change of bits, whatever they were."""
        return Row(self.test, Change(self.change.clear | clear, self.change.put & ~clear | put), self.claims)

    def claiming(self, claims: Iterable[Claim]) -> Row:
        """This way, and then claims."""
        more = tuple((self.before(claim.test), claim) for claim in claims)
        return Row(self.test, self.change, self.claims + more) if more else self


def _single(mask: int) -> Iterator[int]:
    while mask:
        yield mask & -mask
        mask &= mask - 1


def rows(acts: Iterable[Act]) -> tuple[Row, ...]:
    """Every way through `acts`."""
    ways: tuple[Row, ...] = (Row(),)
    for act in acts:
        ways = tuple(row for way in ways for row in _rows(way, act))
    return ways


def _rows(way: Row, act: Act) -> Iterator[Row]:
    for row in way.where(act.test) if act.wanted else way.elsewhere(act.test):
        for changed in _changed(row.claiming(c for c in act.claims if c.before), act.change):
            yield changed.claiming(c for c in act.claims if not c.before)


def _changed(row: Row, change: Change) -> Iterator[Row]:
    ways = [row.then(change.clear, change.put)]
    for field, table in change.tables:
        ways = [now for way in ways for now in _counted(way, field, table)]
    yield from ways


def _counted(way: Row, field: int, table: tuple[tuple[int, ...], ...]) -> Iterator[Row]:
    """`way` for each number that `field` may hold after it, and for each that `table` has next."""
    lowest = field & -field
    for number, results in enumerate(table):
        for row in way.where(Test(field, lowest * ((1 << number) - 1))):
            yield from (row.then(field, result) for result in results)
