"""The slots of a runtime's snapshot, as it comes back from JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tsgraph.errors import CallerError

_NUMBERS = ("size", "replays", "pad_rows", "bytes", "seconds")


def slot_facts(slots: Iterable[Any], *names: str) -> list[tuple[Any, ...]]:
    """The facts called `names` of every slot. Raises: CallerError where one lacks a fact, or has none of its kind."""
    facts = []
    for slot in slots:
        if not isinstance(slot, dict) or any(name not in slot for name in names):
            raise CallerError(f"a slot of the snapshot lacks {' or '.join(names)}: {slot!r}")
        wrong = [name for name in names if name in _NUMBERS and type(slot[name]) not in (int, float)]
        if wrong:
            raise CallerError(f"a slot of the snapshot has a {wrong[0]} that is no number: {slot!r}")
        facts.append(tuple(slot[name] for name in names))
    return facts
