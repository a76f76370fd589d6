"""What the next recordings will need, told from those before them, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.capture.budget import Budget
from tsgraph.errors import BadGeometry, OutOfBudget
from tsgraph.keys import SlotKey


def key(size):
    """A slot of this size."""
    return SlotKey("default", size)


def charged(*growths, limit=None):
    """A budget after recordings of these (size, growth) into one pool."""
    budget, held = Budget(limit), 0
    for size, growth in growths:
        held += growth
        budget.charge(key(size), growth, held)
    return budget


def test_two_largest_recordings_tell_the_rest():
    """What the second added for each of its rows, the rest will add for each of theirs."""
    budget = charged((8, 800), (4, 40))
    assert (20, 10, 30) == (budget.growth(key(2)), budget.growth(key(1)), budget.forecast([key(2), key(1)]))


def test_nothing_is_told_of_what_nothing_tells():
    """One recording does not tell what a smaller one adds; small ones tell nothing of one more than twice as large."""
    assert (None, None) == (Budget().growth(key(4)), charged((8, 800)).growth(key(4)))
    assert (1600, None) == (charged((8, 800)).growth(key(16)), charged((8, 800)).growth(key(17)))
    assert None is charged((8, 800), (4, 40)).forecast([key(16), key(17)])


def test_how_a_new_pool_is_shared_is_told_by_two():
    """Each alone would need its base; what the second adds beside the first, nothing tells before it is there."""
    budget = charged((8, 800), (4, 40))
    budget.begin_again()
    assert (400, None) == (budget.forecast([key(4)]), budget.forecast([key(4), key(2)]))


def test_a_larger_one_needs_room_for_all_of_it():
    """Blocks that are too small do not serve a larger recording (fault M1): each row needs what the first rows did."""
    assert 800 == charged((1, 100), (2, 200), (4, 400)).growth(key(8))


def test_what_was_recorded_is_recorded_again_in_its_place():
    """A recapture in the same pool finds the memory that it left there."""
    assert 0 == charged((8, 800), (4, 40)).growth(key(8))


def test_a_new_pool_needs_what_the_largest_ever_needed():
    """What was learnt of a row outlives the pool."""
    budget = charged((8, 800), (4, 40))
    budget.begin_again()
    assert (800, 400, 400) == (budget.growth(key(8)), budget.growth(key(4)), budget.base(4))


def test_what_one_added_beside_a_larger_one_is_remembered():
    """In a new pool, too, and also if it was refused: no second try is needed to know it."""
    budget = charged((8, 800), limit=830)
    with pytest.raises(OutOfBudget):
        budget.charge(key(4), 40, 840)
    budget.begin_again()
    budget.charge(key(8), 800, 800)
    assert (40, False) == (budget.growth(key(4)), budget.fits(key(4), 800))


def test_a_forecast_that_does_not_fit_is_refused():
    """Before anything is recorded, saying what it would need, what there is, and what to do."""
    budget = charged((8, 800), (4, 40), limit=850)
    with pytest.raises(OutOfBudget, match="slot default/2 is forecast to need 20 bytes, beside the 840") as caught:
        budget.admit(key(2), 840)
    assert {"slot": "default/2", "growth": 20, "budget": 850} == caught.value.context
    budget.admit(key(1), 840)


def test_growth_beyond_the_limit_is_refused():
    """Where nothing told it before, the recording itself is held against the limit."""
    budget = Budget(1000)
    with pytest.raises(OutOfBudget, match="took 1200 bytes more"):
        budget.charge(key(8), 1200, 1200)
    assert (600, {}) == (budget.base(4), budget.growths)


def test_what_adds_nothing_is_never_refused():
    """The pool may hold more than the limit for a while: what lives in it without growing it costs nothing."""
    budget = charged((8, 800), limit=900)
    budget.charge(key(4), 0, 1000)
    budget.admit(key(4), 1000)
    assert budget.fits(key(2), 1000)


def test_the_most_wanted_that_fit_are_kept():
    """A pool is as large as its largest recording needs, and the outputs of the others beside it."""
    budget, stays = charged((8, 800)), {key(size): 10 * size for size in (1, 2, 4, 8)}
    keys = [key(8), key(1), key(4), key(2)]
    assert (key(8), key(1)) == budget.kept(keys, 815, stays)
    assert (key(1), key(4), key(2)) == budget.kept(keys, 430, stays)
    assert () == budget.kept(keys, 99, stays)


@given(
    rows=st.integers(1, 1000),
    outputs=st.integers(0, 100),
    sizes=st.sets(st.integers(1, 64), min_size=3, max_size=8).map(lambda sizes: sorted(sizes, reverse=True)),
)
def test_a_forecast_is_exact_where_growth_is_linear(rows, outputs, sizes):
    """Largest first, the first needs `rows` bytes for each row, each other one `outputs`: then the forecast is it."""
    first, second, *rest = sizes
    budget = charged((first, rows * first), (second, outputs * second))
    assert sum(outputs * size for size in rest) == budget.forecast(map(key, rest))


@pytest.mark.parametrize("limit", [-1, 1.5, "1 GiB", True])
def test_a_limit_is_a_number_of_bytes(limit):
    """Also when it is changed later."""
    budget = Budget()
    for attempt in (lambda: Budget(limit), lambda: setattr(budget, "limit", limit)):
        with pytest.raises(BadGeometry, match="number of bytes"):
            attempt()
    assert None is budget.limit
