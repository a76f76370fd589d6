"""Runs tasks in worker processes, watched, and keeps what was observed in one file.

A worker writes a line before and after each task. Where it stops writing or dies, it is started again behind the task
that it was at, which is noted: one program cannot take the rest with it. A task that cannot even be set up is noted,
too, and the worker goes on.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

from tests.fidelity.grounds import Ground, ground
from tests.fidelity.tasks import NotRun, Task, perform, prepare

PATIENCE = 30.0  # seconds for one task
PATIENCE_AT_START = 300.0  # loading torch, CUDA, the database of operators
NEIGHBOURS = 24  # tasks in a row for one worker
ROOT = Path(__file__).parents[2]


@attrs.frozen
class Recording:
    """What was observed, task by task: each item is a task with `observed`, or with `lost` and why."""

    made: dict[str, Any]
    items: list[dict[str, Any]]

    def save(self, path: Path) -> None:
        """Write it, an item a line."""
        lines = ",\n".join(json.dumps(item, separators=(",", ":"), allow_nan=False) for item in self.items)
        path.write_text(f'{{"made": {json.dumps(self.made)},\n"items": [\n{lines}\n]}}\n')

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read it."""
        return cls(**json.loads(path.read_text()))


def record(
    tasks: Sequence[Task], where: str, seconds: float = float("inf"), patience: float = PATIENCE, workers: int = 1
) -> Recording:
    """Run tasks on the ground by that name for at most about `seconds`, in order, shared out to so many processes.

    They share one GPU: its work is a small part of what a task takes.
    """
    began = time.monotonic()
    shares = [share for share in (_share(len(tasks), turn, workers) for turn in range(workers)) if share]
    with ThreadPoolExecutor(max(1, len(shares))) as pool:
        watch = functools.partial(_record_share, tasks=tasks, where=where, until=began + seconds, patience=patience)
        parts = list(pool.map(watch, shares))
    observed = {number: seen for part in parts for number, seen in part.observed.items()}
    lost = sorted(each for part in parts for each in part.lost)
    items = [{**tasks[number], "observed": observed[number]} for number in sorted(observed)]
    items += [{**tasks[number], "lost": why} for number, why in lost]
    made = {
        **next((part.ground for part in parts if part.ground), {}),
        "seconds": round(time.monotonic() - began, 1),
        "asked": len(tasks),
        "workers": len(shares),
        "restarts": sum(part.restarts for part in parts),
        "ended": " ".join(part.ended for part in parts if part.ended),
    }
    return Recording(made, items)


def _share(count: int, turn: int, workers: int) -> list[int]:
    """The numbers of one worker's tasks. Neighbours stay together: they use the same kernels and inputs."""
    return [number for number in range(count) if number // NEIGHBOURS % workers == turn]


@attrs.define
class _Part:
    """What one worker and its successors have done: by the numbers of the tasks."""

    observed: dict[int, Any] = attrs.field(factory=dict)
    lost: list[tuple[int, str]] = attrs.field(factory=list)
    ground: dict[str, Any] = attrs.field(factory=dict)
    restarts: int = 0
    ended: str = ""

    def read(self, lines: Sequence[dict[str, Any]], share: Sequence[int]) -> None:
        """Take what a worker wrote."""
        self.ground = next((line["ground"] for line in lines if "ground" in line), {})
        self.observed = {share[line["at"]]: line["observed"] for line in lines if "observed" in line}
        self.lost += [(share[line["at"]], line["lost"]) for line in lines if "lost" in line]


def _record_share(share: Sequence[int], tasks: Sequence[Task], where: str, until: float, patience: float) -> _Part:
    part = _Part()
    with tempfile.TemporaryDirectory() as folder:
        given, taken = Path(folder, "tasks"), Path(folder, "lines")
        given.write_text("\n".join(json.dumps(tasks[number]) for number in share))
        taken.touch()
        at = 0
        while at < len(share) and time.monotonic() < until:
            why = _run_worker(given, taken, at, where, until, patience)
            begun, done = _progress(taken)
            if why is None:
                break
            if not begun or begun[-1] < at:  # it does not even start
                part.ended = why
                break
            if begun[-1] not in done:
                part.lost.append((share[begun[-1]], why))
            at, part.restarts = begun[-1] + 1, part.restarts + 1
        part.read([json.loads(line) for line in taken.read_text().splitlines()], share)
    return part


def work(given: Path, taken: Path, first: int, where: str) -> None:
    """The worker: perform the tasks from `first` on, and write lines. Raises what leaves the device unusable."""
    tasks = [json.loads(line) for line in given.read_text().splitlines()]
    prepare(tasks)
    gc.collect()
    gc.freeze()  # what was loaded is much, and the ground collects garbage for each program
    place = ground(where)
    with taken.open("a", buffering=1) as lines:
        lines.write(json.dumps({"ground": place.describe()}) + "\n")
        for at, task in enumerate(tasks[first:], first):
            lines.write(json.dumps({"begun": at}) + "\n")
            lines.write(json.dumps({"at": at, **_outcome(task, place)}) + "\n")


def _outcome(task: Task, place: Ground) -> dict[str, Any]:
    try:
        return {"observed": perform(task, place)}
    except NotRun as error:
        return {"lost": str(error)}


def _run_worker(given: Path, taken: Path, first: int, where: str, until: float, patience: float) -> str | None:
    """Why the worker ended before its time; None where it did all it should."""
    command = [sys.executable, "-m", "tests.fidelity", "work", str(given), str(taken), str(first), where]
    with tempfile.TemporaryFile("w+") as says:
        worker = subprocess.Popen(command, cwd=ROOT, env=_alike(), stdout=says, stderr=subprocess.STDOUT)
        size, moved = taken.stat().st_size, time.monotonic() + PATIENCE_AT_START
        while worker.poll() is None:
            time.sleep(0.05)
            if taken.stat().st_size != size:
                size, moved = taken.stat().st_size, time.monotonic()
            if time.monotonic() - moved > patience or time.monotonic() > until:
                worker.kill()
                worker.wait()
                return "it hung" if time.monotonic() <= until else None
        if worker.returncode == 0:
            return None
        says.seek(0)
        return f"exit {worker.returncode}: {says.read()[-400:]}"


def _alike() -> dict[str, str]:
    """The environment of all workers. Torch's database draws from sets of words: their order is that of hashes."""
    return {**os.environ, "PYTHONHASHSEED": "0"}


def _progress(taken: Path) -> tuple[list[int], set[int]]:
    def numbers(key: str) -> Iterator[int]:
        return (line[key] for line in map(json.loads, _whole_lines(taken)) if key in line)

    return list(numbers("begun")), set(numbers("at"))


def _whole_lines(taken: Path) -> list[str]:
    text = taken.read_text()
    whole = text[: text.rfind("\n") + 1]
    taken.write_text(whole)  # a line that a dying worker began is none
    return whole.splitlines()
