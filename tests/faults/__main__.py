"""`scripts/faults`: plants each fault, prints what finds it, and fails where nothing does."""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.faults import stage
from tests.faults.stage import Outcome
from tsgraph.testing.faults import FAULTS

Share = Callable[[Callable[[str], Outcome], Iterable[str]], Iterable[Outcome]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stage; its exit status."""
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="fault", help="faults to plant (default: all)")
    parser.add_argument("--errors", action="store_true", help="print how each find ended")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one for each core)")
    parsed = parser.parse_args(arguments)
    names, began = parsed.names or list(FAULTS), time.perf_counter()
    with _sharing(min(parsed.jobs, len(names))) as share:
        controls = share(stage.control, stage.property_names())  # the longest tasks first
        lines = share(stage.plant_one, names)
        finds = _printed(controls, details=True)
        lost = _printed(lines, details=parsed.errors)
    print(f"{lost} of {len(names)} faults were not found")
    print(f"{time.perf_counter() - began:.1f} s")
    return 1 if lost + finds else 0


def _printed(outcomes: Iterable[Outcome], *, details: bool) -> int:
    """Print them as they come; how many are not as they should be."""
    wrong = 0
    for outcome in outcomes:
        print(f"{outcome.line}\n{outcome.details}" if details and outcome.details else outcome.line, flush=True)
        wrong += not outcome.ok
    return wrong


@contextmanager
def _sharing(jobs: int) -> Iterator[Share]:
    """What does a task for each name, in `jobs` processes; in this one if one is enough."""
    if jobs <= 1:
        stage.settle()
        yield map
        return
    context: Any = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=stage.settle) as pool:
        yield pool.map


if __name__ == "__main__":
    raise SystemExit(main())
