"""Live rows to a decision, as a table: one look-up per step, made anew whenever a slot changes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import attrs

from tsgraph.keys import Decision, Mode, Reason, SlotKey


@attrs.frozen
class Dispatch:
    """What a decision depends on. `blocked` gives the reason of every slot that cannot be replayed now."""

    sizes: tuple[int, ...]
    padding: bool = True
    enabled: bool = True
    blocked: Mapping[SlotKey, Reason] = attrs.field(factory=dict)

    def table(self, variant: str) -> tuple[Decision, ...]:
        """The decision for 0, 1, … rows up to the largest size, for decode steps of `variant`."""
        return tuple(self.decide(rows, variant=variant) for rows in range(self.sizes[-1] + 1))

    def decide(self, rows: int, *, variant: str, mode: Mode = Mode.DECODE, widest: int | None = None) -> Decision:
        """Where a step of `rows` live rows goes. `widest`: rows of the widest rank, where ranks must agree (R27)."""
        refusal = self._refusal(rows if widest is None else widest, mode)
        if refusal is not None:
            return Decision(rows, rows, refusal)
        key = SlotKey(variant, self._size(rows if widest is None else widest))
        blocked = self.blocked.get(key)
        if blocked is not None:
            return Decision(rows, rows, blocked, detail=f"slot {key}")
        return Decision(rows, key.size, Reason.EXACT if key.size == rows else Reason.PADDED, key)

    def _refusal(self, rows: int, mode: Mode) -> Reason | None:
        if not self.enabled:
            return Reason.DISABLED
        if mode is not Mode.DECODE:
            return Reason.NOT_DECODE
        if rows > self.sizes[-1]:
            return Reason.NO_SIZE_FITS
        return None if self.padding or rows in self.sizes else Reason.NO_EXACT_SIZE

    def _size(self, rows: int) -> int:
        return self.sizes[bisect_left(self.sizes, rows)]


def widest_rows(counts: Sequence[int], tokens_per_request: int) -> int:
    """Rows of the rank with most tokens, from tokens per rank (R27)."""
    return -(-max(counts) // tokens_per_request)
