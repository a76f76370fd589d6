"""The cheapest chain within a limit, against all chains that keep it."""

from itertools import accumulate
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tsgraph.dispatch.allowance import cheapest_within
from tsgraph.dispatch.chains import Chains


def chains_of(price, steps, leave):
    """Chains as `tune` makes them: each candidate is entered for its price times the steps up to it."""
    seen = list(accumulate(steps))
    return Chains([a * b for a, b in zip(price, seen, strict=True)], price, seen, leave)


@st.composite
def limited(draw):
    """Chains over up to 10 candidates, their sizes, and what room chains have: less the longer and the larger."""
    count = draw(st.integers(1, 10))
    numbers = {name: st.lists(st.integers(0, most), min_size=count, max_size=count) for name, most in MOST.items()}
    leave = sorted(draw(numbers["leave"]), reverse=True)
    chains = chains_of(draw(numbers["price"]), draw(numbers["steps"]), leave)
    sizes = sorted(draw(st.sets(st.integers(1, 30), min_size=count, max_size=count)))
    whole, each, top = draw(st.tuples(st.integers(0, 150), st.integers(0, 9), st.sampled_from((0, 0.5, 1.75))))
    return chains, sizes, lambda length, last: whole - each * length - top * sizes[last]


MOST = {"price": 20, "steps": 9, "leave": 300}


def cheapest_of_all(chains, most, sizes, room):
    """The cost of the cheapest chain that keeps the limit, over all sums of sizes; infinite where none does."""
    ends = {(candidate, size): chains.enter[candidate] for candidate, size in enumerate(sizes)}
    least = inf
    for length in range(1, most + 1):
        kept = {end: cost for end, cost in ends.items() if end[1] <= room(length, end[0])}
        least = min([least, *(cost + chains.leave[last] for (last, _), cost in kept.items())])
        ends = longer(chains, sizes, ends)
    return least


def longer(chains, sizes, ends):
    """The cheapest chains of one candidate more, by their last candidate and their sum of sizes."""
    found = {}
    for (last, total), cost in ends.items():
        for candidate in range(last + 1, len(sizes)):
            end = candidate, total + sizes[candidate]
            link = chains.enter[candidate] - chains.price[candidate] * chains.seen[last]
            found[end] = min(found.get(end, inf), cost + link)
    return found


# Two chains cost the same with the toll, but only one fits.
ALIKE = Chains([4, 5], [1, 1], [4, 5], [0, 0]), [1, 2], lambda length, last: 2
# A bound meets the best chain, so that nothing is left to search.
MET = Chains([12, 27, 45], [3, 3, 5], [4, 9, 9], [26, 6, 5]), [2, 3, 7], lambda length, last: 9


@given(problem=limited(), most=st.integers(1, 8))
@example(problem=ALIKE, most=2)
@example(problem=MET, most=3)
def test_the_cheapest_chain_within_the_room_is_found(problem, most):
    """It keeps the limit of its length and last candidate, and no other that keeps its own is cheaper."""
    chains, sizes, room = problem
    found = cheapest_within(chains, most, sizes, room)
    assert cheapest_of_all(chains, most, sizes, room) == (inf if found is None else chains.cost(found))
    if found is not None:
        assert len(found) <= most
        assert sum(sizes[each] for each in found) <= room(len(found), found[-1])


@pytest.mark.parametrize(
    ("price", "steps", "sizes", "room", "most"),
    [
        pytest.param(
            [2, 3, 4, 6, 13, 15, 18, 19, 20, 21, 21, 22, 25, 26, 28, 30],
            [2, 7, 8, 9, 9, 0, 6, 7, 6, 4, 8, 6, 9, 4, 5, 8],
            [1, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, 20],
            47,
            7,
            id="less-room",
        ),
        pytest.param(
            [2, 2, 3, 4, 6, 7, 9, 9, 11, 12, 14, 16, 17, 19, 19, 25, 25, 26, 26, 28],
            [5, 6, 1, 4, 9, 1, 1, 6, 3, 4, 5, 0, 5, 2, 2, 4, 4, 0, 7, 0],
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 18, 19, 20, 22, 23, 24],
            35,
            4,
            id="greater-cost",
        ),
    ],
)
def test_an_end_is_worse_only_if_it_costs_more_and_leaves_less(price, steps, sizes, room, most):
    """An end of a chain that was seen before with less cost, or with more room, but not both, does not replace it."""
    leave = [100_000] * (len(sizes) - 1) + [0]
    chains = chains_of(price, steps, leave)
    found = cheapest_within(chains, most, sizes, lambda length, last: room)
    assert found is not None
    assert cheapest_of_all(chains, most, sizes, lambda length, last: room) == chains.cost(found)


def test_endless_room_is_no_limit():
    """Where everything fits, the result is the cheapest chain of all."""
    chains = Chains([2, 12, 30], [1, 3, 5], [2, 4, 6], [50, 20, 0])
    assert chains.cheapest(2) == cheapest_within(chains, 2, [1, 3, 5], lambda length, last: inf)


def test_no_room_is_none():
    """Where not even one candidate fits there is no chain."""
    chains = Chains([2, 12], [1, 3], [2, 4], [20, 0])
    assert cheapest_within(chains, 2, [1, 3], lambda length, last: 0) is None
