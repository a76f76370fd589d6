"""The benchmark of constrained steps: it runs, and its figures are of what they say."""

from __future__ import annotations

import json
import time

import numpy as np

from tsgraph.bench.__main__ import main
from tsgraph.bench.grammar import Span, TimedMatcher
from tsgraph.grammar.bitmask import words_for
from tsgraph.grammar.dfa import Automaton, DfaMatcher


def test_it_measures_three_ways_for_each_matcher(tmp_path):
    """Free rows make no masks; constrained ones do, wherever that is; the host makes them only before the step."""
    kept = tmp_path / "steps.json"
    words = "--turns 2 --rows 2 --width 64 --layers 1 --microseconds 500"
    assert 0 == main(["grammar", *words.split(), "--json", str(kept)])
    steps = json.loads(kept.read_text())["data"]["steps"]
    assert ["free", "in the graph", "before the step"] == [each["way"] for each in steps]
    free, inside, before = steps
    assert 0 == free["masks"]
    assert min(inside["masks"], before["masks"]) >= 2 * 500e-6
    assert before["host"] > before["masks"]


def test_a_timed_matcher_tells_from_its_first_call_to_its_last():
    """The span is that of one step; what lies between its calls belongs to it."""
    span = Span()
    matcher = TimedMatcher(DfaMatcher(Automaton.of("[a-z]{9}", [b"a", b"b", None], 2), 20), 0.001, span)
    matcher.fill(np.zeros(words_for(3), dtype=np.int32))
    time.sleep(0.002)
    assert matcher.accept(0)
    assert span.take() >= 0.003
    assert 0 == span.take()
