"""What decode steps cost, by their rows: as they count for the choice of capture sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import isfinite

import attrs

from tsgraph.errors import CallerError

EAGER = 2.0


@attrs.frozen(kw_only=True)
class Costs:
    """What a replay costs by its size, and an eager step: `eager` times a replay of its own size.

    `seconds`: of a replay by its size in rows, as measured. Between two of them costs are linear, below the smallest
    constant, above the largest in proportion to the rows. None: a replay costs its tokens.

    How much dearer eager steps are depends on the model and the rows: much where kernels are short, little where they
    are long. The default, 2, is for many rows, because it counts for batches that are larger than every size.

    Raises: CallerError for costs that cannot be.
    """

    seconds: Mapping[int, float] | None = None
    eager: float = EAGER

    def __attrs_post_init__(self) -> None:
        if not (isfinite(self.eager) and self.eager >= 1):
            raise CallerError(
                f"an eager step costs {self.eager} replays of its size", hint="give a finite factor, 1 or more"
            )
        if self.seconds is not None:
            _check_seconds(self.seconds)

    @property
    def unit(self) -> str:
        """What costs are counted in."""
        return "tokens" if self.seconds is None else "seconds"

    def of_replay(self, size: int, tokens_per_request: int) -> float:
        """A replay of `size` rows."""
        if self.seconds is None:
            return size * tokens_per_request
        sizes = sorted(self.seconds)
        above = bisect_left(sizes, size)
        if above == 0:
            return self.seconds[sizes[0]]
        lower = sizes[above - 1]
        if above == len(sizes):
            return self.seconds[lower] * size / lower
        rise = (self.seconds[sizes[above]] - self.seconds[lower]) / (sizes[above] - lower)
        return self.seconds[lower] + rise * (size - lower)

    def of_eager(self, rows: int, tokens_per_request: int) -> float:
        """An eager step of `rows` rows."""
        return self.eager * self.of_replay(rows, tokens_per_request)


def _check_seconds(seconds: Mapping[int, float]) -> None:
    if not seconds:
        raise CallerError("no size was measured", hint="give seconds by size")
    for size, took in seconds.items():
        if not (type(size) is int and size > 0 and type(took) in (int, float) and isfinite(took) and took > 0):
            raise CallerError(f"a replay of {size!r} rows took {took!r} seconds", hint="both are numbers above 0")
