"""Regular expressions mean what Python's mean, as far as they are read; what is not read is refused with its place."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.grammar.writing import STOP, TOKENS
from tsgraph.errors import BadGrammar
from tsgraph.grammar.dfa import Automaton, DfaMatcher
from tsgraph.grammar.regex import LAST, literal, parse, utf8_spans

LETTERS = st.sampled_from(
    ["a", "b", "c", "é", "€", "😀", "[ab]", "[^a]", "[a-cé-€]", ".", r"\d", r"\W", r"\.", r"\x41", "1"]
)
EXPRESSIONS = st.recursive(
    LETTERS,
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}"])),
    ),
    max_leaves=6,
)


def matches(expression: str, text: str) -> bool:
    """Whether the built-in matcher takes all of `text`."""
    matcher = DfaMatcher(Automaton.of(expression, TOKENS, STOP))
    return all(matcher.accept(token) for token in (*text.encode(), STOP))


@given(expression=EXPRESSIONS, data=st.data())
def test_they_match_what_python_matches(expression: str, data: st.DataObject):
    """Texts that match, and others, of one to four bytes a character."""
    python = re.compile(expression, re.ASCII)
    near = st.text("abc1é€😀.A-\n", max_size=4)
    text = data.draw(
        st.one_of(near, st.from_regex(python, fullmatch=True).filter(lambda t: "\ud800" > max(t, default="")))
    )
    assert bool(python.fullmatch(text)) == matches(expression, text)


@given(span=st.tuples(st.integers(0, LAST), st.integers(0, LAST)).map(sorted))
def test_spans_are_the_encoding(span: list[int]):
    """Sequences of byte spans hold the code points of their ends, and as many as there are between them."""
    first, last = span
    sequences = list(utf8_spans(first, last))
    count = sum(int(np.prod([high - low + 1 for low, high in sequence])) for sequence in sequences)
    surrogates = len(range(max(first, 0xD800), min(last, 0xDFFF) + 1))
    assert last - first + 1 - surrogates == count
    for code in span:
        if not 0xD800 <= code <= 0xDFFF:
            encoded = chr(code).encode()
            held = [
                sequence
                for sequence in sequences
                if len(sequence) == len(encoded)
                and all(low <= byte <= high for (low, high), byte in zip(sequence, encoded, strict=True))
            ]
            assert 1 == len(held)


@given(text=st.text(max_size=5))
def test_a_literal_matches_itself(text: str):
    """Whatever signs are in it."""
    assert matches(literal(text), text)
    assert not matches(literal(text), text + "x")


@pytest.mark.parametrize(
    "expression",
    ["(a", "a)", "a**", "a*?", "*a", "^a", "a$", "[a", r"\b", r"\1", "(?=a)", "(?P<n>a)", "a{2,1}", "a{,2}", "a{9999}",
     "a{x}", "a{2", "[b-a]", r"[\d-z]", r"\xZZ", r"\x4", "\\"],
)  # fmt: skip
def test_what_is_not_read_is_refused(expression: str):
    """With the place in the expression."""
    with pytest.raises(BadGrammar, match="regular expression, at ") as caught:
        parse(expression)
    assert 0 <= caught.value.context["at"] <= len(expression)
