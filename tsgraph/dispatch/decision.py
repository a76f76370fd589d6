"""Live rows to a decision, as a table: one look-up per step, made anew whenever a slot changes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import attrs

from tsgraph.dispatch.peers import Peers
from tsgraph.keys import Decision, Mode, RankCounts, Reason, SlotKey


@attrs.frozen
class Dispatch:
    """What a decision depends on.

    `blocked` gives the reason of every slot that cannot be replayed now, `causes` why some became so.
    With several `peers` a step uses a slot only if every rank decodes or idles and the size of the widest is known and
    not zero (R26): what one rank decides, all decide, since all know the same.
    """

    sizes: tuple[int, ...]
    padding: bool = True
    enabled: bool = True
    blocked: Mapping[SlotKey, Reason] = attrs.field(factory=dict)
    peers: Peers = attrs.field(factory=Peers)
    causes: Mapping[SlotKey, str] = attrs.field(factory=dict)

    def table(self, variant: str) -> tuple[Decision, ...]:
        """The decision for 0, 1, … rows up to the largest size, for decode steps of `variant`."""
        return tuple(self.decide(rows, variant=variant) for rows in range(self.sizes[-1] + 1))

    def decide(
        self,
        rows: int,
        *,
        variant: str,
        mode: Mode = Mode.DECODE,
        counts: RankCounts | None = None,
    ) -> Decision:
        """Where a step of `rows` live rows goes. `counts`, checked: what all ranks bring; the widest decides (R27)."""
        wanted = self._widest(rows, counts)
        refusal = self._refusal_of_mode(rows, mode) or self._refusal_of_ranks(counts) or self._refusal_of_size(wanted)
        if refusal is not None:
            return Decision(rows, rows, refusal)
        key = self.key_of(rows, variant=variant, counts=counts)
        blocked = self.blocked.get(key)
        if blocked is not None:
            cause = self.causes.get(key, "")
            return Decision(rows, rows, blocked, detail=f"slot {key}{cause and f': {cause}'}")
        return Decision(rows, key.size, Reason.EXACT if key.size == rows else Reason.PADDED, key)

    def key_of(self, rows: int, *, variant: str, counts: RankCounts | None = None) -> SlotKey:
        """The slot of a step that nothing but the slot itself can keep from it, whether it can be replayed or not."""
        return SlotKey(variant, self._size(self._widest(rows, counts)))

    def _widest(self, rows: int, counts: RankCounts | None) -> int:
        widest = self.peers.widest(counts)
        return rows if widest is None else widest

    def _refusal_of_mode(self, rows: int, mode: Mode) -> Reason | None:
        if not self.enabled:
            return Reason.DISABLED
        idles = mode is Mode.IDLE and rows == 0 and self.peers.count > 1
        return None if mode is Mode.DECODE or idles else Reason.NOT_DECODE

    def _refusal_of_ranks(self, counts: RankCounts | None) -> Reason | None:
        if self.peers.count == 1:
            return None
        if counts is None:
            return Reason.OTHER_RANKS_UNKNOWN
        if not counts.all_decode_or_idle:
            return Reason.OTHER_RANKS_BUSY
        return None if any(counts.tokens) else Reason.ALL_IDLE

    def _refusal_of_size(self, rows: int) -> Reason | None:
        if rows > self.sizes[-1]:
            return Reason.NO_SIZE_FITS
        return None if self.padding or rows in self.sizes else Reason.NO_EXACT_SIZE

    def _size(self, rows: int) -> int:
        return self.sizes[bisect_left(self.sizes, rows)]
