"""The declared course: sound for the shipped specs, and it tells what stops it."""

from __future__ import annotations

import attrs
import pytest

from tsgraph.proving.combinations import restrictions, with_only
from tsgraph.proving.course import follow, route_of
from tsgraph.proving.kill_table import settings
from tsgraph.spec import load_spec, shipped
from tsgraph.spec.model import COLLABORATORS, After, Clause, Property

PRESENT = ("comm", "freeze_gc", "grammar", "ranks", "sampler")


@pytest.fixture(scope="module")
def decode():
    """The decode spec with all that its law knows of."""
    return with_only(load_spec("decode"), PRESENT)


@pytest.fixture(scope="module")
def route(decode):
    """The way to a replayable slot."""
    return route_of(decode)


def _with_steps(spec, on, steps):
    rows = tuple(attrs.evolve(t, steps=steps) if t.on == on else t for t in spec.lifecycle.transitions)
    return attrs.evolve(spec, lifecycle=attrs.evolve(spec.lifecycle, transitions=rows))


def _dropped(spec, on, step):
    return _with_steps(spec, on, tuple(name for name in spec.lifecycle.transition(on).steps if name != step))


@pytest.mark.parametrize("name", shipped())
def test_the_course_of_a_shipped_spec_runs_through(name):
    """Whoever is absent, and however warm-ups count, nothing is refused and no property breaks."""
    for setting, spec in settings(name).items():
        route = route_of(spec.restricted_to(frozenset(COLLABORATORS)))
        for law in restrictions(spec):
            assert follow(law.spec, route) is None, (setting, law.present)


@pytest.mark.parametrize(
    ("on", "step", "expected"),
    [
        ("warm", "meet_ranks", "rule R6c refuses forward"),
        ("bind", "fill_lengths", "rule R7 refuses bind_metadata"),
        ("capture", "leave_capture_mode", "rule R20b refuses capture"),
        ("drain", "settle_ranks", "rule R6 refuses drain"),
    ],
)
def test_a_step_that_is_left_out_is_refused(decode, route, on, step, expected):
    """The first rule that refuses is told, and where."""
    assert expected == follow(_dropped(decode, on, step), route)


def test_a_property_that_breaks_on_the_way_is_told(decode, route):
    """Where no rule minds, properties are judged at events and at states."""
    clause = Clause(condition=After("forward", "recorded"))
    at_event = Property(id="X", says="x", when=("ranks_met",), before=(clause,))
    at_state = Property(id="Y", says="y", when=("captured",), holds=(clause,))
    assert "property X breaks at ranks_met" == follow(attrs.evolve(decode, properties=(at_event,)), route)
    assert "property Y breaks at captured" == follow(attrs.evolve(decode, properties=(at_state,)), route)


def test_a_second_session_is_part_of_the_course(decode, route):
    """A collector that stays frozen is found when the next run of captures begins."""
    left = attrs.evolve(decode, session=attrs.evolve(decode.session, leave=()))
    assert "rule R43b refuses freeze_gc" == follow(left, route)


def test_a_second_slot_of_the_variant_is_part_of_the_course():
    """Where warm-ups count for the variant, the second slot has none, and needs its mask bound all the same."""
    spec = with_only(settings("decode")['warmup.per = "variant"'], PRESENT)
    assert "rule R18 refuses record" == follow(_dropped(spec, "bind", "bind_mask"), route_of(spec))
