"""The cheapest chain of candidates, exactly. Plain numbers: `tune` says what they mean.

A chain is a list of increasing candidates. With `i` just before `j` the candidate `j` costs `enter[j] - price[j] *
seen[i]` (`seen` is 0 before the first); the last one costs `leave` on top. `seen` never decreases.

`seen` being the steps up to a candidate and `enter` its price times its own `seen`, a link costs the price of `j` for
each step between the two. So what `j` pays after `i` is a line in the price, with slope `-seen[i]`. The cheapest
predecessor lies on the lower envelope of all lines before it, which is kept as a stack and searched by bisection:
`most` layers over n candidates cost O(most · n · log n), whatever the prices are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

import attrs


@attrs.define
class _Envelope:
    """The lower envelope of lines `value - seen * price` that come with `seen` increasing."""

    lines: list[tuple[float, float, int]] = attrs.field(factory=list)
    starts: list[float] = attrs.field(factory=list)  # the price from which each line is the lowest

    def add(self, seen: float, value: float, candidate: int) -> None:
        start = -inf
        while self.lines:
            start = self._start(seen, value)
            if start > self.starts[-1]:
                break
            self.lines.pop()
            self.starts.pop()
            start = -inf
        if start < inf:
            self.lines.append((seen, value, candidate))
            self.starts.append(start)

    def _start(self, seen: float, value: float) -> float:
        """From which price the line is lower than the last one."""
        last_seen, last_value, _ = self.lines[-1]
        if seen == last_seen:
            return -inf if value < last_value else inf
        return (value - last_value) / (seen - last_seen)

    def lowest(self, price: float) -> tuple[float, int]:
        """The lowest value at `price`, and whose line it is on."""
        seen, value, candidate = self.lines[bisect_left(self.starts, price) - 1]
        return value - seen * price, candidate


@attrs.frozen
class Layer:
    """The cheapest chains of one length, by their last candidate: `cost` without `leave`, and who is `before` it."""

    cost: list[float]
    before: list[int]


@attrs.frozen
class Chains:
    """All chains over the same candidates."""

    enter: Sequence[float]
    price: Sequence[float]
    seen: Sequence[float]
    leave: Sequence[float]

    def layers(self, most: int, toll: Sequence[float] | None = None) -> list[Layer]:
        """One layer for each length up to `most`. `toll`: what each candidate costs on top."""
        enter = self.enter if toll is None else [a + b for a, b in zip(self.enter, toll, strict=True)]
        layers = [Layer(list(enter), [-1] * len(enter))]
        while len(layers) < min(most, len(enter)):
            layers.append(self._longer(layers[-1].cost, enter, len(layers)))
        return layers

    def _longer(self, shorter: Sequence[float], enter: Sequence[float], least: int) -> Layer:
        """The layer after the one that costs `shorter`; its first `least` candidates end no chain so long."""
        cost, before = [inf] * len(enter), [-1] * len(enter)
        envelope = _Envelope()
        for candidate in range(least, len(enter)):
            envelope.add(self.seen[candidate - 1], shorter[candidate - 1], candidate - 1)
            lowest, before[candidate] = envelope.lowest(self.price[candidate])
            cost[candidate] = enter[candidate] + lowest
        return Layer(cost, before)

    def cheapest(self, most: int) -> tuple[int, ...]:
        """The cheapest chain of at most `most` candidates; of equally cheap ones, a shortest."""
        layers = self.layers(most)
        ends = (
            (layer.cost[last] + self.leave[last], length, last)
            for length, layer in enumerate(layers, 1)
            for last in range(length - 1, len(self.leave))
        )
        _, length, last = min(ends)
        return traced(layers, length, last)

    def cost(self, chain: Sequence[int]) -> float:
        """What `chain` costs."""
        seen = (0, *(self.seen[candidate] for candidate in chain))
        links = sum(self.enter[j] - self.price[j] * before for j, before in zip(chain, seen, strict=False))
        return links + self.leave[chain[-1]]


def traced(layers: Sequence[Layer], length: int, last: int) -> tuple[int, ...]:
    """The chain of `length` candidates that ends in `last`."""
    chain = [last]
    for layer in reversed(layers[1:length]):
        chain.append(layer.before[chain[-1]])
    return tuple(reversed(chain))
