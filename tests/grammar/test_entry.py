"""Entries: what fits a forward, and what is refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.grammar.writing import STOP, TOKENS
from tsgraph.errors import BadBatch
from tsgraph.grammar.dfa import Automaton, DfaMatcher
from tsgraph.grammar.entry import Entry

MATCHER = DfaMatcher(Automaton.of("a*", TOKENS, STOP))


def test_rows_beyond_the_matchers_are_free():
    """An entry may have fewer matchers than rows; all of them advance unless told otherwise."""
    entry = Entry.of(3, [None, MATCHER])
    assert (3, (None, MATCHER), (True, True)) == (entry.rows, entry.matchers, entry.advances)
    assert entry.counts
    assert not Entry.of(3).counts


@pytest.mark.parametrize(
    "words",
    [
        {"rows": 1, "matchers": [None, None]},
        {"rows": 2, "matchers": [None, None], "advances": [True]},
        {"rows": 2, "matchers": [MATCHER, MATCHER]},
    ],
)
def test_what_does_not_fit_is_refused(words: Any):
    """More matchers than rows, advances that do not fit, one matcher in two rows."""
    with pytest.raises(BadBatch):
        Entry.of(**words)
