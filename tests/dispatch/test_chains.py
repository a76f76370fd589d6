"""The cheapest chain of candidates, against all chains."""

from itertools import accumulate, combinations

from hypothesis import given
from hypothesis import strategies as st

from tsgraph.dispatch.chains import Chains


@st.composite
def chains(draw):
    """Chains over up to 8 candidates with any prices, in whole numbers, so that costs are exact."""
    count = draw(st.integers(1, 8))
    numbers = st.lists(st.integers(-30, 60), min_size=count, max_size=count)
    price = draw(st.lists(st.integers(0, 30), min_size=count, max_size=count))
    seen = list(accumulate(draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))))
    return Chains(draw(numbers), price, seen, draw(numbers))


def every_chain(count, most):
    """All chains over so many candidates, shortest first."""
    return [chain for length in range(1, most + 1) for chain in combinations(range(count), length)]


def cost_by_links(chains, chain):
    """What a chain costs, link by link as the module's docstring says."""
    total, before = 0, 0
    for each in chain:
        total += chains.enter[each] - chains.price[each] * before
        before = chains.seen[each]
    return total + chains.leave[chain[-1]]


@given(chains=chains(), most=st.integers(1, 9))
def test_the_cheapest_chain_is_found(chains, most):
    """No chain of at most so many candidates is cheaper, and none that is as cheap is shorter."""
    costs = {chain: cost_by_links(chains, chain) for chain in every_chain(len(chains.enter), most)}
    found = chains.cheapest(most)
    assert min(costs.values()) == costs[found]
    assert min(len(chain) for chain, cost in costs.items() if cost == costs[found]) == len(found)


@given(chains=chains(), data=st.data())
def test_a_chain_costs_its_links(chains, data):
    """The cost of any chain is that of its links, and of its end."""
    chain = data.draw(st.sampled_from(every_chain(len(chains.enter), 3)))
    assert cost_by_links(chains, chain) == chains.cost(chain)


@given(chains=chains())
def test_layers_hold_the_cheapest_beginnings(chains):
    """For each length and last candidate, a layer has the cheapest chain's cost, tolls included, without its end."""
    toll = [3 * place for place in range(len(chains.enter))]
    for length, layer in enumerate(chains.layers(3, toll), 1):
        for last in range(length - 1, len(chains.enter)):
            ways = [(*before, last) for before in combinations(range(last), length - 1)]
            costs = [cost_by_links(chains, way) - chains.leave[last] + sum(toll[each] for each in way) for way in ways]
            assert min(costs) == layer.cost[last]
