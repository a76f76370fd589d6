"""JSON schemas: whatever is written under one parses and validates; what cannot be said is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grammar.validator import valid
from tests.grammar.writing import STOP, TOKENS, text_of, write
from tsgraph.errors import BadGrammar
from tsgraph.grammar.dfa import Automaton, DfaMatcher
from tsgraph.grammar.schema import expression_of

NAMES = st.sampled_from(["a", 'quo"te', "ü", "b.c", "back\\slash"])
LISTED = st.lists(st.one_of(st.text(max_size=3), st.integers(), st.booleans(), st.none()), min_size=1, max_size=3)


def _between(low: int, span: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": low + span}


def _array(item: Any, least: int, more: int) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": least, "maxItems": least + more}


def _object(properties: dict[str, Any], required: int) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)[::2][:required]}


LEAVES = st.one_of(
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 3)),
    st.builds(lambda least: {"type": "string", "minLength": least, "maxLength": least + 1}, st.integers(0, 3)),
    st.builds(_between, st.integers(-9, 9), st.integers(0, 30)),
    st.sampled_from(
        [{"type": "integer"}, {"type": "integer", "minimum": 0}, {"type": "number"}, {"type": "number", "minimum": 0},
         {"type": "boolean"}, {"type": "null"}, {"type": ["null", "boolean"]}, {"const": {"x": [1]}},
         {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$"}]
    ),
    LISTED.map(lambda values: {"enum": values}),
)  # fmt: skip


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(_array, inner, st.integers(0, 2), st.integers(0, 2)),
        st.builds(_object, st.dictionaries(NAMES, inner, max_size=3), st.integers(0, 2)),
        st.lists(inner, min_size=1, max_size=2).map(lambda ways: {"anyOf": ways, "title": "either"}),
    ),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=40)
@given(schema=SCHEMAS, seed=st.integers(0, 1000))
def test_what_is_written_parses_and_validates(schema: Any, seed: int):
    """Under any drawn schema, with budgets from the least on."""
    automaton = Automaton.of(expression_of(schema), TOKENS, STOP)
    for most in (int(automaton.distance[0]), int(automaton.distance[0]) + seed % 20):
        written = text_of(write(DfaMatcher(automaton, most), seed))
        assert valid(json.loads(written), schema), written


def test_properties_that_need_not_be_there():
    """Each of them alone, all, or none, always in order and with the right commas."""
    numbers = {"enum": [1]}
    schema = {"type": "object", "properties": dict.fromkeys("abcd", numbers), "required": ["c"]}
    automaton = Automaton.of(expression_of(schema), TOKENS, STOP)
    written = {text_of(write(DfaMatcher(automaton), seed)) for seed in range(120)}
    expected = {
        json.dumps({name: 1 for name in "abcd" if name == "c" or name in chosen}, separators=(",", ":"))
        for chosen in ("", "a", "b", "d", "ab", "ad", "bd", "abd")
    }
    assert expected == written


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "array", "items": {"type": "null"}, "maxItems": 0}, {"[]"}),
        ({"type": "array", "items": {"const": 1}, "maxItems": 2}, {"[]", "[1]", "[1,1]"}),
        ({"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 2}, {"[1]", "[1,1]"}),
        ({"type": "integer", "minimum": -2, "maximum": 1}, {"-2", "-1", "0", "1"}),
        ({"type": "object", "additionalProperties": False}, {"{}"}),
        ({"anyOf": [{"type": "null"}, {"const": "a+b"}]}, {"null", '"a+b"'}),
        ({"type": ["string", "null"], "pattern": "^x$"}, {'"x"', "null"}),
        ({"type": "integer", "enum": ["a", 1, True, 2.5]}, {"1"}),
        ({"type": ["string", "boolean"], "enum": ["a", 1, True]}, {'"a"', "true"}),
        ({"type": "string", "pattern": "^x[01]$"}, {'"x0"', '"x1"'}),
    ],
)
def test_all_that_a_small_schema_says(schema: Any, expected: set[str]):
    """Exactly these texts can be written."""
    automaton = Automaton.of(expression_of(schema), TOKENS, STOP)
    assert expected == {text_of(write(DfaMatcher(automaton), seed)) for seed in range(60)}


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_a_minimum_of_0_is_the_only_bound_without_a_list(kind: str):
    """No sign, or any; and numbers as large as they are written."""
    drawn = {}
    for schema in ({"type": kind}, {"type": kind, "minimum": 0}):
        automaton = Automaton.of(expression_of(schema), TOKENS, STOP)
        drawn[len(schema)] = [json.loads(text_of(write(DfaMatcher(automaton), seed))) for seed in range(60)]
    assert min(drawn[1]) < 0 <= min(drawn[2])


def test_an_array_without_a_bound_ends_within_its_budget():
    """However many items there may be."""
    automaton = Automaton.of(expression_of({"type": "array", "items": {"const": 1}}), TOKENS, STOP)
    longest = max(len(json.loads(text_of(write(DfaMatcher(automaton, 20), seed)))) for seed in range(60))
    assert 3 <= longest <= 9


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"$ref": "#"}, "schema: "),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, r"schema\.properties\.a: "),
        ({"type": "string", "format": "date"}, r"schema\.format"),
        ({"type": "string", "pattern": "a"}, r"schema\.pattern"),
        ({"type": "string", "pattern": "^.$"}, r"schema\.pattern"),
        ({"type": "string", "pattern": "^[ -~]$"}, r"schema\.pattern"),
        ({"type": "string", "pattern": "^(?:a|b\\s*)+$"}, r"schema\.pattern"),
        ({"oneOf": [{"type": "null"}]}, "schema: "),
        ({"type": "null", "anyOf": [{"type": "null"}]}, r"schema\.type"),
        ({"enum": [1], "const": 1}, r"schema\.enum"),
        ({"type": "integer", "enum": ["a"]}, "schema: "),
        ({"type": "null", "not": {}}, r"schema\.not"),
        ({"type": "string", "maxLength": -1}, r"schema\.maxLength"),
        ({"type": "string", "minLength": True}, r"schema\.minLength"),
        ({"type": "integer", "minimum": 1}, "schema: "),
        ({"type": "integer", "minimum": 0, "maximum": 10**6}, "schema: "),
        ({"type": "number", "minimum": 3}, r"schema\.minimum"),
        ({"type": "object", "required": ["x"]}, r"schema\.required"),
        ({"type": "array"}, r"schema\.items"),
        ({"type": "string", "pattern": "^a$", "maxLength": 3}, r"schema\.maxLength"),
        ({"type": "array", "items": {"type": "null"}, "minItems": "1"}, r"schema\.minItems"),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, r"schema\.uniqueItems"),
        ({"anyOf": []}, "schema: "),
        ({"type": "nonsense"}, "schema: "),
        (True, "schema: "),
    ],
)
def test_what_it_cannot_say_is_refused(schema: Any, where: str):
    """With the path in the schema, and the way out: leaving a word out would let invalid texts pass."""
    with pytest.raises(BadGrammar, match=f"^{where}") as caught:
        expression_of(schema)
    assert "xgrammar" in caught.value.hint
