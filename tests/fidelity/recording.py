"""Runs tasks in a worker process, watched, and keeps what was observed in one file.

The worker writes a line before and after each task. Where it stops writing or dies, it is started again behind the task
that it was at, which is noted: one program cannot take the rest with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.fidelity.grounds import ground
from tests.fidelity.tasks import Task, perform, prepare

PATIENCE = 30.0  # seconds for one task
PATIENCE_AT_START = 300.0  # loading torch, CUDA, the database of operators
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


def record(tasks: Sequence[Task], where: str, seconds: float = float("inf"), patience: float = PATIENCE) -> Recording:
    """Run tasks on the ground by that name, in order, in a process of its own, for at most about `seconds`."""
    began = time.monotonic()
    lost: list[tuple[int, str]] = []
    ended = ""
    with tempfile.TemporaryDirectory() as folder:
        given, taken = Path(folder, "tasks"), Path(folder, "lines")
        given.write_text("\n".join(map(json.dumps, tasks)))
        taken.touch()
        at = 0
        while at < len(tasks) and time.monotonic() - began < seconds:
            why = _run_worker(given, taken, at, where, began + seconds, patience)
            begun, done = _progress(taken)
            if why is None:
                break
            if not begun or begun[-1] < at:  # it does not even start
                ended = why
                break
            if begun[-1] not in done:
                lost.append((begun[-1], why))
            at = begun[-1] + 1
        lines = [json.loads(line) for line in taken.read_text().splitlines()]
    observed = {line["at"]: line["observed"] for line in lines if "observed" in line}
    items = [{**tasks[number], "observed": observed[number]} for number in sorted(observed)]
    items += [{**tasks[number], "lost": why} for number, why in lost]
    described: dict[str, Any] = next((line["ground"] for line in lines if "ground" in line), {})
    made = {
        **described,
        "seconds": round(time.monotonic() - began, 1),
        "asked": len(tasks),
        "restarts": len(lost),
        "ended": ended,
    }
    return Recording(made, items)


def work(given: Path, taken: Path, first: int, where: str) -> None:
    """The worker: perform the tasks from `first` on, and write lines. Raises what leaves the device unusable."""
    tasks = [json.loads(line) for line in given.read_text().splitlines()]
    place = ground(where)
    prepare(tasks)
    with taken.open("a", buffering=1) as lines:
        lines.write(json.dumps({"ground": place.describe()}) + "\n")
        for at, task in enumerate(tasks[first:], first):
            lines.write(json.dumps({"begun": at}) + "\n")
            lines.write(json.dumps({"at": at, "observed": perform(task, place)}) + "\n")


def _run_worker(given: Path, taken: Path, first: int, where: str, until: float, patience: float) -> str | None:
    """Why the worker ended before its time; None where it did all it should."""
    command = [sys.executable, "-m", "tests.fidelity", "work", str(given), str(taken), str(first), where]
    with tempfile.TemporaryFile("w+") as says:
        worker = subprocess.Popen(command, cwd=ROOT, stdout=says, stderr=subprocess.STDOUT)
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


def _progress(taken: Path) -> tuple[list[int], set[int]]:
    def numbers(key: str) -> Iterator[int]:
        return (line[key] for line in map(json.loads, _whole_lines(taken)) if key in line)

    return list(numbers("begun")), set(numbers("at"))


def _whole_lines(taken: Path) -> list[str]:
    text = taken.read_text()
    whole = text[: text.rfind("\n") + 1]
    taken.write_text(whole)  # a line that a dying worker began is none
    return whole.splitlines()
