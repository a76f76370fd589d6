"""A receipt for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from tsgraph.spec.table import as_text, plain_table

if TYPE_CHECKING:
    from tsgraph.receipts.receipt import CaptureReceipt, External, Kernel

SHOWN_OPERATORS = 3


def receipt_table(receipt: CaptureReceipt, width: int) -> str:
    """All of `receipt`, a table for each part that is not empty, and a first line with the numbers."""
    return f"{_headline(receipt)}\n\n{as_text(_tables(receipt), width)}\n"


def _headline(receipt: CaptureReceipt) -> str:
    nodes = "nodes not told" if receipt.nodes is None else f"{sum(receipt.nodes.values())} nodes{_kinds(receipt)}"
    where = f"{receipt.backend} on {receipt.device}"
    cost = f"{receipt.pool_bytes / 1024:.0f} KiB of pool, {receipt.seconds * 1e3:.1f} ms"
    unread = f"\ndeclared and not touched: {', '.join(receipt.unread)}" if receipt.unread else ""
    model = f"\nnot watched: what it touches is told of {receipt.model}" if receipt.model else ""
    return f"slot {receipt.slot} of {receipt.spec} ({where}): {nodes}, {cost}{model}{unread}"


def _kinds(receipt: CaptureReceipt) -> str:
    return f" ({', '.join(f'{number} {kind}' for kind, number in (receipt.nodes or {}).items())})"


def _tables(receipt: CaptureReceipt) -> Iterator[Table]:
    undeclared = [each for each in receipt.externals if not each.declared]
    declared = [each for each in receipt.externals if each.declared]
    outputs = ((each.name or "(the output)", each.form, each.alias or "its own") for each in receipt.outputs)
    baked = ((each.operator, each.argument, str(each), short(each.line)) for each in receipt.baked)
    once = ((each.operator, str(each.times), short(each.line)) for each in receipt.once)
    draws = ((each.operator, each.generator, str(each.times), short(each.line)) for each in receipt.draws)
    functions = ((each.name, short(each.line)) for each in receipt.functions)
    opaque = ((each.kind, each.name, str(each.times), short(each.line)) for each in receipt.opaque)
    escapes = ((each.operator, each.form, each.holder or "somebody", short(each.line)) for each in receipt.escapes)
    yield from _table("UNDECLARED memory", ("what", "form", "access", "operators", "first at"), map(_row, undeclared))
    yield from _table("memory from outside", ("owner", "form", "access", "operators", "first at"), map(_row, declared))
    yield from _table("outputs", ("output", "form", "memory"), outputs)
    yield from _table("baked values", ("operator", "argument", "value", "line"), baked)
    yield from _table("done once, on the host", ("operator", "times", "line"), once)
    yield from _table("random numbers", ("operator", "generator", "times", "line"), draws)
    yield from _table("host functions", ("function", "line"), functions)
    yield from _table("OPAQUE parts", ("kind", "name", "times", "line"), opaque)
    yield from _table("memory that ESCAPED", ("made by", "form", "held by", "line"), escapes)
    yield from _table("kernels", ("kernel", "grid", "times"), map(_kernel, receipt.kernels))


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[Table]:
    rows = list(rows)
    if rows:
        yield plain_table(title, columns, rows)


def _row(external: External) -> tuple[str, ...]:
    more = len(external.operators) - SHOWN_OPERATORS
    operators = [*external.operators[:SHOWN_OPERATORS], *([f"and {more} more"] if more > 0 else [])]
    place = "" if external.place == "device" else " on the host"
    what = external.path if external.name else external.kind
    origin = f"\n{external.origin}" if external.origin and external.origin != external.name else ""
    return what + origin, external.form + place, external.access, "\n".join(operators), short(external.line)


def _kernel(kernel: Kernel) -> tuple[str, str, str]:
    return kernel.name or "not named", "×".join(map(str, kernel.grid or ())), str(kernel.times)


def short(line: str) -> str:
    """`file:line` without the folders."""
    return Path(line).name
