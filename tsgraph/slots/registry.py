"""All slots of a runtime, by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from tsgraph.errors import UnknownSlot
from tsgraph.keys import SlotKey
from tsgraph.slots.slot import Slot


@attrs.frozen(eq=False, repr=False)
class Slots(Mapping[tuple[str, int], Slot]):
    """The slots in the order of their capture. `slots["default", 16]`; iterating gives keys."""

    _slots: Mapping[SlotKey, Slot]

    def __getitem__(self, key: tuple[str, int]) -> Slot:
        """The slot of `(variant, size)`. Raises UnknownSlot, which is a KeyError too."""
        try:
            return self._slots[key]  # type: ignore[index]  # a SlotKey equals its plain tuple
        except (KeyError, TypeError):
            known = ", ".join(str(known) for known in self._slots)
            raise UnknownSlot(f"there is no slot {key!r}", hint=f"the slots are {known}") from None

    def __iter__(self) -> Iterator[SlotKey]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def in_state(self, *states: str) -> tuple[Slot, ...]:
        """The slots that are in one of `states`, in the order of their capture."""
        return tuple(slot for slot in self._slots.values() if slot.state in states)

    def __repr__(self) -> str:
        return f"<Slots {', '.join(f'{key}: {slot.state}' for key, slot in self._slots.items())}>"
