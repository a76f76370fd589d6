"""Hostile values: what no result may be mistaken for, in every dtype."""

from __future__ import annotations

import pytest
import torch

from tsgraph.buffers.hostile import NAN_BYTES, hostile_value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_floats_are_nan(dtype: torch.dtype):
    """As a value, and as bytes of any origin."""
    assert torch.full((2,), hostile_value(dtype), dtype=dtype).isnan().all()
    bytes_of_two = torch.tensor(NAN_BYTES * dtype.itemsize, dtype=torch.uint8)
    assert bytes_of_two.view(dtype).isnan().all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_integers_are_no_index(dtype: torch.dtype):
    """They are far beyond any table, a clamp at 0 changes nothing, and no few of them sum up to 0."""
    hostile = torch.full((64,), hostile_value(dtype), dtype=dtype)
    assert torch.iinfo(dtype).max / 2 < hostile[0]
    assert hostile.cumsum(0, dtype=dtype).ne(0).all()


@pytest.mark.parametrize("pad", [False, True])
def test_booleans_are_what_the_pad_is_not(pad: bool):
    """There is no third value."""
    assert (not pad) == hostile_value(torch.bool, pad)
