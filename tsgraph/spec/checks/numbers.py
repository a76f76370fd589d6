"""Sizes and warm-ups: R1 and counts that mean something."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tsgraph.spec.model import Spec


def check_numbers(spec: Spec) -> Iterator[str]:
    """R1: sizes are there, strictly increasing, above 0 and within the cap."""
    if spec.version < 1:
        yield f"version: {spec.version} is no version; the first is 1"
    if spec.warmup.forwards < 0:
        yield f"warmup.forwards: {spec.warmup.forwards} is no number of forwards"
    for key in ("default", "default_without_padding"):
        yield from _sizes(f"sizes.{key}", getattr(spec.sizes, key), spec.sizes.cap)


def _sizes(at: str, sizes: tuple[int, ...], cap: int) -> Iterator[str]:
    if not sizes:
        yield f"{at}: has no size, so that nothing would be captured (R1)"
    for size in sizes:
        if size < 1:
            yield f"{at}: {size} is no size; sizes are above 0 (R1)"
        elif size > cap:
            yield f"{at}: {size} is above the cap {cap} (R1)"
    for before, after in pairwise(sizes):
        if after <= before:
            yield f"{at}: {after} comes after {before}; sizes increase strictly (R1)"
