from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.spec import parse_spec
from tsgraph.spec.model import AtLeast
from tsgraph.spec.references import expand


def test_a_reference_takes_the_value_at_its_address(small):
    """`repeat`, `n`, `scope` and a property's count may be addresses in the same spec."""
    small["warmup"] = {"forwards": 7, "per": "variant"}
    small["rules"][1]["scope"] = "warmup.per"
    small["properties"][0]["holds"][0] = {"at_least": ["built", "warmup.forwards"]}
    spec = parse_spec(small)
    assert 7 == spec.lifecycle.transition("make").repeat
    assert (AtLeast("built", 7), "variant") == (spec.rules[1].condition, spec.rules[1].scope)
    assert AtLeast("built", 7) == spec.properties[0].holds[0].condition


def test_a_reference_to_nothing_is_a_problem(small, problems):
    """Its own key path is named, and the nearest known key; its type is not complained about too."""
    small["transitions"][0]["repeat"] = "warmup.forward"
    expected = "transitions[make].repeat: 'warmup.forward' is the address of no value; did you mean 'forwards'?"
    assert (expected,) == problems(small)


def test_a_reference_to_a_wrong_value_is_told_once(small, problems):
    """The value is at fault, not the reference to it."""
    small["warmup"]["forwards"] = True
    assert ("warmup.forwards: expected a whole number, got true",) == problems(small)


def test_a_reference_to_a_table_has_the_wrong_type(small, problems):
    """An address must lead to a number."""
    small["rules"][1]["n"] = "sizes.default"
    assert ("rules[B].n: expected a whole number, got a list",) == problems(small)


def test_texts_elsewhere_are_no_references(small):
    """A sentence may mention an address."""
    small["rules"][0]["fix"] = "warmup.forwards"
    assert "warmup.forwards" == parse_spec(small).rules[0].fix


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 40))
def test_a_range_has_both_its_ends(first, span, by):
    """`a..b by c` begins with a, goes by c, and has b where c meets it."""
    last = first + span * by
    assert list(range(first, last + 1, by)) == list(expand(f"{first}..{last} by {by}"))


@pytest.mark.parametrize(
    "text", ["", "1", "1..", "..2", "1 .. 2", "1..2 by", "1..2 by -1", "a..b", "1..2 by 1 by 1", "-1..2"]
)
def test_other_texts_are_no_ranges(text):
    """Nothing but `a..b` and `a..b by c` is a range."""
    assert isinstance(expand(text), str)
