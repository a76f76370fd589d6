"""What a runtime looks like from outside: plain data for machines, a table for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from rich.console import Console
from rich.table import Table

from tsgraph.slots.slot import Slot

if TYPE_CHECKING:
    from tsgraph.runtime import GraphRuntime


def describe_slot(slot: Slot) -> dict[str, Any]:
    """One slot as plain JSON data: bytes, seconds and counts are numbers, the cause is None or text.

    Of its receipt only the numbers are here; None before there is one.
    """
    return {
        "variant": slot.key.variant,
        "size": slot.key.size,
        "state": slot.state,
        "cause": str(slot.cause) if slot.cause else None,
        "replays": slot.counts.replays,
        "replays_since_capture": slot.counts.since_capture,
        "pad_rows": slot.counts.pad_rows,
        "bytes": slot.bytes,
        "seconds": round(slot.seconds, 6),
        "receipt": slot.receipt.summary() if slot.receipt else None,
        "history": [entry.name for entry in slot.history],
    }


def count_replays(slots: Iterable[Slot]) -> dict[str, int]:
    """Replays of all `slots`, and the pad rows that these computed."""
    counts = [slot.counts for slot in slots]
    return {"replays": sum(each.replays for each in counts), "pad_rows": sum(each.pad_rows for each in counts)}


def count_rows(slots: Iterable[Slot], eager: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    """Decode steps by variant and live rows: those that `slots` served, and the `eager` ones that a slot could have.

    It is the histogram that `tsgraph tune` takes. Rows are text, as JSON wants its keys.
    """
    steps: dict[str, Counter[int]] = {}
    for slot in slots:
        steps.setdefault(slot.key.variant, Counter()).update(dict(enumerate(slot.counts.rows)))
    for variant, rows in dict(eager).items():  # copies: a step may be served meanwhile
        steps.setdefault(variant, Counter()).update(dict(rows))
    return {variant: {str(live): rows[live] for live in sorted(rows) if rows[live]} for variant, rows in steps.items()}


def describe_runtime(runtime: GraphRuntime) -> dict[str, Any]:
    """Everything about a runtime as plain JSON data."""
    return {
        "spec": {"name": runtime.spec.name, "version": runtime.spec.version},
        "backend": runtime.backend.name,
        "device": str(runtime.backend.device),
        "enabled": runtime.enabled,
        "sizes": list(runtime.sizes),
        "variants": list(runtime.variants),
        "slots": [describe_slot(slot) for slot in runtime.slots.values()],
        "counters": runtime.counters(),
        "rows": count_rows(runtime.slots.values(), runtime._server.reasons.rows),  # noqa: SLF001 - to be read only
        "tokens_per_request": runtime.geometry.tokens_per_request,
        "ranks": runtime._parts.peers.count,  # noqa: SLF001 - likewise
        "staging": runtime._parts.engine.stagings.describe(),  # noqa: SLF001 - which is to be read only
        "memory": attrs.asdict(runtime.backend.memory()),
        "graphs": runtime.graph_memory(),
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
