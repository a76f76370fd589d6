"""Matchers by xgrammar: what is drawn under them is what was asked for; skipped, and said so, where it is not there."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grammar.validator import valid
from tests.grammar.writing import STOP, TOKENS, allowed_tokens, text_of, write
from tsgraph.adapters.xgrammar import XGrammars
from tsgraph.errors import BadGrammar, CallerError
from tsgraph.protocols.matching import Matcher

RECURSIVE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kids": {"type": "array", "maxItems": 1, "items": {"$ref": "#"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars() -> XGrammars:
    """Grammars over byte tokens."""
    pytest.importorskip("xgrammar", reason="xgrammar is not installed (extra `grammar`)")
    return XGrammars(TOKENS, STOP)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_json_parses_and_validates(grammars: XGrammars, seed: int):
    """Under a schema with recursion, which no regular expression can say; no control characters in its strings."""
    matcher = grammars.json_schema(RECURSIVE)
    assert isinstance(matcher, Matcher)
    written = text_of(write(matcher, seed, most=5000))
    assert valid(json.loads(written), RECURSIVE)


@given(seed=st.integers(0, 10_000))
def test_expressions_and_rules(grammars: XGrammars, seed: int):
    """A regular expression, and a grammar in EBNF that counts."""
    assert re.fullmatch("(?:ab|c)*d", text_of(write(grammars.regex("(ab|c)*d"), seed)))
    written = text_of(write(grammars.ebnf('root ::= "x" root "y" | "z"'), seed))
    assert written == "x" * written.count("x") + "z" + "y" * written.count("x")


@pytest.mark.parametrize("make", [lambda g: g.json_schema(RECURSIVE), lambda g: g.regex("[a-c]{2}")])
def test_what_is_allowed_is_what_is_accepted(grammars: XGrammars, make: Any):
    """Bit for bit, special tokens and what is no token included; refusals change nothing, and all is taken back."""
    matcher = make(grammars)
    at_first = allowed_tokens(matcher)
    for _ in range(3):
        allowed, accepted = allowed_tokens(matcher), []
        for token in range(-1, len(TOKENS) + 1):
            if matcher.accept(token):
                accepted.append(token)
                matcher.rollback(1)
        assert allowed == accepted
        assert matcher.accept(allowed[0])
        if matcher.terminated:
            break
    matcher.rollback(matcher.guard.accepted)
    assert at_first == allowed_tokens(matcher)


def test_the_stop_token_ends_a_text_and_can_be_taken_back(grammars: XGrammars):
    """As speculation needs where a draft is the end."""
    matcher = grammars.regex("a")
    assert [True, True] == [matcher.accept(ord("a")), matcher.accept(STOP)]
    assert matcher.terminated
    assert not matcher.accept(ord("a"))
    matcher.rollback(1)
    assert (False, [STOP]) == (matcher.terminated, allowed_tokens(matcher))


@pytest.mark.parametrize(
    "make", [lambda g: g.regex("(("), lambda g: g.ebnf("root ::= nope"), lambda g: g.json_schema({"type": "nope"})]
)
def test_what_it_refuses_is_a_bad_grammar(grammars: XGrammars, make: Any):
    """With its own words."""
    with pytest.raises(BadGrammar, match="xgrammar refuses it"):
        make(grammars)


def test_without_it_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    """Only a grammar asks for it, and then says how to get it."""
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(CallerError, match=r"tsgraph\[grammar\]"):
        XGrammars(TOKENS, STOP).regex("a")
