"""What a slot counts."""

from hypothesis import given
from hypothesis import strategies as st

from tsgraph.slots.slot import Counts


@given(st.lists(st.integers(0, 5), max_size=20), st.lists(st.integers(0, 5), max_size=20))
def test_sums_are_those_of_the_histogram(early, late):
    """Replays, pad rows and replays since a capture are what the live rows of all replays come to."""
    counts = Counts(5)
    for live in early:
        counts.rows[live] += 1
    counts.captured_at = counts.replays
    for live in late:
        counts.rows[live] += 1
    assert [(early + late).count(live) for live in range(6)] == counts.rows
    assert (len(early + late), len(late)) == (counts.replays, counts.since_capture)
    assert sum(5 - live for live in early + late) == counts.pad_rows
