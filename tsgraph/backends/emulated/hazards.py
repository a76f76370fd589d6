"""Happens-before over what a recording holds: which steps are ordered, and which touch memory without being ordered.

Each stream of a capture is a *lane*. A step knows, for every lane, how many of its steps are sure to be done when it
runs: its clock. Of two steps the one is ordered after the other if its clock counts the other in. Two steps of
different lanes that overlap in memory, one of them writing, must be ordered: on a GPU they may run at the same time.

Knows nothing of torch: memory is an address and a layout.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any, Protocol

import attrs
import numpy as np

Clock = Mapping[int, int]
_MAX_WORK = 100_000  # how long to look for a byte that two strided regions share before it is taken for granted


class Laid(Protocol):
    """A tensor, as far as its layout goes."""

    @property
    def shape(self) -> Sequence[int]:
        """Elements in each dimension."""

    def stride(self) -> Sequence[int]:
        """Elements from one to the next, in each dimension."""

    def data_ptr(self) -> int:
        """The address of its first element."""

    def element_size(self) -> int:
        """Bytes of an element."""


@attrs.frozen(slots=False)
class Region:
    """The bytes that a tensor covers: `itemsize` of them at `start` and at every stride (in bytes) from there."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, tensor: Laid) -> Region:
        """That of `tensor`."""
        size = tensor.element_size()
        return cls(tensor.data_ptr(), tuple(tensor.shape), tuple(stride * size for stride in tensor.stride()), size)

    @cached_property
    def end(self) -> int:
        """The first address after it. No stride of a tensor is negative."""
        if 0 in self.shape:
            return self.start
        steps = sum((count - 1) * stride for count, stride in zip(self.shape, self.strides, strict=True))
        return self.start + steps + self.itemsize

    def overlaps(self, other: Region) -> bool:
        """Whether they have a byte in common."""
        if self.start >= other.end or other.start >= self.end:
            return False
        try:
            return np.shares_memory(self._array, other._array, _MAX_WORK)  # type: ignore[arg-type]  # the stubs know of two
        except np.exceptions.TooHardError:
            return True

    @cached_property
    def _array(self) -> Any:
        return np.asarray(_Layout(self))


class _Layout:
    """A region as numpy takes it. Nothing is read: only addresses are compared."""

    def __init__(self, region: Region) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (region.start, True),
            "shape": region.shape,
            "strides": region.strides,
            "typestr": f"|V{region.itemsize}",
        }


@attrs.frozen
class Access:
    """A tensor that a step reads or writes. `what` describes it for people."""

    region: Region
    writes: bool
    what: str = ""


@attrs.frozen(eq=False)
class Step:
    """A recorded operation: the `place`-th of all, and the `count`-th of its lane. `stream` is the lane's name."""

    operation: str
    line: str
    lane: int
    stream: str
    place: int
    count: int
    clock: Clock

    def is_after(self, other: Step) -> bool:
        """Whether `other` is sure to be done when this one runs."""
        return self.clock.get(other.lane, 0) >= other.count

    def __str__(self) -> str:
        return f"{self.operation} at {self.line}, on {self.stream},"


@attrs.frozen
class Race:
    """Two steps that nothing orders, in the order in which the program has them, and what both touch."""

    first: Step
    second: Step
    verbs: tuple[str, str]
    what: str

    def __str__(self) -> str:
        reads, writes = self.verbs
        return f"{self.second} {writes} {self.what}, which {self.first} {reads}, and nothing orders the two"

    @property
    def fix(self) -> str:
        """The wait that is missing."""
        first, second = self.first.stream, self.second.stream
        return f"after the first, record an event on {first}, and make {second} wait for it before the second"


class Timeline:
    """The steps of one recording as they come, with the waits between their lanes."""

    def __init__(self) -> None:
        self._clocks: dict[int, dict[int, int]] = defaultdict(dict)
        self._last: dict[int, Step] = {}
        self._count = 0
        self._touched: dict[Region, _Touches] = {}

    @property
    def lanes(self) -> int:
        """How many lanes have steps."""
        return len(self._last)

    def clock(self, lane: int) -> Clock:
        """What is sure to be done where `lane` is now: what an event recorded there stands for."""
        return dict(self._clocks[lane])

    def wait(self, lane: int, clock: Clock) -> None:
        """The next steps of `lane` come after all that `clock` counts."""
        mine = self._clocks[lane]
        for other, count in clock.items():
            mine[other] = max(mine.get(other, 0), count)

    def append(self, lane: int, stream: str, operation: str, line: str, accesses: Iterable[Access]) -> None:
        """The next step of `lane`."""
        clock = self._clocks[lane]
        clock[lane] = clock.get(lane, 0) + 1
        step = Step(operation, line, lane, stream, self._count, clock[lane], dict(clock))
        self._count += 1
        self._last[lane] = step
        for access in accesses:
            self._touched.setdefault(access.region, _Touches(access.region)).add(step, access)

    def loose_end(self, lane: int) -> Step | None:
        """The newest step that is not sure to be done where `lane` is now."""
        clock = self._clocks[lane]
        loose = [step for step in self._last.values() if clock.get(step.lane, 0) < step.count]
        return max(loose, key=lambda step: step.place, default=None)

    def race(self) -> Race | None:
        """The first two steps that overlap in memory without an order, one of them writing; None if all is well.

        Of all such pairs, the one whose second step comes first. Costs nothing where there is but one lane.
        """
        if self.lanes < 2:
            return None
        races = (race for one, other in self._overlaps() for race in one.races(other))
        return min(races, key=lambda race: (race.second.place, race.first.place), default=None)

    def _overlaps(self) -> Iterator[tuple[_Touches, _Touches]]:
        """Each pair of regions that share a byte, once, every region with itself among them."""
        open_: list[_Touches] = []
        for touches in sorted(self._touched.values(), key=lambda each: each.region.start):
            open_ = [each for each in open_ if each.region.end > touches.region.start]
            yield touches, touches
            yield from ((each, touches) for each in open_ if each.region.overlaps(touches.region))
            open_.append(touches)


class _Touches:
    """Who touches a region: the steps of each lane, those that read and those that write."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._steps: dict[tuple[int, bool], list[Step]] = defaultdict(list)
        self._what = ""

    def add(self, step: Step, access: Access) -> None:
        """`step` touches it."""
        self._what = self._what or access.what
        self._steps[step.lane, access.writes].append(step)

    def races(self, other: _Touches) -> Iterator[Race]:
        """Pairs of steps, one of each, that nothing orders; for each pair of lanes the earliest are among them."""
        for ((one, writes), mine), ((two, also), theirs) in product(self._steps.items(), other._steps.items()):
            if one != two and (writes or also):
                yield from self._between(mine, theirs, writes, also)

    def _between(self, mine: list[Step], theirs: list[Step], writes: bool, also: bool) -> Iterator[Race]:
        for step in theirs:
            done = step.clock.get(mine[0].lane, 0)
            at = bisect_right(mine, done, key=lambda each: each.count)
            # Of the steps that `step` does not wait for, the first waits for the least: if it is ordered, so are all.
            if at < len(mine) and not mine[at].is_after(step):
                yield self._race((mine[at], writes), (step, also))

    def _race(self, *pair: tuple[Step, bool]) -> Race:
        (first, reads), (second, writes) = sorted(pair, key=lambda each: each[0].place)
        verbs = ("writes" if reads else "reads", "writes" if writes else "reads")
        return Race(first, second, verbs, self._what)
