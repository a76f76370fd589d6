"""What a soak runs: machines over lives and runtimes, and the properties that the planted faults are found by."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
import hypothesis
import hypothesis.core
import torch
from hypothesis import HealthCheck, given

from tests.faults.properties import PROPERTIES, Property
from tsgraph.buffers.contract import Rows, State
from tsgraph.runtime import GraphRuntime
from tsgraph.testing import Values, find, machine_for, runtime_machine

STEPS = 25
"""Actions of one example of a machine, at most."""


@attrs.frozen
class Outcome:
    """What came of one job: `examples` that were tried, in `seconds`, and the find as text ("": none)."""

    job: str
    seed: int
    examples: int
    seconds: float
    find: str


@attrs.define
class _Counted:
    """Counts its calls."""

    check: Callable[[Any], None]
    calls: int = 0

    def __call__(self, example: Any) -> None:
        self.calls += 1
        self.check(example)


def _settings(examples: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )


def _lives(spec: str, examples: int) -> tuple[int, str]:
    found = find(machine_for(spec), _settings(examples))
    return examples, "" if found is None else str(found)


def _deposit(backend: str = "emulated") -> GraphRuntime:
    totals = torch.zeros(9)

    def deposit(account: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
        totals.index_add_(0, account, amount)
        return totals[account]

    return GraphRuntime.for_step(
        deposit,
        inputs={"account": Rows(torch.int64, pad=0), "amount": Rows(torch.float32, pad=1.0)},
        state={"totals": State(totals, sink=0)},
        outputs="request",
        sizes=(2, 4),
        backend=backend,
        observers=(),
    )


def _serving(examples: int) -> tuple[int, str]:
    values: dict[str, Values | tuple[float, float]] = {"account": Values(1, 8, distinct=True), "amount": (-100, 100)}
    found = find(runtime_machine(_deposit, values), _settings(examples))
    return examples, "" if found is None else str(found)


def _holds(prop: Property[Any], examples: int) -> tuple[int, str]:
    counted = _Counted(prop.check)
    try:
        _settings(examples)(given(prop.strategy)(lambda example: counted(example)))()  # noqa: PLW0108  needs a name
    except Exception:  # noqa: BLE001  whatever it is, it is a find
        return counted.calls, traceback.format_exc()
    return counted.calls, ""


JOBS: Mapping[str, Callable[[int], tuple[int, str]]] = {
    "lives of decode": lambda examples: _lives("decode", examples),
    "lives of speculative": lambda examples: _lives("speculative", examples),
    "lives of reference": lambda examples: _lives("reference", examples),
    "a runtime that serves": _serving,
    **{prop.name: partial(_holds, prop) for prop in PROPERTIES},
}
SHARES: Mapping[str, int] = {
    "lives of decode": 25,
    "lives of speculative": 8,
    "lives of reference": 7,
    "a runtime that serves": 1,
    "where a step goes": 40,
    "sizes": 8,
    "what a call refuses": 6,
    "pads, without a graph": 3,
    "rows, pads and state": 1,
    "a captured runtime's calls": 1,
}
"""Of a hundred examples, how many each gets. What takes seconds an example is left to the planted-fault stage."""


def run(job: str, seed: int, examples: int) -> Outcome:
    """Run `job` with its own seed."""
    hypothesis.core.global_force_seed = seed  # type: ignore[assignment]  # what `pytest --hypothesis-seed` sets
    torch.set_num_threads(1)
    began = time.perf_counter()
    tried, found = JOBS[job](examples)
    return Outcome(job, seed, tried, time.perf_counter() - began, found)
