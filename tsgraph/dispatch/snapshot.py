"""What a runtime's snapshot tells of served steps and of slots, as it comes back from JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tsgraph.errors import CallerError

Steps = Mapping[str, Mapping[int, int]]
"""Steps by variant and by rows."""

_NUMBERS = ("size", "bytes", "seconds")


def snapshot_in(record: Any) -> Mapping[str, Any] | None:
    """The snapshot that a document or a line of a log is, or has as `snapshot`; None where there is none."""
    if not isinstance(record, dict):
        return None
    for found in (record.get("snapshot"), record):
        if isinstance(found, dict) and isinstance(found.get("rows"), dict) and isinstance(found.get("slots"), list):
            return found
    return None


def served_in_all(tables: Sequence[Steps]) -> tuple[Steps, int]:
    """What runtimes served that told `tables` in turn, each all that it had served by then; and how many these were.

    A runtime only ever adds to what it has served: where a count is less than it was, another one has begun.
    """
    served: dict[str, Counter[int]] = defaultdict(Counter)
    ends = [before for before, after in pairwise(tables) if _less(after, before)]
    for table in (*ends, *tables[-1:]):
        for variant, steps in table.items():
            served[variant].update(steps)
    return served, len(ends) + 1


def _less(one: Steps, other: Steps) -> bool:
    """Whether `one` lacks a step that `other` has."""
    return any(
        one.get(variant, {}).get(rows, 0) < count for variant, steps in other.items() for rows, count in steps.items()
    )


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
