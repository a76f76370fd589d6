"""Cache groups: how wide tables are, what a drafter reads, and which numbers cannot be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.errors import BadGeometry
from tsgraph.groups import CacheGroup, table_widths

FULL = CacheGroup(name="full", rows_per_page=64)
WINDOW = CacheGroup(name="window", rows_per_page=64, retention="sliding_window", window=128)


def test_widths_are_those_of_the_known_engine():
    """Pages of 64 tokens, 4 tokens per request, one step ahead: 65 columns for 4096 tokens, 4 for a window of 128."""
    widths = table_widths([FULL, WINDOW], 4096, largest=8, tokens_per_request=4, overlap_depth=1)

    assert {"full": 65, "window": 4} == widths


@given(
    context=st.integers(0, 10_000),
    tokens=st.integers(1, 8),
    depth=st.integers(0, 1),
    rows=st.integers(1, 128),
    stride=st.integers(1, 8),
    window=st.none() | st.integers(1, 10_000),
)
def test_every_token_that_is_kept_has_a_page(context, tokens, depth, rows, stride, window):
    """A table holds the tokens that are kept and those of the steps ahead, and a window may begin within a page."""
    retention = "full_history" if window is None else "sliding_window"
    group = CacheGroup(name="g", rows_per_page=rows, entry_stride_tokens=stride, retention=retention, window=window)
    kept = context if window is None else min(context, window)
    pages = math.ceil((kept + (depth + 1) * tokens) / (rows * stride))

    assert pages + (window is not None) == group.width(context, tokens, depth)


def test_an_unknown_context_is_one_step_of_the_largest_slot():
    """Where the context is not known, a request has the tokens of a whole step."""
    assert {"full": FULL.width(4 * 32, 4)} == table_widths([FULL], 0, largest=32, tokens_per_request=4)
    assert {"full": FULL.width(4 * 32, 4)} == table_widths([FULL], -1, largest=32, tokens_per_request=4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"retention": "ring"}, "expected 'full_history' or 'sliding_window' as its retention, got 'ring'"),
        ({"rows_per_page": 0}, "expected a positive number as its tokens per page, got 0"),
        ({"entry_stride_tokens": -1}, "expected a positive number as its tokens per page, got -64"),
        ({"retention": "sliding_window"}, "as its window, got None"),
        ({"retention": "sliding_window", "window": 0}, "as its window, got 0"),
    ],
)
def test_a_group_that_cannot_be_is_refused(wrong, message):
    """The message names the group, the number and what it may be; a ValueError, as callers expect."""
    with pytest.raises(BadGeometry, match=f"cache group 'full': .*{message}") as caught:
        CacheGroup(**{"name": "full", "rows_per_page": 64, **wrong})

    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((-1, 1, 0), "expected 0 or more tokens as context, got -1"),
        ((8, 0, 0), "expected 1 or more as tokens per request, got 0"),
        ((8, 1, 2), "expected 0 or 1 steps as overlap depth, got 2"),
        ((8, 1, -1), "expected 0 or 1 steps as overlap depth, got -1"),
    ],
)
def test_a_width_of_numbers_that_cannot_be_is_refused(wrong, message):
    """Context, tokens per request and overlap depth have their bounds."""
    with pytest.raises(BadGeometry, match=message):
        FULL.width(*wrong)


def test_two_groups_of_one_name_are_refused():
    """A table could not be told from the other's."""
    with pytest.raises(BadGeometry, match="two cache groups are called 'full'"):
        table_widths([FULL, FULL], 64, largest=1)


def test_a_drafter_reads_groups_of_keys_with_their_whole_history():
    """Windows and states are the target's alone."""
    state = CacheGroup(name="state", rows_per_page=1, family="state")

    assert [True, False, False] == [group.for_drafter for group in (FULL, WINDOW, state)]
