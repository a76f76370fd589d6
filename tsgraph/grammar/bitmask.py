"""Bitmask rows: 32 tokens a word, the lowest bit first, -1 where all are allowed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tsgraph.protocols.matching import Words

BITS = 32
ALL = -1
"""A word that allows all of its tokens."""


def words_for(vocabulary: int) -> int:
    """The words of a row over `vocabulary` tokens."""
    return -(-vocabulary // BITS)


def pack(allowed: NDArray[np.bool_]) -> Words:
    """Rows of words from `allowed` [.., vocabulary]: [.., words] int32. Bits beyond the vocabulary are 0."""
    spare = words_for(allowed.shape[-1]) * BITS - allowed.shape[-1]
    widened = np.pad(allowed, [*[(0, 0)] * (allowed.ndim - 1), (0, spare)])
    return np.packbits(widened, axis=-1, bitorder="little").view("<i4").astype(np.int32)


def only(tokens: Iterable[int], vocabulary: int) -> Words:
    """A row that allows `tokens` alone, [words] int32."""
    allowed = np.zeros(vocabulary, dtype=np.bool_)
    allowed[list(tokens)] = True
    return pack(allowed)


def allowed_by(mask: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Which tokens the rows of `mask` [rows, words] int32 allow, [rows, vocabulary] bool. May be recorded."""
    bit = torch.arange(BITS, dtype=torch.int32, device=mask.device)
    return ((mask[:, :, None] >> bit) & 1).flatten(1)[:, :vocabulary] != 0


def apply_mask(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`logits` [rows, vocabulary] with the lowest finite number wherever `mask` [rows, words] forbids the token.

    Not -inf: a row that allows nothing stays a number throughout, and differences of masked logits are 0.
    """
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(~allowed_by(mask, logits.shape[1]), lowest)
