"""Readings: nested tensors compared bit by bit and by address, and the first difference told in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tsgraph.testing.conformance.readings import difference, moved, places_of

NAN = float("nan")


@pytest.mark.parametrize(
    "tree",
    [
        (),
        None,
        {"a": torch.tensor([NAN, 0.0]), "b": [torch.zeros(0), 3]},
        torch.tensor([True, False]),
        torch.ones(3, 2).t(),
        torch.tensor(2, dtype=torch.bfloat16),
    ],
)
def test_what_is_alike_has_no_difference(tree: Any):
    """NaN is alike NaN, and no tensor need be dense or have a dimension."""
    assert difference(tree, tree) is None
    assert moved(places_of(tree), places_of(tree)) is None


@pytest.mark.parametrize(
    ("expected", "got", "told"),
    [
        ([1], [2], "2 instead of 1 at [0]"),
        ([1], (1,), "another structure"),
        ({"a": 1}, {"a": 1, "b": 2}, "another structure"),
        (torch.zeros(2), torch.zeros(3), r"torch.float32 of shape (3,) instead of torch.float32 of shape (2,)"),
        (torch.zeros(2), torch.zeros(2).int(), "torch.int32 of shape (2,) instead of torch.float32 of shape (2,)"),
        (torch.zeros(2), torch.tensor([0.0, NAN]), "[0.0, nan] instead of [0.0, 0.0]"),
        (torch.zeros(1), -torch.zeros(1), "[-0.0] instead of [0.0]"),
        ({"a": torch.zeros(9)}, {"a": torch.ones(9)}, "other values of torch.float32 of shape (9,)"),
        ([torch.zeros(1)], [0], "0 instead of tensor([0.]) at [0]"),
    ],
)
def test_the_first_difference_is_told(expected: Any, got: Any, told: str):
    """With its place where there is one."""
    assert told in str(difference(expected, got))


def test_moves_are_told():
    """Another address, another layout at the same address, or another number of tensors."""
    x = torch.zeros(4)
    before = places_of({"x": x, "n": 1})
    assert "another address for tensor 0" == moved(before, places_of(x.clone()))
    assert "another shape, stride or dtype for tensor 0" == moved(before, places_of(x[:2]))
    assert "2 tensors instead of 1" == moved(before, places_of([x, x]))
