"""An estimate of which batches the slots of a snapshot served.

A slot counts its replays and the pad rows that they computed. So the mean of its live rows is known, and that they are
more than the next smaller size. Of all spreads over these rows with that mean, the one of most entropy assumes least:
its weights are a geometric progression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import exp
from typing import Any

from tsgraph.dispatch.snapshot import slot_facts

_STEEPEST = 40.0  # of the exponent for each row: all steps have the same rows then
_HALVINGS = 60


def estimated_steps(slots: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, int]]:
    """For each variant of a snapshot's `slots`, steps by live rows. Each slot's replays are spread over its rows.

    Raises: CallerError where a slot lacks its variant, size, replays or pad rows.
    """
    facts = sorted(slot_facts(slots, "variant", "size", "replays", "pad_rows"))
    steps: dict[str, dict[int, int]] = {variant: {} for variant, *_ in facts}
    below: dict[str, int] = {}
    for variant, size, replays, pad_rows in facts:
        if replays:
            least = min(below.get(variant, 0) + 1, size)
            steps[variant] |= _spread(replays, size - pad_rows / replays, least, size)
        below[variant] = size
    return steps


def _spread(steps: int, mean: float, least: int, most: int) -> dict[int, int]:
    """`steps` over the rows from `least` to `most`, about `mean`, in whole numbers that sum to them."""
    weights = _weights(mean, range(least, most + 1))
    shares = accumulate(weights)
    whole = [0, *(round(steps * share / sum(weights)) for share in shares)]
    return {least + place: whole[place + 1] - whole[place] for place in range(len(weights))}


def _weights(mean: float, rows: range) -> list[float]:
    """A geometric progression over `rows` whose mean is `mean`, by bisection of its exponent."""
    low, high = -_STEEPEST, _STEEPEST
    for _ in range(_HALVINGS):
        steepness = (low + high) / 2
        weights = _progression(steepness, len(rows))
        if sum(weight * each for weight, each in zip(weights, rows, strict=True)) < mean * sum(weights):
            low = steepness
        else:
            high = steepness
    return _progression((low + high) / 2, len(rows))


def _progression(steepness: float, length: int) -> list[float]:
    """Its largest element is 1, so that no power overflows."""
    return [exp(steepness * (place - (length - 1 if steepness > 0 else 0))) for place in range(length)]
