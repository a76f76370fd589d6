"""Byte tokens, and a writer that draws what a matcher allows, at random."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tsgraph.grammar.bitmask import words_for

TOKENS: list[bytes | None] = [*(bytes([byte]) for byte in range(256)), None, None]
STOP = 257


def allowed_tokens(matcher: Any, vocabulary: int = len(TOKENS)) -> list[int]:
    """The tokens that a matcher allows next."""
    words = np.full(words_for(vocabulary), 0x55AA55AA, dtype=np.int32)  # garbage, all of which is to be written over
    matcher.fill(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:vocabulary]
    return [int(token) for token in np.flatnonzero(bits)]


def write(matcher: Any, seed: int, most: int = 500, vocabulary: int = len(TOKENS)) -> list[int]:
    """Tokens drawn from what is allowed, until the matcher terminates; at most `most`."""
    drawn = random.Random(seed)  # noqa: S311 -- a test's dice
    tokens: list[int] = []
    while not matcher.terminated and len(tokens) < most:
        tokens.append(drawn.choice(allowed_tokens(matcher, vocabulary)))
        assert matcher.accept(tokens[-1])
    return tokens


def text_of(tokens: list[int]) -> str:
    """The text of byte tokens, without specials."""
    return bytes(token for token in tokens if token < 256).decode("utf-8")
