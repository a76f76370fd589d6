"""What steps cost."""

import pytest

from tsgraph.dispatch.costs import Costs
from tsgraph.errors import CallerError


def test_a_replay_costs_its_tokens():
    """Without measurements rows count, as many times as each has tokens; an eager step costs twice as much."""
    costs = Costs()
    assert ("tokens", 24, 48) == (costs.unit, costs.of_replay(6, 4), costs.of_eager(6, 4))


def test_measured_seconds_take_the_place_of_tokens():
    """Linear between two sizes, constant below the smallest, proportional above the largest."""
    costs = Costs(seconds={8: 3.0, 4: 1.0}, eager=1.5)
    assert "seconds" == costs.unit
    assert [1.0, 1.0, 1.5, 3.0, 6.0] == [costs.of_replay(size, 4) for size in (1, 4, 5, 8, 16)]
    assert 4.5 == costs.of_eager(8, 4)


@pytest.mark.parametrize("eager", [0.5, float("inf"), float("nan")])
def test_an_eager_step_costs_a_replay_at_least(eager):
    """Factors below 1, and those that are no number, are refused."""
    with pytest.raises(CallerError, match="an eager step costs"):
        Costs(eager=eager)


@pytest.mark.parametrize("seconds", [{}, {0: 1.0}, {1: 0.0}, {1: "2"}, {1: float("inf")}, {"1": 1.0}])
def test_measurements_must_be_possible(seconds):
    """Sizes and seconds are numbers above 0, and there is one at least."""
    with pytest.raises(CallerError, match=r"seconds|no size was measured"):
        Costs(seconds=seconds)
