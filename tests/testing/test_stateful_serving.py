"""The machine over a runtime: a right step passes, faults are found, and their programs show them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from tsgraph.backends.emulated import staging as kernel
from tsgraph.buffers.contract import Rows, State
from tsgraph.runtime import GraphRuntime
from tsgraph.slots.outputs import Outputs
from tsgraph.testing import Values, find, fuzz, runtime_machine
from tsgraph.testing.stateful import shrink

VALUES = {"account": Values(1, 8, distinct=True), "amount": (-100, 100)}
SHORT = settings(max_examples=5, stateful_step_count=15, derandomize=True, database=None, deadline=None)
GATE = settings(max_examples=100, stateful_step_count=20, derandomize=True, database=None, deadline=None)


def make_runtime(pad=0, **policy):
    """Accounts with running totals; pad rows pay into `pad`."""
    totals = torch.zeros(9)

    def deposit(account, amount):
        totals.index_add_(0, account, amount)
        return totals[account]

    return GraphRuntime.for_step(
        deposit,
        inputs={"account": Rows(torch.int64, pad=pad), "amount": Rows(torch.float32, pad=1.0)},
        state={"totals": State(totals, sink=pad)},
        outputs="request",
        sizes=(2, 4),
        backend="emulated",
        policy=policy,
        observers=(),
    )


def run(program):
    """Run a printed program as a file of its own."""
    exec(compile(program, "program", "exec"), {"make_runtime": make_runtime})  # noqa: S102  it was just made


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Finds are made a little shorter only."""
    monkeypatch.setattr(shrink, "SECONDS", 1.0)


FAULTS = {
    "a tail is stale": (kernel, "_fill_tail", lambda *_: None),
    "outputs are not cut": (Outputs, "cut", lambda self, live: self.leaves[0]),
}


def test_right_step_passes():
    """Nothing is found behind a runtime whose pads point at a sink."""
    fuzz(make_runtime, VALUES, SHORT)


@pytest.mark.parametrize("policy", ["eager", "raise"])
def test_right_step_passes_with_slots_captured_on_demand(policy):
    """Nor where a step has the slot captured that it wants, however often slots are released, woken and stale."""
    fuzz(lambda: make_runtime(capture="lazy", on_capture_failure=policy, freeze_gc=False), VALUES, SHORT)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault, monkeypatch):
    """A fault of the runtime is found, and the program of the find fails with it and passes without it."""
    with monkeypatch.context() as planted:
        planted.setattr(*FAULTS[fault])
        found = find(runtime_machine(make_runtime, VALUES), GATE, shrink=fault == "a tail is stale")
        with pytest.raises(AssertionError):
            run(found.program)

    run(found.program)


def test_fault_of_the_step_is_raised_and_printed(capsys):
    """Where pad rows write what live rows read, `fuzz` prints a program and raises its last line's error."""
    with pytest.raises(AssertionError, match="pad rows have changed outputs of live rows"):
        fuzz(lambda: make_runtime(pad=3), VALUES, GATE)

    assert "\nruntime = make_runtime()\n" in capsys.readouterr().out
