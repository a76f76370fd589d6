"""Which batches an engine served: how many decode steps had so many live rows, variant by variant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs

from tsgraph.errors import CallerError
from tsgraph.keys import DEFAULT_VARIANT

MOST = 2**53
"""The largest count: work is computed in floating point."""


def _ordered(steps: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
    """Copies, the default variant first and always there (R4), each by increasing rows."""
    names = dict.fromkeys((DEFAULT_VARIANT, *steps))
    return {name: dict(sorted(steps.get(name, {}).items())) for name in names}


@attrs.frozen(kw_only=True)
class Histogram:
    """Decode steps that were observed. `steps`: for each variant, the number of steps by their live rows.

    `tokens_per_request`: tokens that each row carries (the width of speculation). `notes`: what is to be known about
    where it comes from, as sentences. `slots`: what its runtime told of the slots that it has, if one did.

    Raises: CallerError where rows or steps are no counts, or no step has a row.
    """

    steps: Mapping[str, Mapping[int, int]] = attrs.field(converter=_ordered)
    tokens_per_request: int = 1
    notes: tuple[str, ...] = ()
    slots: tuple[Mapping[str, Any], ...] = ()

    def __attrs_post_init__(self) -> None:
        if type(self.tokens_per_request) is not int or self.tokens_per_request < 1:
            raise CallerError(f"tokens per request must be a positive whole number, not {self.tokens_per_request!r}")
        for variant, by_rows in self.steps.items():
            _check_counts(variant, by_rows)
        if not any(self.total):
            raise CallerError("no decode step with a row was observed", hint="give the live rows of an engine's steps")

    @classmethod
    def of(cls, steps: Mapping[int, int], *, tokens_per_request: int = 1) -> Histogram:
        """The histogram of an engine without variants."""
        return cls(steps={DEFAULT_VARIANT: steps}, tokens_per_request=tokens_per_request)

    @property
    def total(self) -> Mapping[int, int]:
        """Steps of all variants by their rows, increasing; rows that no step had are left out."""
        total: Counter[int] = Counter()
        for by_rows in self.steps.values():
            total.update(by_rows)
        return {rows: total[rows] for rows in sorted(total) if total[rows]}

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants, the default first."""
        return tuple(self.steps)


def _check_counts(variant: str, by_rows: Mapping[int, int]) -> None:
    for rows, steps in by_rows.items():
        if not all(type(number) is int and 0 <= number <= MOST for number in (rows, steps)):
            what = f"variant {variant!r}: {repr(steps)[:40]} steps of {repr(rows)[:40]} rows are not two counts"
            raise CallerError(what, hint=f"rows and steps are whole numbers from 0 to {MOST}")
