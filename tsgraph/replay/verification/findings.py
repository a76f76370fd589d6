"""What a verification has found, so that a person can act on it: what differs, where, and the likely causes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs

from tsgraph.keys import SlotKey
from tsgraph.replay.verification.mismatch import Mismatch
from tsgraph.replay.verification.suspicion import Check, Evidence, Place, Suspect, suspects_of


@attrs.frozen(kw_only=True)
class Finding:
    """One thing that is not as it must be, in one slot.

    `check`: what was checked; `name`: the output, state, buffer or memory; `says`: what is wrong with it. `places`:
    where, the first of them that of `mismatch`, which says by how much (None where there are no numbers). `suspects`:
    the likely causes, likeliest first.
    """

    slot: SlotKey
    check: Check
    name: str
    says: str
    mismatch: Mismatch | None
    places: tuple[Place, ...]
    suspects: tuple[Suspect, ...]

    @property
    def where(self) -> str:
        """The first place, and how many more there are; empty where it is found without any run."""
        if not self.places:
            return ""
        more = len(self.places) - 1
        return f"{self.places[0]}{f', and {more} more' if more else ''}"

    def __str__(self) -> str:
        lines = [f"slot {self.slot}: {self.name} {self.says}"]
        lines += [f"  at {self.where}"] if self.where else []
        lines += [f"  {self.mismatch}"] if self.mismatch else []
        lines += [f"  likely: {suspect.why}\n    fix: {suspect.do}" for suspect in self.suspects]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The same as plain JSON data; a largest difference that is no number is None."""
        return {
            "slot": {"variant": self.slot.variant, "size": self.slot.size},
            "check": self.check,
            "name": self.name,
            "says": self.says,
            "mismatch": None if self.mismatch is None else _numbers(self.mismatch),
            "places": [attrs.asdict(place) for place in self.places],
            "suspects": [attrs.asdict(suspect) for suspect in self.suspects],
        }


def _numbers(mismatch: Mismatch) -> dict[str, Any]:
    largest = mismatch.largest if math.isfinite(mismatch.largest) else None
    return {**attrs.asdict(mismatch), "rows": list(mismatch.rows), "largest": largest}


@attrs.define(eq=False)
class _Open:
    """A finding that may come to have more places."""

    says: str
    mismatch: Mismatch | None
    places: list[Place] = attrs.field(factory=list)


Known = Callable[[SlotKey], dict[str, bool]]
"""What else is known of a slot: words of `Evidence`."""


@attrs.define(eq=False)
class Findings:
    """Findings as they come in: one for each thing of a slot, with all places. `checked`: checks made, by name."""

    checked: Counter[str] = attrs.field(factory=Counter)
    _open: dict[tuple[SlotKey, Check, str], _Open] = attrs.field(factory=dict, init=False)

    def made(self, check: Check) -> None:
        """Note that `check` was made once, well or badly ended."""
        self.checked[check] += 1

    def add(
        self, slot: SlotKey, check: Check, name: str, says: str, place: Place | None, mismatch: Mismatch | None = None
    ) -> None:
        """Note that `name` failed `check` at `place`."""
        found = self._open.setdefault((slot, check, name), _Open(says, mismatch))
        if place is not None and place not in found.places:
            found.places.append(place)

    def has(self, slot: SlotKey, check: Check) -> bool:
        """Whether anything of a slot failed `check`."""
        return any((slot, check) == each[:2] for each in self._open)

    def closed(self, known: Known) -> tuple[Finding, ...]:
        """All of them, with whom to suspect."""
        return tuple(
            Finding(
                slot=slot,
                check=check,
                name=name,
                says=found.says,
                mismatch=found.mismatch,
                places=tuple(found.places),
                suspects=suspects_of(check, Evidence(failed=frozenset(found.places), **known(slot))),
            )
            for (slot, check, name), found in self._open.items()
        )
