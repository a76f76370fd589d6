"""Compares two recordings and tells how they agree: by kind, explained differences counted, the rest in full."""

# ruff: noqa: T201 - this is what the command line prints

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from tests.fidelity.comparison import Difference, Explanation, Outcome, compare, explanations
from tests.fidelity.interpreter import Observation
from tests.fidelity.program import Program
from tests.fidelity.recording import Recording, record
from tests.fidelity.tasks import kind_of, task_of, title

BEGIN, END = "<!-- figures: scripts/fidelity compare --page -->", "<!-- end of figures -->"


@attrs.define
class Report:
    """How a GPU's recording and an emulated one agree. `unexplained` are tasks with their differences."""

    made: dict[str, Any]
    emulated: dict[str, Any]
    tasks: Counter[str] = attrs.field(factory=Counter)
    equal: Counter[str] = attrs.field(factory=Counter)
    open: Counter[str] = attrs.field(factory=Counter)
    explained: Counter[str] = attrs.field(factory=Counter)
    by_reason: Counter[str] = attrs.field(factory=Counter)
    unexplained: list[tuple[dict[str, Any], list[Difference]]] = attrs.field(factory=list)
    lost: list[dict[str, Any]] = attrs.field(factory=list)


def emulate_again(cuda: Recording) -> Recording:
    """Run a recording's tasks under emulation."""
    return record([task_of(item) for item in cuda.items], "emulated")


def compare_recordings(cuda: Recording, emulated: Recording) -> Report:
    """Compare item by item. What was lost on the GPU is noted; what was lost under emulation is unexplained."""
    report, table = Report(cuda.made, emulated.made), explanations()
    found = {title(item): item for item in emulated.items}
    for item in cuda.items:
        report.tasks[kind_of(item)] += 1
        ours = found.get(title(item), {"lost": "not run"})
        if "lost" in item:
            report.lost.append(item)
        elif "lost" in ours:
            difference = Difference(kind_of(item), "task", "run", "ran", f"lost: {ours['lost']}", "")
            report.unexplained.append((item, [difference]))
        else:
            _count(report, item, compare_item(item, ours["observed"], table))
    return report


def compare_item(item: dict[str, Any], ours: list[Observation], table: list[Explanation]) -> Outcome:
    """How what was observed of an item's task compares with what was recorded of it."""
    program = Program.from_json(item["program"]) if "program" in item else None
    return compare(kind_of(item), program, item["observed"], ours, table, title(item))


def _count(report: Report, item: dict[str, Any], outcome: Outcome) -> None:
    kind = kind_of(item)
    report.equal[kind] += outcome.equal
    report.open[kind] += outcome.open
    report.explained[kind] += len(outcome.explained)
    report.by_reason.update(name for name, _ in outcome.explained)
    if outcome.unexplained:
        report.unexplained.append((item, outcome.unexplained))


def print_report(report: Report, most: int) -> None:
    """The tables, and the first `most` programs that differ without explanation, ready to run."""
    print("\n".join(table_of(report)))
    print()
    signatures = Counter(_signature(found[0]) for _, found in report.unexplained)
    for name, count in signatures.most_common(60):
        print(f"{count:5} × {name}")
    for item, differences in report.unexplained[:most]:
        print(f"\n=== {title(item)}")
        print(*differences[:3], sep="\n")
        if "program" in item:
            print(Program.from_json(item["program"]).standalone())


def table_of(report: Report) -> Iterator[str]:
    """The figures, as Markdown."""
    differing = Counter(kind_of(item) for item, _ in report.unexplained)
    yield "| kind | programs | observations that agree | open | explained | programs that differ |"
    yield "| --- | --: | --: | --: | --: | --: |"
    for kind in sorted(report.tasks):
        row = report.tasks[kind], report.equal[kind], report.open[kind], report.explained[kind], differing[kind]
        yield f"| {kind} | " + " | ".join(f"{each:,}" for each in row) + " |"
    sums = (sum(each.values()) for each in (report.tasks, report.equal, report.open, report.explained, differing))
    yield "| **all** | " + " | ".join(f"**{each:,}**" for each in sums) + " |"
    yield ""
    yield "| explained by | times | reason |"
    yield "| --- | --: | --- |"
    for each in explanations():
        yield f"| {each.name} | {report.by_reason[each.name]:,} | {each.reason} |"


def fill_page(page: Path, report: Report) -> None:
    """Put the figures between the page's marks, with machine, versions and command."""
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    made = report.made
    done = sum(report.tasks.values())
    told = (
        f"Recorded on one {made.get('device')} with torch {made.get('torch')} (CUDA {made.get('cuda')}) by "
        f"`scripts/fidelity record recording.json --workers {made.get('workers', 1)}`: {done:,} of {made['asked']:,} "
        f"tasks in {made['seconds']:.0f} s, {len(report.lost)} lost. "
        f"Emulated with torch {report.emulated.get('torch')} by `scripts/fidelity compare` in "
        f"{report.emulated['seconds']:.0f} s."
    )
    page.write_text("\n".join([before + BEGIN, told, "", *table_of(report), END + after]))


def _signature(difference: Difference) -> str:
    sides = f"{difference.cuda[:80]} | {difference.emulated[:110]}"
    return f"{difference.kind} · {difference.field} · {sides} · {difference.code[:80]}"
