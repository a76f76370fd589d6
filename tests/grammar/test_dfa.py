"""The built-in matcher: it allows what can still become a text, and nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.grammar.writing import STOP, TOKENS, allowed_tokens, text_of, write
from tsgraph.errors import BadBatch, BadGrammar
from tsgraph.grammar.dfa import Automaton, DfaMatcher
from tsgraph.protocols.matching import Matcher

EXPRESSION = r"(?:ab|c[0-9é€]{1,3})*d?"
AUTOMATON = Automaton.of(EXPRESSION, TOKENS, STOP)
WHOLE = [b"a", b"b", b"ab", b"abab", b"c1", b"1d", b"", None, b"d", b"x", None]
BY_WHOLE = Automaton.of(EXPRESSION, WHOLE, len(WHOLE) - 1)


def test_it_keeps_the_protocol():
    """As an executor asks."""
    assert isinstance(DfaMatcher(AUTOMATON), Matcher)


@given(seed=st.integers(0, 10_000), most=st.one_of(st.none(), st.integers(1, 12)))
def test_whatever_is_drawn_is_a_text_within_its_budget(seed: int, most: int | None):
    """However a model draws among what is allowed, the text matches and ends in time."""
    tokens = write(DfaMatcher(AUTOMATON, most), seed)
    assert re.fullmatch(EXPRESSION, text_of(tokens))
    assert STOP == tokens[-1]
    assert most is None or len(tokens) <= most


@given(seed=st.integers(0, 10_000), most=st.one_of(st.none(), st.integers(1, 6)))
def test_what_is_allowed_is_what_is_accepted(seed: int, most: int | None):
    """A token is accepted exactly where its bit is set, also with tokens of several bytes; refusals change nothing."""
    matcher = DfaMatcher(BY_WHOLE, most)
    write(matcher, seed, most=3, vocabulary=len(WHOLE))
    if not matcher.terminated:
        before = allowed_tokens(matcher, len(WHOLE))
        accepted = []
        for token in range(-1, len(WHOLE) + 1):
            if matcher.accept(token):
                accepted.append(token)
                matcher.rollback(1)
        assert before == accepted == allowed_tokens(matcher, len(WHOLE))


def test_tokens_of_several_bytes():
    """A token is allowed if all of its bytes are; one that stands for nothing never is."""
    assert [0, 2, 3, 4, 8, 10] == allowed_tokens(DfaMatcher(BY_WHOLE), len(WHOLE))


@given(seed=st.integers(0, 10_000), count=st.integers(0, 4))
def test_a_rollback_is_as_if_it_had_not_been(seed: int, count: int):
    """Over the end of the text, too."""
    matcher, other = DfaMatcher(AUTOMATON, 8), DfaMatcher(AUTOMATON, 8)
    tokens = write(matcher, seed)
    count = min(count, len(tokens))
    matcher.rollback(count)
    assert all(other.accept(token) for token in tokens[: len(tokens) - count])
    assert (other.accepted, other.terminated) == (matcher.accepted, matcher.terminated)
    assert allowed_tokens(other) == allowed_tokens(matcher)


def test_after_the_end_nothing_is_allowed():
    """No token is accepted, and none is filled in."""
    matcher = DfaMatcher(AUTOMATON)
    assert matcher.accept(STOP)
    assert matcher.terminated
    assert [] == allowed_tokens(matcher)
    assert not matcher.accept(STOP)


def test_dead_ends_are_never_entered():
    """Where the tokens cannot spell what must follow, what leads there is not allowed."""
    tokens = [b"a", b"b", b"c", None]
    assert [1] == allowed_tokens(DfaMatcher(Automaton.of("a(?:x|y)|bc", tokens, 3)), 4)


@pytest.mark.parametrize("count", [-1, 3])
def test_no_more_is_rolled_back_than_was_accepted(count: int):
    """The matcher is as before."""
    matcher = DfaMatcher(AUTOMATON)
    assert matcher.accept(ord("a"))
    with pytest.raises(BadBatch, match="of 1 that were accepted"):
        matcher.rollback(count)
    assert 1 == matcher.accepted


def test_what_cannot_be_is_refused_when_it_is_made():
    """A budget below the shortest text, tokens that cannot spell it, a stop that is none, too many states."""
    with pytest.raises(BadGrammar, match="takes 4 tokens, the budget is 3"):
        DfaMatcher(Automaton.of("aaa", TOKENS, STOP), 3)
    with pytest.raises(BadGrammar, match="no text of these tokens"):
        Automaton.of("ax", [b"a", None], 1)
    with pytest.raises(BadBatch, match="there are 2 tokens"):
        Automaton.of("a", [b"a", None], 2)
    with pytest.raises(BadGrammar, match="more than 20000 states"):
        Automaton.of("(?:a|b)*a(?:a|b){20}", TOKENS, STOP)
