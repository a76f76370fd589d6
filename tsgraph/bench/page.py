"""Figures go into a page by themselves: tables between its marks, charts beside it. Nobody types a number."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tsgraph.bench import capture, decode, growth, host, staging
from tsgraph.bench.plots import charts
from tsgraph.bench.report import Data, Report, Sheet
from tsgraph.errors import CallerError

SAYS = "put the figures of kept runs (--json) into a page, and draw their charts beside it"
SHEETS: Mapping[str, Callable[[Data], Iterable[Sheet]]] = {
    "host": host.sheets,
    "staging": lambda data: [staging.sheet(data)],
    "capture": capture.sheets,
    "growth": growth.sheets,
    "decode": decode.sheets,
}
END = "<!-- end of figures -->"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `page` command."""
    parser = subparsers.add_parser("page", help=SAYS, description=SAYS)
    parser.add_argument("page", type=Path, metavar="PAGE", help="a page with a pair of marks for each benchmark")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="what `--json` kept")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fill the page. Raises: CallerError where it has no marks for a benchmark."""
    for report in map(Report.load, args.files):
        fill_page(args.page, report)
    return 0


def mark(bench: str) -> str:
    """What stands in a page above the figures of `bench`."""
    return f"<!-- figures: {bench} -->"


def fill_page(page: Path, report: Report) -> None:
    """Put the tables of `report` between the page's marks, and its charts beside the page."""
    begin, text = mark(report.bench), page.read_text(encoding="utf-8")
    if begin not in text:
        raise CallerError(f"{page.name} has no place for the figures of {report.bench}", hint=f"put {begin} into it")
    before, _, rest = text.partition(begin)
    after = rest.partition(END)[2]
    pictures = "\n\n".join(_draw(page, report))
    tables = report.markdown(list(SHEETS[report.bench](report.data)))
    parts = (before + begin, tables, *filter(None, (pictures,)), END + after)
    page.write_text("\n\n".join(parts), encoding="utf-8")


def _draw(page: Path, report: Report) -> Iterator[str]:
    for name, title, drawing in charts(report):
        file = page.with_name(f"{page.stem}-{report.bench}-{name}.svg")
        file.write_text(drawing, encoding="utf-8")
        yield f"![{title}]({file.name})"


def benches_of(page: Path) -> list[str]:
    """The benchmarks that a page has marks for, in order."""
    return re.findall(r"^<!-- figures: (\w+) -->$", page.read_text(encoding="utf-8"), re.MULTILINE)
