"""Several things timed in turns."""

from __future__ import annotations

import gc
from itertools import count

from tsgraph.bench.turns import Timings, time_turns


def test_ratio_and_excess_are_medians_of_the_turns():
    """One slow turn, of one or of both, does not move them."""
    timings = Timings({"one": (1.0, 90.0, 3.0, 1.0, 1.0), "other": (2.0, 2.0, 6.0, 2.0, 200.0)})

    assert (0.5, -1.0) == (timings.ratio("one", "other"), timings.excess("one", "other"))
    assert (1.0, 2.0) == (timings.median("one"), timings.median("other"))
    assert {"median": 1.0, "low": 1.0, "high": 3.0} == timings.figures()["one"]


def test_one_turn_has_no_spread():
    """The quartiles of one number are that number."""
    assert (2.0, 2.0) == Timings({"one": (2.0,)}).spread("one")


def test_runs_all_in_turns_and_changes_who_goes_first():
    """After the warm-ups each runs once a turn, in an order that changes, so that nobody always follows the same."""
    ran: list[str] = []
    time_turns({name: lambda name=name: ran.append(name) for name in "abc"}, turns=4)

    warm = 3 * 3
    assert ["abc", "acb", "cab", "cba"] == ["".join(ran[warm + at : warm + at + 3]) for at in range(0, 12, 3)]


def test_times_calls_in_a_row_and_settles_outside_of_what_is_timed():
    """What is timed is a row of calls, by the clock that is given; waiting before it takes what it likes."""
    clock = map(float, count())

    def tick(times: int) -> None:
        for _ in range(times):
            next(clock)

    ways = {"nothing": lambda: None, "two": lambda: tick(2)}
    timings = time_turns(ways, turns=3, calls=4, settle=lambda: tick(50), clock=lambda: next(clock))

    assert {"nothing": [0.25] * 3, "two": [9 / 4] * 3} == timings.seconds


def test_collector_rests_while_times_are_taken_and_works_afterwards():
    """A collection would fall into one turn of one way."""
    enabled: list[bool] = []
    time_turns({"one": lambda: enabled.append(gc.isenabled())}, turns=1)

    assert ([True] * 3 + [False], True) == (enabled, gc.isenabled())
