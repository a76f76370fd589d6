"""How many bytes sizes take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.dispatch.forecast import Forecast
from tsgraph.errors import CallerError

SMALL = st.integers(0, 50)
FORECASTS = st.builds(Forecast, shared=SMALL, row=SMALL, slot=SMALL)
SIZES = st.sets(st.integers(1, 40), min_size=1, max_size=5).map(sorted)


def recorded(size, bytes_, *, seconds=0.1, cause=None):
    """A slot of a snapshot."""
    return {"size": size, "bytes": bytes_, "seconds": seconds, "cause": cause}


def test_the_largest_size_is_paid_once():
    """What a forward needs is shared by all; what slots keep is paid for each, once a variant."""
    forecast = Forecast(shared=100, row=10, slot=5)
    assert 100 * 8 + 10 * (2 + 8) + 5 * 2 == forecast.bytes((2, 8), 1)
    assert 100 * 8 + 3 * (10 * (2 + 8) + 5 * 2) == forecast.bytes((2, 8), 3)


def test_smallest_first_shares_nothing():
    """In that order no recording fits into the memory of those before."""
    forecast = Forecast(shared=100, row=10, slot=5)
    assert forecast is forecast.ordered("largest_first")
    assert 110 * (2 + 8) + 5 * 2 == forecast.ordered("smallest_first").bytes((2, 8), 1)


@given(forecast=FORECASTS, sizes=SIZES, memory=st.integers(0, 5000), variants=st.integers(1, 3))
def test_room_is_what_the_bytes_leave(forecast, sizes, memory, variants):
    """Sizes fit into memory exactly if their rows fit into the room for so many of them."""
    fits = sum(sizes) <= forecast.room(memory, variants)(len(sizes), max(sizes))
    assert (forecast.bytes(sizes, variants) <= memory) == fits


@given(forecast=FORECASTS, sizes=SIZES.filter(lambda sizes: len(sizes) > 2), variants=st.integers(1, 2))
def test_a_snapshot_tells_the_forecast_that_it_was_made_with(forecast, sizes, variants):
    """Slots whose bytes follow a forecast give it back."""
    slots = [recorded(size, forecast.row * size + forecast.slot) for size in reversed(sizes) for _ in range(variants)]
    slots[0]["bytes"] += forecast.shared * sizes[-1]
    assert forecast == Forecast.of_slots(slots)


@given(st.dictionaries(st.integers(1, 30), st.integers(0, 10**6), min_size=2, max_size=6))
def test_measured_slots_are_forecast_with_what_they_took(taken):
    """However their bytes lie, slots captured largest first take what is forecast, or less by the rounding up."""
    sizes = sorted(taken, reverse=True)
    taken[sizes[0]] += 10**7  # what all share
    forecast = Forecast.of_slots(recorded(size, taken[size]) for size in sizes).bytes(sizes, 1)
    assert 0 <= forecast - sum(taken.values()) <= sizes[0] + sum(sizes) + len(sizes)


def test_slots_that_were_captured_smallest_first_share_nothing():
    """Where the first slot is not the largest, all bytes are the slots' own."""
    slots = [recorded(size, 100 * size + 7) for size in (1, 2, 4)]
    assert Forecast(row=100, slot=7) == Forecast.of_slots(slots)


def test_slots_without_a_recording_do_not_count():
    """What was not captured, failed or was released has no bytes; a slot that needed no more memory has 0."""
    nothing = [recorded(9, 0, seconds=0), recorded(8, 0, cause="asked: released by the caller")]
    assert Forecast(shared=100) == Forecast.of_slots([*nothing, recorded(4, 400), recorded(2, 0), recorded(1, 0)])


def test_one_slot_is_too_few():
    """It does not tell what is shared and what is its own."""
    with pytest.raises(CallerError, match="two recorded slots"):
        Forecast.of_slots([recorded(4, 400)])


def test_what_is_no_slot_is_refused():
    """A document that is no snapshot ends in an error of its own."""
    with pytest.raises(CallerError, match="a slot of the snapshot"):
        Forecast.of_slots([{"size": 4}])
