"""What sources are the same, and what a caller's are afterwards."""

from __future__ import annotations

import pytest
import torch

from tsgraph.replay.verification.runs import same, unchanged

ONE = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (ONE, ONE.clone(), True),
        (ONE, ONE + 1, False),
        (ONE, ONE[:1], False),
        ({"full": ONE}, {"full": ONE.clone()}, True),
        ({"full": ONE}, {"full": ONE + 1}, False),
        ({"full": ONE}, {"window": ONE}, False),
        ({"full": ONE}, ONE, False),
        (None, None, True),
        (ONE, torch.empty(2, device="meta"), False),
    ],
)
def test_sources_are_the_same_bit_by_bit(one: object, other: object, expected: bool):
    """Tensors or groups of them, and what is neither by identity."""
    assert expected == same(one, other)


def test_a_source_that_the_block_changed_is_told():
    """By its name, also one group of it; none, mostly."""
    sources, told = {"ids": ONE.clone(), "tables": {"full": ONE.clone()}, "same": ONE.clone()}, list[list[str]]()
    with unchanged(sources, told.append):
        pass
    with unchanged(sources, told.append):
        sources["ids"][0] = 5
        sources["tables"]["full"][1] = 5
    assert [[], ["ids", "tables"]] == told
