"""The differential run: `record` on a GPU, `compare` anywhere, `golden` for what CI holds on to, `show` for people."""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fidelity.recording import PATIENCE, Recording, record, work


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    parsed = _parser().parse_args(arguments)
    return int(parsed.run(parsed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/fidelity", description=__doc__)
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record", help="run programs, operator samples and examples, on the GPU")
    recording.add_argument("out", type=Path)
    recording.add_argument("--emulated", action="store_true", help="under emulation instead")
    recording.add_argument("--seed", type=int, default=0, help="of the first program")
    recording.add_argument("--count", type=int, default=2000, help="of programs")
    recording.add_argument("--samples", type=int, default=10_000, help="of operator calls, at most")
    recording.add_argument("--seconds", type=float, default=float("inf"), help="stop after about so long")
    recording.add_argument("--patience", type=float, default=PATIENCE, help="seconds for one task")
    recording.add_argument("--workers", type=int, default=1, help="processes that share the GPU")
    recording.set_defaults(run=_record)
    comparing = commands.add_parser("compare", help="run a recording's programs emulated, and compare")
    comparing.add_argument("recording", type=Path)
    comparing.add_argument("--against", type=Path, help="an emulated recording, instead of running now")
    comparing.add_argument("--page", type=Path, help="the page to put the figures into")
    comparing.add_argument("--show", type=int, default=10, help="how many unexplained differences to print in full")
    comparing.set_defaults(run=_compare)
    keeping = commands.add_parser("golden", help="choose what CI keeps of a recording")
    keeping.add_argument("recording", type=Path)
    keeping.add_argument("out", type=Path)
    keeping.add_argument("--against", type=Path, help="an emulated recording, instead of running now")
    keeping.add_argument("--bytes", type=int, default=480_000)
    keeping.set_defaults(run=_keep)
    showing = commands.add_parser("show", help="print programs")
    showing.add_argument("--seed", type=int, default=0)
    showing.add_argument("--count", type=int, default=1)
    showing.set_defaults(run=_show)
    working = commands.add_parser("work")  # what `record` starts
    working.add_argument("given", type=Path)
    working.add_argument("taken", type=Path)
    working.add_argument("first", type=int)
    working.add_argument("where")
    working.set_defaults(run=_work)
    return parser


def _record(parsed: argparse.Namespace) -> int:
    from tests.fidelity.tasks import all_tasks

    tasks = all_tasks(parsed.seed, parsed.count, parsed.samples)
    where = "emulated" if parsed.emulated else "cuda"
    recording = record(tasks, where, parsed.seconds, parsed.patience, parsed.workers)
    recording.save(parsed.out)
    lost = [item for item in recording.items if "lost" in item]
    print(f"{len(recording.items)} of {len(tasks)} tasks, {len(lost)} lost: {recording.made}")
    for item in lost[:5]:
        print(item["lost"])
    return 0


def _compare(parsed: argparse.Namespace) -> int:
    from tests.fidelity.report import compare_recordings, fill_page, print_report

    cuda = Recording.load(parsed.recording)
    report = compare_recordings(cuda, _emulated(cuda, parsed.against))
    print_report(report, parsed.show)
    if parsed.page:
        fill_page(parsed.page, report)
    return 1 if report.unexplained else 0


def _emulated(cuda: Recording, against: Path | None) -> Recording:
    from tests.fidelity.report import emulate_again

    return Recording.load(against) if against else emulate_again(cuda)


def _keep(parsed: argparse.Namespace) -> int:
    from tests.fidelity.golden import choose

    cuda = Recording.load(parsed.recording)
    kept = choose(cuda, _emulated(cuda, parsed.against), parsed.bytes)
    kept.save(parsed.out)
    print(f"{len(kept.items)} items, {parsed.out.stat().st_size} bytes")
    return 0


def _work(parsed: argparse.Namespace) -> int:
    work(parsed.given, parsed.taken, parsed.first, parsed.where)
    return 0


def _show(parsed: argparse.Namespace) -> int:
    from tests.fidelity.generator import program

    for seed in range(parsed.seed, parsed.seed + parsed.count):
        print(program(seed).standalone())
    return 0


if __name__ == "__main__":
    sys.exit(main())
