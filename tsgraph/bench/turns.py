"""Several ways of doing one thing, timed in turns."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from statistics import median, quantiles
from time import perf_counter

import attrs

Action = Callable[[], object]
_WARM_UPS = 3


@attrs.frozen
class Timings:
    """Seconds of one call of each way, in each turn."""

    seconds: Mapping[str, Sequence[float]]

    def median(self, way: str) -> float:
        """Seconds that `way` takes."""
        return median(self.seconds[way])

    def spread(self, way: str) -> tuple[float, float]:
        """The quartiles of `way`, in seconds."""
        turns = self.seconds[way]
        if len(turns) < 2:
            return turns[0], turns[0]
        low, _, high = quantiles(turns, n=4, method="inclusive")
        return low, high

    def ratio(self, one: str, other: str) -> float:
        """The median of what `one` takes for each second of `other`, turn by turn."""
        return median(mine / theirs for mine, theirs in zip(self.seconds[one], self.seconds[other], strict=True))

    def excess(self, one: str, other: str) -> float:
        """The median of the seconds by which `one` takes longer than `other`, turn by turn."""
        return median(mine - theirs for mine, theirs in zip(self.seconds[one], self.seconds[other], strict=True))

    def figures(self) -> dict[str, dict[str, float]]:
        """Median and quartiles of each way, in seconds, as plain data."""
        keys = ("median", "low", "high")
        return {way: dict(zip(keys, (self.median(way), *self.spread(way)), strict=True)) for way in self.seconds}


def time_turns(
    ways: Mapping[str, Action],
    turns: int,
    *,
    calls: int = 1,
    settle: Action = lambda: None,
    clock: Callable[[], float] = perf_counter,
) -> Timings:
    """Time every way once a turn, after a few runs that do not count; who goes first changes every turn.

    A time is that of one of `calls` calls in a row. `settle` runs before each row, outside of what is timed: where
    calls only queue work, it waits for the device, so that no call waits for a queue that is full. The garbage
    collector rests meanwhile.
    """
    for action in ways.values():
        for _ in repeat(None, _WARM_UPS):
            action()
        settle()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with uncollected():
        for turn in range(turns):
            for way in _order(tuple(ways), turn):
                settle()
                seconds[way].append(_timed(ways[way], calls, clock))
    settle()
    return Timings(seconds)


def _order(ways: tuple[str, ...], turn: int) -> tuple[str, ...]:
    """Another first one every turn, and the other way round every second: nobody always comes after the same."""
    start = turn % len(ways)
    order = ways[start:] + ways[:start]
    return order[::-1] if turn % 2 else order


def _timed(action: Action, calls: int, clock: Callable[[], float]) -> float:
    began = clock()
    for _ in repeat(None, calls):
        action()
    return (clock() - began) / calls


@contextmanager
def uncollected() -> Iterator[None]:
    """Let the garbage collector rest for the block, after it has collected."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
