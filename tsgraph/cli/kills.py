"""A kill table as text: one table for each kind of mutant, then what is wrong, then the sum."""

from __future__ import annotations

from collections import Counter

from rich.table import Table

from tsgraph.proving.kill_table import KillTable, Row
from tsgraph.spec.table import as_text, plain_table


def kills_told(table: KillTable, width: int) -> str:
    """`table` as plain text, `width` columns wide."""
    kinds = dict.fromkeys(row.mutant.kind for row in table.rows)
    tables = as_text([_of_kind(kind, table) for kind in kinds], width)
    return "\n".join(filter(None, [tables, "", *(f"problem: {problem}" for problem in table.problems), _sum(table)]))


def _of_kind(kind: str, table: KillTable) -> Table:
    rows = [row for row in table.rows if row.mutant.kind == kind]
    return plain_table(f"{table.spec}: {kind}", ("where", "what", "killed by", "how"), map(_cells, rows))


def _cells(row: Row) -> tuple[str, ...]:
    return row.mutant.subject, row.mutant.what, killer(row), str(row.kill or "")


def killer(row: Row) -> str:
    """Who killed the mutant, or why nobody did."""
    return row.kill.by if row.kill else ("declared free" if row.mutant.free else "NOTHING")


def _sum(table: KillTable) -> str:
    by = ", ".join(f"{times} {word}" for word, times in Counter(map(killer, table.rows)).most_common())
    number = len(table.problems)
    verdict = "complete" if table.complete else f"NOT complete, {number} problem{'s' if number > 1 else ''}"
    return f"{table.spec}: {len(table.rows)} mutants ({by}) in {table.seconds:.1f} s: {verdict}"
