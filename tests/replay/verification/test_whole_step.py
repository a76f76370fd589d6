"""A whole decode step is verified: pages, pool rows, recurrent slots, a drafter, a queue. Planted faults are found."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.histories import Rows, Turn
from tests.faults.rig import Rig
from tests.faults.shape import CONTEXT, Shape
from tsgraph.replay.verification.report import VerifyReport
from tsgraph.testing.faults import plant

DECODE, SPECULATIVE = Shape(sizes=(3,)), Shape(spec="speculative", sizes=(3,))


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Everything alive is frozen once, so that the collections around each capture have little to walk."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def verified(shape: Shape, rows: tuple[int, ...]) -> VerifyReport:
    """What verification says of an engine of this shape: request i is in pool row i, and longer than the one before."""
    rig = Rig.build(shape)
    rig.parts.sampler.coins.fill_(0.5)

    def inputs(count: int) -> dict[str, Any]:
        lengths = tuple(min(CONTEXT, shape.tokens + 2 * row) for row in range(count))
        return Rows(shape, Turn(tuple(range(1, count + 1)), lengths), 1).sources()

    return rig.runtime.verify(inputs, rows=rows)


@pytest.mark.parametrize("shape", [DECODE, SPECULATIVE], ids=["decode", "speculative"])
def test_a_whole_step_is_right(shape: Shape):
    """Whatever came before, each way of serving it does the same."""
    verified(shape, (2, 3, 0)).raise_for_findings()


FOUND: dict[str, tuple[Shape, str, str]] = {
    "restore_skipped": (SPECULATIVE, "equality", "output['logprobs']"),
    "refresh_after_replay": (DECODE, "equality", "output['scanned']"),
    "draft_before_target": (SPECULATIVE, "equality", "output['draft']"),
    "stale_length_pad": (DECODE, "staging", "buffer seq_lens"),
    "live_state_row_as_pad": (DECODE, "sinks", "state lengths"),
    "live_cache_slot_as_pad": (DECODE, "isolation", "state keys"),
}
"""Faults of the library itself, and what must be found of them, whatever else is."""


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_fault_is_found(name: str):
    """Each by the check that it is for."""
    shape, check, thing = FOUND[name]
    with plant(name):
        report = verified(shape, (2, 0))
    assert (check, thing) in {(finding.check, finding.name) for finding in report.findings}
