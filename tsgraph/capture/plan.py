"""Which slots are captured, in which order: the same on every rank (rule R6)."""

from __future__ import annotations

from collections.abc import Sequence

from tsgraph.keys import DEFAULT_VARIANT, SlotKey


def plan_capture(sizes: Sequence[int], variants: Sequence[str], *, largest_first: bool) -> tuple[SlotKey, ...]:
    """Every (variant, size), the default variant first within a size.

    Largest first lets every later graph live in memory that the first one has left in the pool: the pool is then as
    large as its largest graph, where ascending order makes it the sum of them all (fault M1).
    """
    ordered = sorted(sizes, reverse=largest_first)
    return tuple(SlotKey(variant, size) for size in ordered for variant in with_default(variants))


def with_default(variants: Sequence[str]) -> tuple[str, ...]:
    """`variants` without repeats, the default one first and always there (rule R4)."""
    return tuple(dict.fromkeys((DEFAULT_VARIANT, *variants)))
