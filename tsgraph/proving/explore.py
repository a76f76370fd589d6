"""Everything that can be reached in a world, breadth first, so that what is found first is found on a shortest way.

A configuration is one integer: the number of a place above the bits of the monitors. Bits that nothing will ask from a
place on, before they are overwritten, are kept at zero there: configurations that differ in no answer are one.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from tsgraph.proving.acts import RULE, Claim
from tsgraph.proving.compiled import Quick, Rows
from tsgraph.proving.world import UNBORN, Move, Place, World


@attrs.frozen
class Break:
    """Where a claim is false first: by `move`, made from the configuration `start`."""

    claim: Claim
    start: int
    move: Move


@attrs.define
class Exploration:
    """What was explored: `came` says, for each configuration met, from which one and by which move.

    `broken`: the first break of each property. `made`: the moves that were made and claim something.
    """

    world: World
    rows: Rows
    came: dict[int, tuple[int, Move] | None]
    broken: dict[str, Break] = attrs.field(factory=dict)
    made: set[Move] = attrs.field(factory=set)

    def place(self, configuration: int) -> Place:
        """Where a slot is in it."""
        return self.rows.places[configuration >> self.rows.width]

    def way(self, configuration: int) -> tuple[Move, ...]:
        """The moves that lead to it from the start."""
        moves: list[Move] = []
        while (step := self.came[configuration]) is not None:
            configuration, move = step
            moves.append(move)
        return tuple(reversed(moves))

    @property
    def met(self) -> set[Place]:
        """The places where a slot can be."""
        return {self.rows.places[number] for number in {now >> self.rows.width for now in self.came}}

    @property
    def properties_broken(self) -> tuple[Break, ...]:
        """Their breaks, without what is only watched."""
        return tuple(broken for name, broken in self.broken.items() if name != RULE)

    @property
    def refuted(self) -> bool:
        """Whether any property is broken."""
        return bool(self.properties_broken)

    @property
    def judged(self) -> set[tuple[str, str]]:
        """The moments that came, by property."""
        return {(claim.property, claim.moment) for move in self.made for act in move.acts for claim in act.claims}

    def note(self, now: int, row: Quick) -> None:
        """Keep what is false of the claims of a row that is taken from `now`."""
        for test, claim in row.claims:
            if not test.holds(now):
                self.broken.setdefault(claim.property, Break(claim, now, row.move))


def explore(world: World, *, first: bool = False, watch: bool = False) -> Exploration:
    """Everything that can be reached in `world`.

    `first`: no further than to the first property that is broken; `watch`: than to where a watched rule would refuse.
    """
    rows = Rows.of(world)
    start = rows.places.index(Place(UNBORN)) << rows.width | world.bits.fresh
    found = Exploration(world, rows, {start: None})
    queue = [start]
    for now in queue:
        _follow(found, now, queue)
        if found.broken and ((first and found.refuted) or (watch and RULE in found.broken)):
            break
    return found


def _follow(found: Exploration, now: int, queue: list[int]) -> None:
    """Make every move from `now`, and queue the configurations that were not met before."""
    came, rows = found.came, found.rows
    number, held = now >> rows.width, now & (1 << rows.width) - 1
    for row in rows.quick[number]:
        mask, value, keep, put, move, claims, promise = row
        if held & mask == value:
            if claims:
                found.made.add(move)
                if held & promise.mask != promise.value:
                    found.note(now, row)
            if (then := held & keep | put) not in came:
                came[then] = now, move
                queue.append(then)
    for move, mask, keep, put in rows.gated[number]:
        if (then := held & keep | put) not in came and move.gate and move.gate.opens(held, mask):
            came[then] = now, move
            queue.append(then)


def successors(rows: Rows, now: int) -> Iterator[int]:
    """The configurations to which one move leads from `now`."""
    number, held = now >> rows.width, now & (1 << rows.width) - 1
    for mask, value, keep, put, *_ in rows.quick[number]:
        if held & mask == value:
            yield held & keep | put
    for move, mask, keep, put in rows.gated[number]:
        if move.gate and move.gate.opens(held, mask):
            yield held & keep | put
