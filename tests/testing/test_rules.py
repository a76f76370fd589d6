"""The rules that the docs list come from the specs: none is claimed that no spec holds, and none lacks a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tsgraph.spec import load_spec
from tsgraph.testing.rules import rule_rows


@pytest.fixture(scope="module")
def rows():
    """The rows of decode, as the docs show them."""
    return rule_rows("decode")


def test_each_rule_that_the_spec_holds_is_in_the_page(rows):
    """Rules about order, about values, of buffers, and the floor of a counter."""
    spec = load_spec("decode")
    held = {rule.id for rule in (*spec.rules, *spec.value_rules)}
    held |= {rule for buffer in spec.buffers.values() for rule in buffer.rules} | {"R24"}
    assert held == {row.rule for row in rows}


def test_each_rule_has_a_reason_and_something_that_shows_its_removal(rows):
    """A property for a rule about order, planted faults for one about values, a test for a floor."""
    assert [] == [row.rule for row in rows if not (row.demands and row.because and row.declared and row.shown_by)]


def test_rules_stand_in_the_order_of_their_numbers(rows):
    """Rules of our own, which have none, come last."""
    numbers = [row.number for row in rows]
    numbered = [number for number in numbers if number is not None]
    assert sorted(numbered) + [None] * (len(numbers) - len(numbered)) == numbers


def test_the_test_that_the_page_names_is_there(rows):
    """The floor's test file exists, and tries the floor."""
    floors = [row for row in rows if row.declared == "floor"]
    assert ["R24", "R24"] == [row.rule for row in floors]
    for row in floors:
        file = Path(__file__).parents[2] / row.shown_by.strip("`")
        assert '"R24"' in file.read_text(encoding="utf-8")
