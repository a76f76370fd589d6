"""The cheapest chain whose sizes come to no more than there is room for, exactly.

How much room there is depends on a chain's length and on its last candidate. For each such pair a toll on every unit of
size gives a lower bound: the cheapest chain with that toll, less the toll of the whole room (Lagrange). The pair with
the lowest bound is looked at first. Its toll is moved to where the chains on either side of the limit cost the same
(Handler and Zang, Networks 10, 1980), which sharpens the bounds of all pairs. Where that gains nothing more, what is
left between bound and best is searched, best bound first, from the last candidate back to the first.

Every chain that could be cheaper than the best one is looked at, so the result is exact. How long that takes depends on
how many those are; where the room is endless or none, one pass over the layers is all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import attrs

from tsgraph.dispatch.chains import Chains, Layer, traced

Pair = tuple[int, int]
"""The length and the last candidate of a chain."""

_ROUNDING = 1e-12  # two costs this near, relatively, are equal but for the order in which they were summed


class _Found(NamedTuple):
    cost: float
    size: float
    chain: tuple[int, ...]


_NOTHING = _Found(inf, 0, ())


class _End(NamedTuple):
    """The end of a chain, from `candidate` on: what it costs beside `enter` of that, and the room for those before."""

    bound: float
    cost: float
    room: float
    length: int
    candidate: int
    tail: tuple[int, ...]


def cheapest_within(
    chains: Chains, most: int, sizes: Sequence[int], room: Callable[[int, int], float]
) -> tuple[int, ...] | None:
    """The cheapest chain of at most `most` candidates whose `sizes`, increasing, sum to `room(length, last)` at most.

    None where there is room for no chain.
    """
    search = _Search(chains, sizes, dict(_rooms(sizes, min(most, len(sizes)), room)))
    search.run()
    return search.best.chain or None


def _rooms(sizes: Sequence[int], most: int, room: Callable[[int, int], float]) -> Iterator[tuple[Pair, float]]:
    """The pairs that some chain has room for, with the room that it can use."""
    for length in range(1, most + 1):
        least = sum(sizes[: length - 1])
        for last in range(length - 1, len(sizes)):
            if room(length, last) >= least + sizes[last]:
                yield (length, last), min(room(length, last), sum(sizes))


@attrs.define
class _Search:
    chains: Chains
    sizes: Sequence[int]
    room: dict[Pair, float]
    best: _Found = _NOTHING
    bounds: dict[Pair, float] = attrs.field(init=False)
    around: dict[Pair, tuple[_Found, _Found]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.bounds = dict.fromkeys(self.room, -inf)

    def run(self) -> None:
        """Look at pairs until none can beat the best chain."""
        free = self._raise_bounds(0) if self.bounds else []
        while self.bounds:
            pair = min(self.bounds, key=self.bounds.__getitem__)
            if pair in self.around:
                self._sharpen(pair)
            else:
                self._begin(pair, free)

    def _beats(self, bound: float) -> bool:
        return bound < self.best.cost - _ROUNDING * abs(bound)

    def _offer(self, chain: tuple[int, ...]) -> _Found:
        found = _Found(self.chains.cost(chain), sum(self.sizes[candidate] for candidate in chain), chain)
        if found.size <= self.room[len(chain), chain[-1]] and self._beats(found.cost):
            self.best = found
            self.bounds = {pair: bound for pair, bound in self.bounds.items() if self._beats(bound)}
        return found

    def _raise_bounds(self, toll: float) -> list[Layer]:
        """Bounds with `toll` on each unit of size; returns its layers."""
        most = max(length for length, _ in self.bounds)
        layers = self.chains.layers(most, [toll * size for size in self.sizes])
        for pair, bound in tuple(self.bounds.items()):
            length, last = pair
            raised = max(bound, layers[length - 1].cost[last] + self.chains.leave[last] - toll * self.room[pair])
            self.bounds[pair] = raised
            if not self._beats(raised):
                del self.bounds[pair]
        return layers

    def _begin(self, pair: Pair, free: list[Layer]) -> None:
        """The two chains around the limit: the smallest, and the cheapest of all, which may keep the limit itself."""
        length, last = pair
        cheapest = self._offer(traced(free, length, last))
        if cheapest.size <= self.room[pair]:
            self.bounds.pop(pair, None)
        else:
            self.around[pair] = self._offer((*range(length - 1), last)), cheapest

    def _sharpen(self, pair: Pair) -> None:
        """Raise the bound of `pair` by the toll at which the chains around its limit cost the same, or search it."""
        inside, outside = self.around[pair]
        toll = max(inside.cost - outside.cost, 0) / (outside.size - inside.size)
        layers = self._raise_bounds(toll)
        between = self._offer(traced(layers, *pair))
        if not inside.size < between.size < outside.size:
            self._exhaust(pair, toll, layers)
        elif between.size <= self.room[pair]:
            self.around[pair] = between, outside
        else:
            self.around[pair] = inside, between

    def _exhaust(self, pair: Pair, toll: float, layers: list[Layer]) -> None:
        """Look at every chain of `pair` that the bounds leave a chance."""
        if pair not in self.bounds:
            return
        length, last = pair
        heap = [
            _End(self.bounds.pop(pair), self.chains.leave[last], self.room[pair] - self.sizes[last], length, last, ())
        ]
        seen: dict[Pair, list[_End]] = {}
        while heap and self._beats(heap[0].bound):
            end = heappop(heap)
            others = seen.setdefault((end.length, end.candidate), [])
            if any(other.cost <= end.cost and other.room >= end.room for other in others):
                continue
            others.append(end)
            if end.length == 1:
                self._offer((end.candidate, *end.tail))
            else:
                self._lengthen(end, heap, toll, layers[end.length - 2].cost)

    def _lengthen(self, end: _End, heap: list[_End], toll: float, beginnings: Sequence[float]) -> None:
        """Put every candidate before `end`; `beginnings`: what the cheapest chains up to each cost, tolls included."""
        here, length, tail = end.candidate, end.length - 1, (end.candidate, *end.tail)
        cost, price = end.cost + self.chains.enter[here], self.chains.price[here]
        for candidate in range(length - 1, here):
            room = end.room - self.sizes[candidate]
            if room < 0:
                break  # the others are larger still
            before = cost - price * self.chains.seen[candidate]
            bound = before + beginnings[candidate] - toll * end.room
            if self._beats(bound):
                heappush(heap, _End(bound, before, room, length, candidate, tail))
