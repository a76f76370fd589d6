"""What ranks agree on around captures: digests that every process computes alike, and the plan (rule R6)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from tsgraph.errors import RankDisagreement
from tsgraph.keys import Batch, SlotKey
from tsgraph.protocols.collaborators import Ranks

SETTLE_SECONDS = 300.0
"""How long the ranks may take to settle one point."""


def digest_of(*facts: object) -> int:
    """63 bits of `facts`, by what they print. Python's own hash of a text differs from process to process."""
    return int.from_bytes(blake2b(repr(facts).encode(), digest_size=8).digest()) >> 1


def digest_of_recording(key: SlotKey, batch: Batch) -> int:
    """What must be alike on every rank about the recording of `key`: its size, tokens, counts, words and buffers."""
    words = (batch.rows, batch.tokens, batch.mode.value, batch.full_hidden, batch.counts)
    return digest_of(tuple(key), words, sorted(batch.buffers))


def all_fit(ranks: Ranks | None, fits: bool) -> bool:
    """Whether graphs fit the budget on every rank: what one must capture anew, all do."""
    if ranks is None or ranks.count == 1:
        return fits
    return ranks.settle("graphs fit the budget", fits, digest_of("budget"), SETTLE_SECONDS) == "agreed"


def settle_plan(ranks: Ranks | None, keys: Sequence[SlotKey]) -> None:
    """Agree with the other ranks, if there are any, on which slots are captured, in which order.

    Raises: RankDisagreement where they plan other slots or another order: a collective of the first slot that differs
    would wait for ever.
    """
    if ranks is None or ranks.count == 1:
        return
    point = f"plan of {len(keys)} slots: {', '.join(map(str, keys))}"
    verdict = ranks.settle(point, True, digest_of(*map(tuple, keys)), SETTLE_SECONDS)
    if verdict != "agreed":
        raise RankDisagreement(f"the other ranks refuse the {point}", hint="see their logs; no slot has changed")
