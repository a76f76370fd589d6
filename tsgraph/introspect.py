"""What a runtime looks like from outside: plain data for machines, a table for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from tsgraph.slots.slot import Slot


def describe_slot(slot: Slot) -> dict[str, Any]:
    """One slot as plain JSON data: bytes, seconds and counts are numbers, the cause is None or text."""
    return {
        "variant": slot.key.variant,
        "size": slot.key.size,
        "state": slot.state,
        "cause": str(slot.cause) if slot.cause else None,
        "replays": slot.counts.replays,
        "pad_rows": slot.counts.pad_rows,
        "bytes": slot.bytes,
        "seconds": round(slot.seconds, 6),
        "history": [entry.name for entry in slot.history],
    }


def slot_table(slots: Iterable[Slot], width: int = 100) -> str:
    """The slots as a table: key, state, replays, pad rows, pool growth, capture time and the cause of trouble."""
    table = Table(*("slot", "state", "replays", "pad rows", "pool KiB", "capture ms", "cause"), box=None)
    for slot in slots:
        cause = slot.cause.summary if slot.cause else ""
        numbers = (slot.counts.replays, slot.counts.pad_rows, f"{slot.bytes / 1024:.0f}", f"{slot.seconds * 1e3:.1f}")
        table.add_row(str(slot.key), slot.state, *map(str, numbers), cause)
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
