"""Bitmask rows: 32 tokens a word, the lowest bit first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tsgraph.grammar.bitmask import allowed_by, apply_mask, only, pack, words_for


@pytest.mark.parametrize(("vocabulary", "words"), [(1, 1), (32, 1), (33, 2), (258, 9)])
def test_words_of_a_row(vocabulary: int, words: int):
    """As many words as hold the vocabulary."""
    assert words == words_for(vocabulary)


def test_lowest_bit_first():
    """Token t is bit t % 32 of word t // 32, the sign bit included."""
    assert [1 | 1 << 5, 1 << 2] == only([0, 5, 34], 40).tolist()
    assert [-(2**31)] == only([31], 32).tolist()


@given(allowed=arrays.arrays(np.bool_, st.tuples(st.integers(1, 3), st.integers(1, 70))))
def test_what_is_packed_is_allowed(allowed: Any):
    """Packing and reading on the device are each other's opposite, for any vocabulary."""
    mask = torch.from_numpy(pack(allowed))
    assert allowed.tolist() == allowed_by(mask, allowed.shape[1]).tolist()


def test_all_ones_allow_all_and_nothing_stays_a_number():
    """-1 leaves logits as they are; a row that allows nothing is finite, and a softmax of it is a number."""
    logits = torch.randn(2, 40)
    masked = apply_mask(logits, torch.tensor([[-1, -1], [0, 0]], dtype=torch.int32))
    assert torch.equal(logits[0], masked[0])
    assert torch.isfinite(masked).all()
    assert torch.isfinite(masked.softmax(-1)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_forbidden_tokens_lose(dtype: torch.dtype):
    """The best allowed token wins, in every dtype of logits."""
    logits = torch.arange(40, dtype=dtype)[None]
    assert 34 == int(apply_mask(logits, torch.from_numpy(only([3, 34], 40))[None]).argmax())
