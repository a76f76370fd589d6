"""The emulation does what a GPU did: every kind of program that CI keeps of a recording, run again."""

from __future__ import annotations

import functools

import pytest

from tests.fidelity.comparison import explanations
from tests.fidelity.golden import GOLDEN
from tests.fidelity.grounds import Emulated
from tests.fidelity.recording import Recording
from tests.fidelity.report import compare_item
from tests.fidelity.tasks import kind_of, perform, prepare, task_of, title

MOST_BYTES = 480_000


@functools.cache
def golden() -> Recording:
    """What was recorded on the GPU."""
    return Recording.load(GOLDEN)


KINDS = sorted({kind_of(item) for item in golden().items})


@pytest.mark.parametrize("kind", KINDS)
def test_the_emulation_does_what_the_gpu_did(kind: str) -> None:
    """No observation differs from the GPU's without an explanation in `explained.toml`."""
    items, table, differences = [item for item in golden().items if kind_of(item) == kind], explanations(), []
    prepare([task_of(item) for item in items])
    for item in items:
        outcome = compare_item(item, perform(task_of(item), Emulated()), table)
        differences += [f"{title(item)}: {each}" for each in outcome.unexplained]
    assert differences == []


def test_the_golden_file_is_small_and_of_a_gpu() -> None:
    """It was recorded on a CUDA device, and is no burden to the repository."""
    assert golden().made["ground"] == "cuda"
    assert GOLDEN.stat().st_size <= MOST_BYTES
