"""Two things timed in turns."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import attrs

Action = Callable[[], object]
_WARM_UPS = 3


@attrs.frozen
class Pairs:
    """Seconds of `one` and of `other` in each turn."""

    one: tuple[float, ...]
    other: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median of what `one` takes for each second of `other`, turn by turn."""
        return median(mine / theirs for mine, theirs in zip(self.one, self.other, strict=True))

    @property
    def medians(self) -> tuple[float, float]:
        """Those of both, in seconds."""
        return median(self.one), median(self.other)


def time_pairs(one: Action, other: Action, turns: int, clock: Callable[[], float] = perf_counter) -> Pairs:
    """Time both, `turns` times in turn, after a few runs that do not count. Who goes first changes every turn."""
    for _ in range(_WARM_UPS):
        one()
        other()
    ones: list[float] = []
    others: list[float] = []
    for turn in range(turns):
        for action, seconds in ((one, ones), (other, others))[:: 1 if turn % 2 else -1]:
            began = clock()
            action()
            seconds.append(clock() - began)
    return Pairs(tuple(ones), tuple(others))
