"""Two things timed in turns."""

from __future__ import annotations

from itertools import count

from tsgraph.bench.pairs import Pairs, time_pairs


def test_ratio_is_the_median_of_the_turns():
    """One slow turn, of one or of both, does not move it."""
    pairs = Pairs((1.0, 90.0, 3.0, 1.0, 1.0), (2.0, 2.0, 6.0, 2.0, 200.0))

    assert 0.5 == pairs.ratio
    assert (1.0, 2.0) == pairs.medians


def test_runs_both_in_turns_and_changes_who_goes_first():
    """After the warm-ups each runs once a turn, and neither always comes second."""
    ran: list[str] = []
    time_pairs(lambda: ran.append("one"), lambda: ran.append("other"), turns=4)

    warm = 2 * 3
    assert ["other", "one", "one", "other", "other", "one", "one", "other"] == ran[warm:]


def test_times_each_run_alone():
    """What is timed is the run, by the clock that is given."""
    clock = map(float, count())
    pairs = time_pairs(lambda: None, lambda: [next(clock) for _ in range(2)], turns=3, clock=lambda: next(clock))

    assert ((1.0, 1.0, 1.0), (3.0, 3.0, 3.0)) == (pairs.one, pairs.other)
