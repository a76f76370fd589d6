"""Which sizes are captured (rule R1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.dispatch.sizes import capture_sizes
from tsgraph.errors import SpecError
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import Sizes

DECODE = load_spec("decode").sizes


def test_defaults_are_those_of_the_rule():
    """With room for all, the defaults are 1, 2, 4 and 8 to 160 by 8."""
    assert (1, 2, 4, *range(8, 161, 8)) == capture_sizes(DECODE, 160)


def test_defaults_without_padding_are_dense_at_the_small_end():
    """With padding off every size up to 32 is captured, then 64, 96, 128 and 160."""
    sizes = Sizes(**{**_fields(DECODE), "padding": False})
    assert (*range(1, 33), 64, 96, 128, 160) == capture_sizes(sizes, 160)


def test_sizes_just_below_the_most_rows_are_added():
    """A limit between two sizes gets sizes of its own, so that the largest batches have a slot (fault G1)."""
    assert (1, 2, 4, *range(8, 97, 8), 99, 100) == capture_sizes(DECODE, 100)


def test_the_cap_bounds_what_is_asked_for():
    """Sizes above the spec's cap are dropped."""
    assert (1, 160) == capture_sizes(DECODE, 1000, (1, 160, 200))


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ((), "no capture size"),
        ((4, 2), "strictly increasing"),
        ((2, 2), "strictly increasing"),
        ((0, 1), "positive"),
        ((True,), "positive"),
    ],
)
def test_wrong_sizes_are_refused(asked, text):
    """Empty, unsorted, repeated, zero or non-integer sizes are a SpecError that says which rule they break."""
    with pytest.raises(SpecError, match=text):
        capture_sizes(DECODE, 8, asked)


def test_a_list_that_leaves_nothing_is_refused():
    """A cap below the only size is an error, not a runtime without slots."""
    with pytest.raises(SpecError, match="within the cap"):
        capture_sizes(Sizes(default=(8,), default_without_padding=(8,), cap=4), 8)


@given(asked=st.none() | st.sets(st.integers(1, 300), min_size=1).map(sorted), rows=st.integers(1, 300))
def test_sizes_increase_and_never_exceed_their_bounds(asked, rows):
    """Whatever is asked for, sizes are strictly increasing, within cap and rows, and reach the most rows or the cap."""
    sizes = capture_sizes(DECODE, rows, asked) if asked is None or min(asked) <= 160 else (1,)
    assert sorted(set(sizes)) == list(sizes)
    assert sizes[-1] <= min(DECODE.cap, max(rows, 1))


def _fields(sizes):
    return {name: getattr(sizes, name) for name in ("default", "default_without_padding", "cap", "order")}
