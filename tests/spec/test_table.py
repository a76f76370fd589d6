from __future__ import annotations

import pytest

from tsgraph.spec import load_spec, parse_spec, shipped
from tsgraph.spec.table import spec_table


def rows(spec):
    """The rows of the tables at a width where no cell is broken, with single blanks."""
    return [" ".join(line.split()) for line in spec_table(spec, 200).splitlines()]


@pytest.mark.parametrize("width", [120, 200])
@pytest.mark.parametrize("name", shipped())
def test_everything_is_in_the_tables(name, width):
    """No trigger, step, rule or buffer is cut off, and no line is longer than asked."""
    spec = load_spec(name)
    text = spec_table(spec, width)
    words = [t.on for t in spec.lifecycle.transitions] + [step for t in spec.lifecycle.transitions for step in t.steps]
    words += [rule.id for rule in spec.rules] + list(spec.buffers)
    assert [] == [word for word in words if word not in text]
    assert max(map(len, text.splitlines())) <= width


def test_the_tables_of_a_small_spec(small):
    """What a trigger does, what a rule demands and why, what a pad row holds and who reads it."""
    text = rows(parse_spec(small))
    at = text.index("make fresh ready measure")
    assert ["make fresh ready measure", "build", "(2 times)", "expire ready old"] == text[at : at + 4]
    assert "fail fresh broken tidy" in text
    assert "A build the newest measured is later than the newest built what is built has the measures sampler" in text
    assert "B make built has happened at least 2 times one build is not enough" in text
    assert "ids int32 token 1 graph" in text
    assert "places int64 request sink nowhere graph" in text


def test_scopes_columns_and_reasons_are_said(small):
    """A rule that counts elsewhere than in the slot says so; a buffer tells its shape, column pad, needs and why."""
    small["rules"][1]["scope"] = "variant"
    small["buffers"]["ids"] |= {"shape": ["pages", 2], "column_pad": -1, "read_by": ["device", "host"]}
    small["buffers"]["ids"] |= {"needs": "drafter", "why": "so it is"}
    text = rows(parse_spec(small))
    assert "B make built has happened at least 2 times (per variant) one build is not enough" in text
    assert "ids int32 token × pages × 2 1, columns -1 device, host drafter so it is" in text
