"""A spec as tables: what each trigger does, what each rule demands and why, what each buffer holds."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tsgraph.spec.model import Buffer, Rule, Spec, Transition


def spec_table(spec: Spec, width: int = 120) -> str:
    """Transitions, rules and buffers of `spec` as plain text, `width` columns wide."""
    return as_text((_transitions(spec), _rules(spec), _buffers(spec)), width)


def as_text(tables: Iterable[Table], width: int) -> str:
    """Tables as plain text, `width` columns wide."""
    console = Console(width=width, file=io.StringIO(), color_system=None, highlight=False, legacy_windows=False)
    with console.capture() as captured:
        for table in tables:
            console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())


def _transitions(spec: Spec) -> Table:
    rows = (_transition(transition) for transition in spec.lifecycle.transitions)
    return plain_table(f"{spec.name}: transitions", ("trigger", "from", "to", "steps", "finally", "because"), rows)


def _transition(transition: Transition) -> tuple[str, ...]:
    times = [f"({transition.repeat} times)"] if transition.repeat != 1 and transition.steps else []
    lists = ("\n".join(words) for words in (transition.source, [*transition.steps, *times], transition.cleanup))
    source, steps, cleanup = lists
    return transition.on, source, transition.to, steps, cleanup, transition.because


def _rules(spec: Spec) -> Table:
    rows = (_rule(rule) for rule in spec.rules)
    return plain_table(f"{spec.name}: rules", ("rule", "guards", "demands that", "because", "needs"), rows)


def _rule(rule: Rule) -> tuple[str, ...]:
    scope = "" if rule.scope == "slot" else f" (per {rule.scope})"
    return rule.id, "\n".join(rule.guards), f"{rule.condition}{scope}", rule.because, rule.needs or ""


def _buffers(spec: Spec) -> Table:
    rows = (_buffer(buffer) for buffer in spec.buffers.values())
    return plain_table(f"{spec.name}: buffers", ("buffer", "dtype", "per", "pad", "read by", "needs", "why"), rows)


def _buffer(buffer: Buffer) -> tuple[str, ...]:
    per = " × ".join(map(str, (buffer.per, *buffer.shape)))
    columns = f", columns {buffer.column_pad}" if buffer.column_pad is not None else ""
    readers = ", ".join(buffer.read_by)
    return buffer.name, buffer.dtype, per, f"{buffer.pad}{columns}", readers, buffer.needs or "", buffer.why


def plain_table(title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    """A table of unstyled text."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, expand=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
