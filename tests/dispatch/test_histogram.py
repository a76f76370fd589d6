"""Observed batches as a value."""

import pytest

from tsgraph.dispatch.histogram import Histogram
from tsgraph.errors import CallerError


def test_variants_sum_up():
    """All variants have the same sizes, so that the sum of their steps counts; the default variant is always there."""
    seen = Histogram(steps={"greedy": {8: 1, 2: 3}, "penalties": {2: 4, 5: 0}})
    assert ("default", "greedy", "penalties") == seen.variants
    assert [(2, 7), (8, 1)] == list(seen.total.items())


def test_an_engine_without_variants_has_the_default_one():
    """`of` takes steps by rows alone."""
    assert Histogram(steps={"default": {3: 2}}, tokens_per_request=4) == Histogram.of({3: 2}, tokens_per_request=4)


@pytest.mark.parametrize("steps", [{-1: 2}, {1: -2}, {1.5: 2}, {1: 2.5}, {True: 1}])
def test_what_is_no_count_is_refused(steps):
    """Rows and steps are whole numbers, 0 or more."""
    with pytest.raises(CallerError, match="not two counts"):
        Histogram.of(steps)


@pytest.mark.parametrize("steps", [{}, {0: 9}, {4: 0}])
def test_steps_without_rows_are_refused(steps):
    """There is nothing to choose sizes for."""
    with pytest.raises(CallerError, match="no decode step with a row"):
        Histogram.of(steps)


@pytest.mark.parametrize("tokens", [0, 1.5, "4", True])
def test_tokens_per_request_are_a_count(tokens):
    """One at least, and whole."""
    with pytest.raises(CallerError, match="tokens per request"):
        Histogram.of({1: 1}, tokens_per_request=tokens)
