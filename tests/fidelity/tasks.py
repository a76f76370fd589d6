"""What is run on both grounds: generated programs, calls from torch's operator database, documented examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.fidelity import documented, samples
from tests.fidelity.generator import program
from tests.fidelity.grounds import Ground
from tests.fidelity.interpreter import Interpreter, Observation
from tests.fidelity.op_samples import database
from tests.fidelity.program import Program

Task = dict[str, Any]  # {"program": data}, {"sample": name}, or {"example": name}


def generated(first: int, count: int) -> list[Task]:
    """`count` programs, of the seeds from `first` on."""
    return [{"program": program(seed).to_json()} for seed in range(first, first + count)]


def all_tasks(first: int, count: int, most_samples: int) -> list[Task]:
    """The examples, then programs, then calls of operators: as many as are asked for, evenly over what there is."""
    calls = samples.names() if most_samples else []
    step = max(1, -(-len(calls) // max(1, most_samples)))
    return [
        *({"example": name} for name in documented.names()),
        *generated(first, count),
        *({"sample": name} for name in calls[::step]),
    ]


def prepare(tasks: Sequence[Task]) -> None:
    """Load what these tasks need that takes long."""
    if any("sample" in task for task in tasks):
        database()


def kind_of(task: Task) -> str:
    """What the task counts as in tables."""
    return str(task["program"]["kind"]) if "program" in task else next(iter(task))


def task_of(item: dict[str, Any]) -> Task:
    """The task of a recorded item."""
    return {key: value for key, value in item.items() if key not in ("observed", "lost")}


def title(task: Task) -> str:
    """Which one it is, for people."""
    kind = kind_of(task)
    return f"{kind}, seed {task['program']['seed']}" if "program" in task else f"{kind} {task[kind]}"


class NotRun(Exception):
    """The task failed outside of its program: nothing was observed, and the device is as it was."""


def perform(task: Task, ground: Ground) -> list[Observation]:
    """Run a task on a ground; what was observed. Raises: NotRun, and what leaves the device unusable."""
    with ground.clean():
        try:
            return _observe(task, ground)
        except Exception as error:
            raise NotRun(f"{type(error).__name__}: {error}") from error


def _observe(task: Task, ground: Ground) -> list[Observation]:
    if "program" in task:
        return Interpreter(ground.recover).run(Program.from_json(task["program"]))
    if "example" in task:
        return documented.observe(task["example"], ground)
    return samples.observe(task["sample"], ground)
