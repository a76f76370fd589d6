"""What a snapshot lets one guess of the batches that were served."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.dispatch.estimate import estimated_steps
from tsgraph.errors import CallerError


def served(size, replays, pad_rows, variant="default"):
    """A slot of a snapshot."""
    return {"variant": variant, "size": size, "replays": replays, "pad_rows": pad_rows}


@given(data=st.data(), sizes=st.sets(st.integers(1, 40), min_size=1, max_size=4).map(sorted))
def test_each_slots_replays_are_spread_over_its_rows(data, sizes):
    """As many steps as replays, of rows that only this slot serves, with the mean that its pad rows tell."""
    for least, size in zip([1, *(size + 1 for size in sizes)], sizes, strict=False):
        replays = data.draw(st.integers(1, 10_000))
        pad_rows = data.draw(st.integers(0, replays * (size - least)))
        steps = estimated_steps([served(each, replays if each == size else 0, pad_rows) for each in sizes])["default"]
        assert replays == sum(steps.values())
        assert {least, size} <= {*steps} <= {*range(least, size + 1)}
        assert all(count >= 0 for count in steps.values())
        rows = sum(rows * count for rows, count in steps.items())
        assert abs(size * replays - pad_rows - rows) <= size - least + 1


def test_the_mean_in_the_middle_is_an_even_spread():
    """Of all spreads with the mean it is the one that assumes least."""
    assert {5: 25, 6: 25, 7: 25, 8: 25} == estimated_steps([served(4, 0, 0), served(8, 100, 150)])["default"]


def test_variants_have_slots_of_their_own():
    """What is smaller in another variant bounds nothing; a variant that served nothing is there all the same."""
    steps = estimated_steps([served(4, 9, 0, "b"), served(2, 0, 0), served(4, 8, 0), served(4, 0, 0, "c")])
    assert [("b", [1, 2, 3, 4], 9), ("c", [], 0), ("default", [3, 4], 8)] == [
        (variant, list(by_rows), sum(by_rows.values())) for variant, by_rows in sorted(steps.items())
    ]


def test_fewer_rows_than_a_slot_can_have_are_its_fewest():
    """With several ranks the widest picks the size, so that a slot may have served none of this rank's rows."""
    assert {3: 10, 4: 0} == estimated_steps([served(2, 0, 0), served(4, 10, 40)])["default"]


@pytest.mark.parametrize("slot", [{"size": 4}, 4, served("4", 1, 1), served(4, "1", 1)])
def test_what_is_no_slot_is_refused(slot):
    """A document that is no snapshot ends in an error of its own."""
    with pytest.raises(CallerError, match="a slot of the snapshot"):
        estimated_steps([slot, served(8, 1, 0)])
