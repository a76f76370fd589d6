"""Operators drawn from torch's own database: a replay gives eager's bits, or the recording refuses for a listed reason.

One input of each operator and dtype by default, about half of them in inference mode; all of them, in both modes, with
`TSGRAPH_PROFILE=soak`.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, count
from typing import Any

import pytest
import torch
from hypothesis import settings

from tests.backends.op_check import assert_equal, check, refusals
from tests.fidelity.op_samples import DTYPES, PER_OPERATOR, Sample, database, samples
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.dispatcher import unseen_by_operators

EVERYTHING = os.environ.get("TSGRAPH_PROFILE") == "soak"
LIMITS = dict.fromkeys(DTYPES, PER_OPERATOR) if EVERYTHING else {torch.float32: 2, torch.int64: 1}
PARTS = 16


@pytest.mark.no_cover
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_replay_as_eager(part: int) -> None:
    """Each call of these operators replays on fresh inputs as eager, or is refused as the table says."""

    def wanted(operator: str) -> bool:
        return zlib.crc32(operator.partition(" ")[0].encode()) % PARTS == part

    def drawn(salt: int) -> Iterator[Sample]:
        return chain.from_iterable(samples(wanted, [dtype], limit, salt) for dtype, limit in LIMITS.items())

    refused: dict[str, set[str]] = defaultdict(set)
    listed = refusals()
    fresh = {each.name: each for each in drawn(salt=1)}
    for number, call in enumerate(drawn(salt=0)):
        for inference in (False, True) if EVERYTHING else (number % 2 == 1,):
            outcome = check(call, fresh.get(call.name), inference)
            assert outcome.kind != "refused" or outcome.reason in listed.get(call.entry, ()), (call.name, outcome)
            refused[call.entry] |= {outcome.reason} - {""}
    if EVERYTHING:
        assert {entry: reasons for entry, reasons in listed.items() if wanted(entry)} == {
            entry: reasons for entry, reasons in refused.items() if reasons
        }


FORMER_FAULTS = [
    "matmul out",  # reshapes what it is given, and puts the shape back
    "nn_functional_binary_cross_entropy",  # this loss and the next resize what they are given
    "nn_functional_huber_loss",
    "nn_functional_mse_loss",
    "nn_functional_smooth_l1_loss",
    "nn_functional_soft_margin_loss",
    "nn_functional_max_unpool2d",  # wrong where the output is not laid out as the input
]


@pytest.mark.parametrize("operator", FORMER_FAULTS)
def test_former_faults_stay_away(operator: str) -> None:
    """All calls of operators that once gave other values on the second replay, or were refused without need."""
    for call in samples(operator.__eq__, (torch.float32,), limit=50):
        assert "equal" == check(call, None, inference=False).kind, call.name


@pytest.mark.parametrize("form", [("cpu",), (torch.device("cpu"), torch.float32, True, True)], ids=["to", "from"])
def test_to_takes_a_copy_argument(form: Any) -> None:
    """`to(…, copy=True)` between host and device is a copy like any other, by keyword and by place."""
    backend = EmulatedBackend()
    x = backend.allocate((2,), torch.float32, 1) if form == ("cpu",) else backend.pin((2,), torch.float32)
    keywords: Any = {"non_blocking": True, "copy": True} if form == ("cpu",) else {}
    with backend.record(backend.pool()) as graph:
        made = x.to(*form, **keywords)
    x.fill_(3)
    graph.replay()
    assert [3, 3] == made.tolist()


def test_the_database_leaves_no_trace() -> None:
    """Torch's test code loads a profile of hypothesis and locks torch's flags; here it does neither."""
    profile = settings.get_current_profile_name()
    database()
    assert profile == settings.get_current_profile_name()
    torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark


def test_the_same_calls_are_drawn_each_time() -> None:
    """Inputs depend on the name alone, and drawing leaves no trace in the global random numbers."""
    before = torch.get_rng_state()
    first, second = (list(samples("add out".__eq__, limit=3)) for _ in range(2))
    assert len(first) == len(second) > 3
    for one, other in zip(first, second, strict=True):
        assert one.name == other.name
        assert_equal((one.args, one.kwargs), (other.args, other.kwargs), one.entry)
    assert torch.equal(before, torch.get_rng_state())


def test_a_wrong_replay_is_noticed() -> None:
    """A call that gives other values when it is replayed, here since it counts its calls in Python, is a failure."""
    calls = count()
    wrong = Sample("wrong", "wrong", lambda x: x + next(calls), (torch.ones(3),), {})
    with pytest.raises(AssertionError, match="leaf 0"):
        check(wrong, None, inference=False)


def test_a_recording_that_runs_kernels_is_noticed() -> None:
    """A call that changes its input while it is recorded is a failure."""
    x = torch.ones(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        with unseen_by_operators():
            return x.add_(1)

    with pytest.raises(AssertionError, match="the recording changed its inputs"):
        check(Sample("wrong", "wrong", step, (x,), {}), None, inference=False)
