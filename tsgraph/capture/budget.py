"""How much memory graphs may take: what a recording will add, told from those before it, and what it really added.

A pool grows by nearly all that its first, largest recording needs. A smaller one lives in what that has left, and adds
what stays in use, its outputs. So the two largest recordings tell the rest: the first, what a row needs where there is
no room yet; the second, what a row adds. Memory comes in segments, so this is a forecast, and is told against what was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

import attrs

from tsgraph.errors import BadGeometry, OutOfBudget
from tsgraph.keys import SlotKey

REACH = 2
"""A forecast reaches up to so many times the largest size that was recorded: small ones tell little of large ones."""


def _check_limit(_budget: Any, _attribute: Any, limit: Any) -> None:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise BadGeometry(f"a memory budget is a number of bytes, or None for any number, not {limit!r}")


@attrs.define(eq=False)
class Budget:
    """`limit`: the most bytes that the pool may hold (None: any number).

    `growths`: by how many bytes each recording has grown the pool that there is now. `added`: by how many each did,
    there or in a pool before, when another was there that is as large or larger. `largest`: size and growth of the
    largest recording that ever grew a pool: from it follows what a new one needs. `told`: the newest forecast for a
    run of captures, in bytes (None: too little was known).
    """

    limit: int | None = attrs.field(default=None, validator=_check_limit)
    growths: dict[SlotKey, int] = attrs.field(factory=dict, init=False)
    added: dict[SlotKey, int] = attrs.field(factory=dict, init=False)
    largest: tuple[int, int] = attrs.field(default=(0, 0), init=False)
    told: int | None = attrs.field(default=None, init=False)

    # -- what will be ------------------------------------------------------------------------------------------------

    def growth(self, key: SlotKey) -> int | None:
        """By how many bytes a recording of `key` will grow the pool; None where nothing tells."""
        if key in self.growths:
            return 0  # what it left there serves it again
        first, second = self._two_largest()
        if first is None or key.size > first.size:
            return self.base(key.size)
        if key in self.added:
            return self.added[key]
        return None if second is None else ceil(self.growths[second] * key.size / second.size)

    def forecast(self, keys: Iterable[SlotKey]) -> int | None:
        """By how many bytes recordings of all `keys` will grow the pool; None where nothing tells one of them.

        Several into a pool that has fewer than two yet will share in a way that nothing tells.
        """
        each = [self.growth(key) for key in keys]
        known = [growth for growth in each if growth is not None]
        told = len(known) == len(each) and (len(each) == 1 or len(self.growths) > 1)
        return sum(known) if told else None

    def base(self, size: int) -> int | None:
        """Bytes of a new pool with a recording of `size` rows; None where nothing tells."""
        known, growth = self.largest
        return ceil(growth * size / known) if known and size <= REACH * known else None

    def fits(self, key: SlotKey, held: int) -> bool:
        """Whether nothing tells that a recording of `key` makes a pool that holds `held` bytes too large."""
        return self.limit is None or held + (self.growth(key) or 0) <= max(self.limit, held)

    def kept(self, keys: Iterable[SlotKey], room: int, stays: Mapping[SlotKey, int]) -> tuple[SlotKey, ...]:
        """Which of `keys`, the most wanted first, a new pool of `room` bytes holds.

        `stays`: bytes of the outputs of those that are there.
        """
        kept: tuple[SlotKey, ...] = ()
        for key in keys:
            if self._need((*kept, key), stays) <= room:
                kept = (*kept, key)
        return kept

    def _need(self, keys: Sequence[SlotKey], stays: Mapping[SlotKey, int]) -> int:
        largest = max(keys, key=_size)
        added = (stays.get(key, self.added.get(key, 0)) for key in keys if key is not largest)
        return (self.base(largest.size) or 0) + sum(added)

    def _two_largest(self) -> tuple[SlotKey | None, SlotKey | None]:
        ranked = sorted(self.growths, key=lambda key: (key.size, self.growths[key]), reverse=True)
        first, second, *_ = (*ranked, None, None)
        return first, second

    # -- what was ----------------------------------------------------------------------------------------------------

    def admit(self, key: SlotKey, held: int) -> None:
        """Before a recording of `key`: the pool holds `held` bytes. Raises: OutOfBudget where it is not to fit."""
        if not self.fits(key, held):
            growth = self.growth(key) or 0
            raise self._refusal(key, f"is forecast to need {growth} bytes, beside the {held} that graphs hold", growth)

    def charge(self, key: SlotKey, growth: int, held: int) -> None:
        """After it: by how many bytes it has grown the pool, which now holds `held`.

        Raises: OutOfBudget where that is too much; what a recording adds without growing the pool never is.
        """
        if any(other.size >= key.size for other in self.growths if other != key):
            self.added[key] = growth
        elif growth and key.size >= self.largest[0]:
            self.largest = max(self.largest, (key.size, growth))
        if self.limit is not None and growth and held > self.limit:
            raise self._refusal(key, f"took {growth} bytes more, and graphs would hold {held}", growth)
        self.growths[key] = max(growth, self.growths.get(key, 0))

    def begin_again(self) -> None:
        """The pool is gone: who shared it, and how, says nothing about the next one."""
        self.growths.clear()

    def _refusal(self, key: SlotKey, what: str, growth: int) -> OutOfBudget:
        return OutOfBudget(
            f"slot {key} {what}, with a budget of {self.limit}",
            hint="raise memory_budget, capture fewer sizes, or evict slots",
            slot=str(key),
            growth=growth,
            budget=self.limit,
        )


def _size(key: SlotKey) -> int:
    return key.size
