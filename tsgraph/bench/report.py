"""What a benchmark found: plain data, told as tables on a terminal, as Markdown, or kept as JSON for plots."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table

from tsgraph.bench.machine import describe_machine

Data = dict[str, Any]


@attrs.frozen
class Sheet:
    """A table: what it is of, its columns (the first is words, the others numbers), its rows, and notes below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """As Markdown."""
        rule = ("---", *["--:"] * (len(self.columns) - 1))
        lines = [f"| {' | '.join(cells)} |" for cells in (self.columns, rule, *self.rows)]
        return "\n".join((f"**{self.title}**", "", *lines, *(f"\n{note}" for note in self.notes)))

    def print(self, console: Console) -> None:
        """On a terminal."""
        table = Table(*self.columns, box=None, title=self.title, title_justify="left", title_style="")
        for column in table.columns[1:]:
            column.justify = "right"
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for note in self.notes:
            console.print(note, soft_wrap=True, markup=False)


@attrs.frozen
class Report:
    """One run of one benchmark. `data` is plain JSON data; times in it are in seconds, memory in bytes."""

    bench: str
    machine: str
    command: str
    data: Data

    @classmethod
    def of(cls, bench: str, args: argparse.Namespace, data: Data) -> Report:
        """The report of a run on this machine."""
        given = {name: value for name, value in vars(args).items() if name in args.shown}
        words = " ".join(f"--{name.replace('_', '-')} {_word(value)}" for name, value in given.items())
        return cls(bench, describe_machine(), f"python3 -m tsgraph.bench {bench} {words}".strip(), data)

    @classmethod
    def load(cls, path: Path) -> Report:
        """A report that was kept."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def save(self, path: Path) -> None:
        """Keep it."""
        path.write_text(json.dumps(attrs.asdict(self), indent=1) + "\n", encoding="utf-8")

    def markdown(self, sheets: Sequence[Sheet]) -> str:
        """The tables with machine, versions and command above them."""
        return "\n\n".join((f"{self.machine}. `{self.command}`", *(sheet.markdown() for sheet in sheets)))


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def add_outputs(parser: argparse.ArgumentParser, *shown: str) -> None:
    """Add where results go. `shown`: the options that a report names as the command's."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all figures, for pages and plots")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    parser.set_defaults(shown=shown)


def publish(report: Report, sheets: Sequence[Sheet], args: argparse.Namespace) -> int:
    """Print the tables, and write whatever `args` ask for; returns the exit code."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(f"{report.machine}\n{report.command}", soft_wrap=True, markup=False)
    for sheet in sheets:
        sheet.print(console)
    if args.json is not None:
        report.save(args.json)
    if args.markdown is not None:
        args.markdown.write_text(report.markdown(sheets) + "\n", encoding="utf-8")
    return 0


def progress(bench: str) -> Callable[[str], None]:
    """Says on standard error what `bench` is at: long runs are watched, or cut off."""

    def say(what: str) -> None:
        print(f"[{bench}] {what}", file=sys.stderr, flush=True)

    return say


def count(text: str) -> int:
    """A positive whole number, for argparse."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Positive whole numbers between commas, for argparse."""
    return tuple(count(word) for word in text.split(","))


def micro(seconds: float) -> str:
    """Microseconds, to three digits."""
    return f"{seconds * 1e6:.3g}" if seconds * 1e6 < 100 else f"{seconds * 1e6:.0f}"


def times(ratio: float) -> str:
    """How many times."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def mebibytes(size: float) -> str:
    """MiB."""
    return f"{size / 2**20:.1f}"


def rows_of(cells: Iterator[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Rows of a sheet."""
    return tuple(tuple(row) for row in cells)
