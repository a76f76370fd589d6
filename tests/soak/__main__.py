"""`scripts/soak`: many random examples of everything that is fuzzed, on all cores; prints a table, fails at a find."""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed

from tests.soak.jobs import SHARES, Outcome, run

AT_ONCE = 250
"""Examples of one task, at most: so many share a seed, and a process."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; its exit status."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("examples", nargs="?", type=int, default=10_000, help="how many, about (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=SHARES, metavar="WHAT", help="a kind, once or more (all)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more after so long")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: one for each core)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first task")
    parsed = parser.parse_args(arguments)
    began = time.monotonic()
    outcomes = list(_outcomes(parsed, began))
    _tell(outcomes, time.monotonic() - began, parsed.seed)
    return 1 if any(outcome.find for outcome in outcomes) else 0


def _tasks(examples: int, only: Sequence[str]) -> list[tuple[str, int]]:
    """Jobs and how many examples each, in an order in which every kind comes early."""
    tasks = []
    whole = sum(SHARES[job] for job in only)
    for job in only:
        wanted = max(1, examples * SHARES[job] // whole)
        sizes = [AT_ONCE] * (wanted // AT_ONCE) + [wanted % AT_ONCE] * bool(wanted % AT_ONCE)
        tasks += [(number / len(sizes), job, size) for number, size in enumerate(sizes)]
    return [(job, size) for _, job, size in sorted(tasks)]


def _outcomes(parsed: argparse.Namespace, began: float) -> Iterator[Outcome]:
    with ProcessPoolExecutor(parsed.workers) as pool:
        tasks = _tasks(parsed.examples, parsed.only or tuple(SHARES))
        futures = {pool.submit(run, job, parsed.seed + n, size): job for n, (job, size) in enumerate(tasks)}
        for future in as_completed(futures):
            outcome = future.result()
            if outcome.find:
                print(f"{outcome.job}, seed {outcome.seed}:\n{outcome.find}", flush=True)
            if outcome.find or time.monotonic() - began > parsed.seconds:
                pool.shutdown(wait=False, cancel_futures=True)
                yield outcome
                yield from _finished(futures, future)
                return
            yield outcome


def _finished(futures: Iterable[Future[Outcome]], told: Future[Outcome]) -> Iterator[Outcome]:
    done = (future for future in futures if future.done() and not future.cancelled() and future is not told)
    return (future.result() for future in done)


def _tell(outcomes: Sequence[Outcome], seconds: float, seed: int) -> None:
    for job in SHARES:
        mine = [outcome for outcome in outcomes if outcome.job == job]
        tried, spent = sum(o.examples for o in mine), sum(o.seconds for o in mine)
        finds = sum(bool(o.find) for o in mine)
        print(f"{job:<28} {tried:>8} examples {spent:>9.1f} s of work  {finds} finds")
    total = sum(outcome.examples for outcome in outcomes)
    print(f"{'all':<28} {total:>8} examples {seconds:>9.1f} s, seed {seed}")


if __name__ == "__main__":
    raise SystemExit(main())
