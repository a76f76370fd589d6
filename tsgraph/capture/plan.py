"""Which slots are captured, in which order: the same on every rank (rule R6)."""

from __future__ import annotations

from collections.abc import Sequence

from tsgraph.keys import DEFAULT_VARIANT, SlotKey


def plan_capture(
    sizes: Sequence[int], variants: Sequence[str], *, largest_first: bool, by_variant: bool = False
) -> tuple[SlotKey, ...]:
    """Every (variant, size), the default variant first: within each size, or (`by_variant`) with all its sizes.

    Largest first lets every later graph live in memory that the first one has left in the pool: the pool is then as
    large as its largest graph, where ascending order makes it the sum of them all (fault M1).
    """
    ordered = sorted(sizes, reverse=largest_first)
    if by_variant:
        return tuple(SlotKey(variant, size) for variant in with_default(variants) for size in ordered)
    return tuple(SlotKey(variant, size) for size in ordered for variant in with_default(variants))


def with_default(variants: Sequence[str]) -> tuple[str, ...]:
    """`variants` without repeats, the default one first and always there (rule R4)."""
    return tuple(dict.fromkeys((DEFAULT_VARIANT, *variants)))
