"""How two tensors differ, bit by bit or within a tolerance."""

from __future__ import annotations

import math

import pytest
import torch

from tsgraph.replay.verification.mismatch import Mismatch, Seen, compare

NAN, INF = math.nan, math.inf


def test_equal_bits_are_no_mismatch():
    """NaN is NaN, and a tensor is itself, in every kind of dtype and without dimensions."""
    for tensor in (
        torch.tensor([NAN, -0.0, INF]),
        torch.tensor(3),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(0),
    ):
        assert compare(tensor, tensor.clone()) is None


def test_rows_elements_and_size_are_told():
    """Which rows differ, how many elements of how many, the largest difference, and the first one as an example."""
    expected = torch.arange(12.0).reshape(4, 3)
    actual = expected.clone()
    actual[1, 2], actual[3, 0], actual[3, 1] = 7.0, 9.5, 10.0
    mismatch = compare(expected, actual)
    assert mismatch is not None
    assert ((1, 3), 2, 2, 12, 2.0) == (
        mismatch.rows,
        mismatch.count,
        mismatch.elements,
        mismatch.of,
        mismatch.largest,
    )
    assert "rows 1, 3: 2 of 12 elements, by up to 2, first at [1, 2]: 5 expected, 7 got" == str(mismatch)


def test_zeros_of_both_signs_differ_in_a_bit():
    """Bit by bit means what it says; a tolerance makes them equal."""
    assert compare(torch.tensor([0.0]), torch.tensor([-0.0])) is not None
    assert compare(torch.tensor([0.0]), torch.tensor([-0.0]), tolerance=0.0) is None


@pytest.mark.parametrize(
    ("actual", "same"),
    [
        ([100.0, 1.0], True),
        ([100.0, 1.09], True),
        ([100.0, 1.2], False),
        ([NAN, 1.0], False),
        ([INF, 1.0], False),
    ],
)
def test_a_tolerance_is_a_part_of_the_largest_magnitude(actual: list[float], same: bool):
    """A thousandth of a tensor that goes up to 100 is 0.1 for each of its elements."""
    mismatch = compare(torch.tensor([100.0, 1.0]), torch.tensor(actual), tolerance=1e-3)
    assert same == (mismatch is None)


def test_what_is_no_number_must_be_the_same():
    """Within any tolerance NaN is NaN alone, and infinities have their sign."""
    ones = torch.tensor([NAN, INF, -INF])
    assert compare(ones, ones.clone(), tolerance=1.0) is None
    mismatch = compare(ones, torch.tensor([NAN, INF, INF]), tolerance=1.0)
    assert mismatch is not None
    assert (1, INF) == (mismatch.elements, mismatch.largest)
    assert math.isnan(compare(ones, torch.tensor([1.0, INF, -INF])).largest)


def test_a_tolerance_is_not_for_integers():
    """They are equal or not, and it is told that they are discrete."""
    mismatch = compare(torch.tensor([1000, 1]), torch.tensor([1001, 1]), tolerance=0.5)
    assert mismatch is not None
    assert (True, 1.0) == (mismatch.discrete, mismatch.largest)
    assert not compare(torch.tensor([1.0]), torch.tensor([2.0])).discrete


def test_another_form_is_a_mismatch():
    """Dtype or shape: there is nothing more to say."""
    mismatch = compare(torch.zeros(2), torch.zeros(3, dtype=torch.int64))
    assert "int64 (3,) instead of float32 (2,)" == str(mismatch)


def test_rows_may_have_names_and_only_the_first_are_told():
    """Rows of a part of a tensor are called by their place in the whole."""
    mismatch = compare(torch.zeros(20), torch.ones(20), rows=range(100, 120))
    assert mismatch is not None
    assert "rows 100, 101, 102, 103, 104, 105, 106, 107 and 12 more: 20 of 20" in str(mismatch)
    assert "row 3" == str(Mismatch(rows=(3,), count=1))


def test_it_is_seen_whether_numbers_ever_varied():
    """In one tensor or from one to the next, of any dtype; nothing is no number."""
    seen = Seen()
    for tensor, varied in (
        (torch.zeros(0), False),
        (torch.full((2, 2), NAN), False),
        (torch.tensor(NAN), False),
        (torch.tensor([NAN, 0.0]), True),
        (torch.tensor([NAN]), True),
    ):
        seen.look(tensor)
        assert varied == seen.varied
    pair = Seen()
    pair.look(torch.tensor([1 + 2j]))
    assert pair.varied
