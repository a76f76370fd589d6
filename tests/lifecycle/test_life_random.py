"""Lives on drawn specs, in drawn orders: `can` and `explain` tell what `fire` does."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lifecycle.ready import ready
from tsgraph.errors import CallerError
from tsgraph.spec.load import load_spec

COLLABORATORS = ("comm", "grammar", "ranks", "sampler")


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """The decode spec with some collaborators, and up to three of its steps left out or turned around."""
    spec = load_spec("decode").restricted_to(frozenset(draw(st.sets(st.sampled_from(COLLABORATORS)))))
    rows = list(spec.lifecycle.transitions)
    for _ in range(draw(st.integers(0, 3))):
        number = draw(st.sampled_from([n for n, row in enumerate(rows) if len(row.steps) > 1]))
        order = list(rows[number].steps)
        taken = order.pop(draw(st.integers(0, len(order) - 1)))
        if draw(st.booleans()):
            order.insert(draw(st.integers(0, len(order))), taken)
        rows[number] = attrs.evolve(rows[number], steps=tuple(order))
    return attrs.evolve(spec, lifecycle=attrs.evolve(spec.lifecycle, transitions=tuple(rows)))


@pytest.mark.no_cover
@given(spec=damaged(), data=st.data())
def test_can_and_explain_tell_what_fire_does(spec, data, snapshot, recorder):
    """On any spec, in any order, within a session or not, `can` is true exactly where `fire` raises no CallerError.

    The work succeeds. The steps explained are those performed; a refusal is the one explained, and changes nothing.
    """
    lifecycle = ready(spec)
    lives = [lifecycle.begin("a/2", "a"), lifecycle.begin("a/1", "a")]
    if data.draw(st.booleans(), label="session"):
        lifecycle.open_session(recorder())
    route = lifecycle.route[: data.draw(st.integers(0, len(lifecycle.route)), label="route")]
    anything = st.sampled_from(sorted(lifecycle.transitions))
    for trigger in (*route, *data.draw(st.lists(anything, min_size=1, max_size=8), label="triggers")):
        life = lives[0] if trigger in route else data.draw(st.sampled_from(lives), label="life")
        before, perform, explained = snapshot(life), recorder(), life.explain(trigger)
        assert explained.allowed == life.can(trigger)
        error = _refused(life, trigger, perform)
        assert explained.allowed == (error is None)
        if error is not None:
            assert explained.refusal.rule == getattr(error, "rule", "")
            assert ([], before) == (perform.steps, snapshot(life))
        else:
            leave = spec.session.leave if _opens(explained.trace, spec, lifecycle) else ()
            assert [*explained.trace, *leave] == perform.steps


def _refused(life, trigger, perform):
    try:
        life.fire(trigger, perform)
    except CallerError as error:
        return error
    return None


def _opens(trace, spec, lifecycle):
    """Whether the steps begin with those that enter a session."""
    return not lifecycle.session_open and trace[: len(spec.session.enter)] == spec.session.enter
