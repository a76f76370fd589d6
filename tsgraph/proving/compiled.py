"""A world ready to be explored: which bits matter where, and all its moves as integers.

Theory of operation. Bits that nothing will ask from a place on, before they are overwritten, are put out there, so that
configurations that differ in no answer are one (`live_bits`, a backward pass over the moves to a fixed point).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import attrs

from tsgraph.proving.acts import Claim
from tsgraph.proving.bits import Bits, Change, Test
from tsgraph.proving.rows import Row
from tsgraph.proving.world import Move, Place, World


def live_bits(moves: Mapping[Place, tuple[Move, ...]], bits: Bits) -> dict[Place, int]:
    """For each place, the bits whose value can still make a difference: read before they are overwritten."""
    live, changed = dict.fromkeys(moves, 0), True
    reads = {place: tuple((move.target, *move.reads(bits)) for move in moves[place]) for place in moves}
    while changed:
        before = dict(live)
        for place in reversed(tuple(moves)):
            for target, read, kept in reads[place]:
                live[place] |= read | live[target] & kept
        changed = before != live
    return live


class Quick(NamedTuple):
    """A row as integers: what to compare with, what to keep, what to put on (with the number of the place it leads to).

    `promise`: what to compare with to see that all `claims` hold.
    """

    mask: int
    value: int
    keep: int
    put: int
    move: Move
    claims: tuple[tuple[Test, Claim], ...]
    promise: Test


@attrs.frozen
class Rows:
    """All moves of a world as rows.

    `width`: how many bits are below a place's number. `quick`, `gated`: by the number of the place; `gated` are the
    moves that ask a gate, each with what its gate reads, what to keep and what to put on.
    """

    places: tuple[Place, ...]
    width: int
    quick: tuple[tuple[Quick, ...], ...]
    gated: tuple[tuple[tuple[Move, int, int, int], ...], ...]

    @classmethod
    def of(cls, world: World) -> Rows:
        """Compile `world`."""
        compiler = _Compiler(world, live_bits(world.moves, world.bits), {p: n for n, p in enumerate(world.moves)})
        quick = tuple(tuple(compiler.quick(place)) for place in world.moves)
        return cls(tuple(world.moves), world.bits.width, quick, tuple(map(compiler.gated, world.moves)))


@attrs.frozen
class _Compiler:
    world: World
    live: Mapping[Place, int]
    numbers: Mapping[Place, int]

    def quick(self, place: Place) -> Iterator[Quick]:
        seen = set()
        for move in self.world.moves[place]:
            for row in move.rows if move.gate is None else ():
                quick = self._quick(move, row)
                same = *quick[:4], quick.claims
                if same not in seen and self._matters(place, quick):
                    seen.add(same)
                    yield quick

    def _quick(self, move: Move, row: Row) -> Quick:
        keep, put = self._finish(move, row.change)
        return Quick(row.test.mask, row.test.value, keep, put, move, row.claims, row.promise)

    def _finish(self, move: Move, change: Change) -> tuple[int, int]:
        live = self.live[move.target]
        return live & ~change.clear, live & change.put | self.numbers[move.target] << self.world.bits.width

    def _matters(self, place: Place, quick: Quick) -> bool:
        """Whether it leads elsewhere, or claims something."""
        changes = quick.keep != self.live[place] or quick.put & ((1 << self.world.bits.width) - 1)
        return bool(quick.claims or changes or quick.move.target != place)

    def gated(self, place: Place) -> tuple[tuple[Move, int, int, int], ...]:
        gated = (move for move in self.world.moves[place] if move.gate is not None)
        return tuple((m, self.world.bits.whole(m.gate.mask), *self._finish(m, Change())) for m in gated if m.gate)
