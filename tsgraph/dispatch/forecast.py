"""How many bytes capture sizes take, foretold from three numbers.

With the largest size first, every later recording lives in memory that the first one has left in the shared pool. So
what a forward needs while it runs is paid once, for the largest size, whatever else is captured; each slot adds what it
keeps for itself: its outputs, by rows, and a constant, once for each variant of its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from math import ceil, inf
from typing import Any, Literal

import attrs

from tsgraph.dispatch.snapshot import slot_facts
from tsgraph.errors import CallerError

_BYTES = [attrs.validators.instance_of(int), attrs.validators.ge(0)]


@attrs.frozen(kw_only=True)
class Forecast:
    """Bytes of a pool. `shared`: for each row of the largest size, once. `row`, `slot`: for each slot, by rows and not.

    These are marginal bytes: what a slot adds to a pool in which a larger one was recorded before.
    """

    shared: int = attrs.field(default=0, validator=_BYTES)
    row: int = attrs.field(default=0, validator=_BYTES)
    slot: int = attrs.field(default=0, validator=_BYTES)

    @classmethod
    def of_slots(cls, slots: Iterable[Mapping[str, Any]]) -> Forecast:
        """What the slots of a runtime's snapshot took, in the order of their capture.

        `row` and `slot` are the line of least squares through the bytes of all slots but the first, `shared` is what
        the first, if it is the largest, took beside. So the forecast of the same slots is what they took, rounded up.

        Raises: CallerError where fewer than two slots hold a recording, or lack what the runtime tells of slots.
        """
        taken = _taken(slots)
        (size, first), largest = taken[0], max(size for size, _ in taken)
        if size < largest:
            row, slot = _line(taken)
            return cls(row=ceil(row), slot=ceil(slot))
        row, slot = _line(taken[1:])
        return cls(shared=ceil(max(first - slot - row * size, Fraction(0)) / size), row=ceil(row), slot=ceil(slot))

    def ordered(self, order: Literal["largest_first", "smallest_first"]) -> Forecast:
        """With the smallest first nothing is shared: each size needs memory of its own."""
        return self if order == "largest_first" else Forecast(row=self.row + self.shared, slot=self.slot)

    def bytes(self, sizes: Sequence[int], variants: int) -> int:
        """Bytes of slots of all `sizes`, each once for every variant."""
        return self.shared * max(sizes) + variants * (self.slot * len(sizes) + self.row * sum(sizes))

    def room(self, memory: int, variants: int) -> Callable[[int, int], float]:
        """What the rows of so many sizes may sum to, within `memory` bytes, by their number and the largest of them."""

        def room(number: int, largest: int) -> float:
            left = memory - self.shared * largest - variants * self.slot * number
            return -1 if left < 0 else left // (variants * self.row) if self.row else inf

        return room


def _taken(slots: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Sizes and bytes. Of a slot that failed or was released none are left; one that fits into what is there took 0."""
    facts = slot_facts(slots, "size", "bytes", "seconds", "cause")
    taken = [(size, bytes_) for size, bytes_, seconds, cause in facts if seconds and (bytes_ or not cause)]
    if len(taken) < 2:
        what = f"a forecast needs two recorded slots at least, and the snapshot has {len(taken)}"
        raise CallerError(what, hint="take the snapshot after runtime.capture()")
    return taken


def _line(taken: Sequence[tuple[int, int]]) -> tuple[Fraction, Fraction]:
    """Bytes for each row, and for each slot, none negative, so that they sum to what all of `taken` took."""
    mean_size, mean_bytes = (Fraction(sum(numbers), len(taken)) for numbers in zip(*taken, strict=True))
    spread = sum((size - mean_size) ** 2 for size, _ in taken)
    rise = sum((size - mean_size) * (bytes_ - mean_bytes) for size, bytes_ in taken)
    row = min(max(rise, Fraction(0)) / spread, mean_bytes / mean_size) if spread else Fraction(0)
    return row, mean_bytes - row * mean_size
