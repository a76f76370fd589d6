from __future__ import annotations

import re

import pytest

from tsgraph.errors import CallerError
from tsgraph.spec import draw_spec, load_spec, parse_spec, shipped


def test_the_whole_picture_of_a_small_spec(small):
    """Start and end, every arrow with its trigger and role, and the styles of what serves and what has failed."""
    assert """stateDiagram-v2
    [*] --> fresh
    fresh --> ready: make (2 steps, 2 times)
    ready --> old: expire (on change)
    fresh --> broken: fail (on failure, cleans up)
    ready --> gone: drop (on release)
    old --> gone: drop (on release)
    broken --> gone: drop (on release)
    old --> fresh: reset (on reset)
    broken --> fresh: reset (on reset)
    gone --> [*]
    classDef replays fill:#d8f0d8,stroke:#2e7d32
    classDef failure fill:#f8dcdc,stroke:#b03030
    classDef many fill:none,stroke-dasharray:4
    classDef current stroke-width:4px,font-weight:bold
    class ready replays
    class broken failure
    state "legend" as legend__
    state legend__ {
        state "permits replays" as legend__replays
        state "where a failure ends" as legend__failure
    }
    class legend__replays replays
    class legend__failure failure""" == draw_spec(parse_spec(small))


@pytest.mark.parametrize("name", shipped())
def test_every_state_and_trigger_is_in_the_picture(name):
    """An arrow for each trigger, an end for each state; and the same picture each time."""
    spec = load_spec(name)
    picture = draw_spec(spec)
    ends = set(re.findall(r"(\w+) -->", picture)) | set(re.findall(r"--> (\w+)", picture))
    assert set(spec.lifecycle.states) <= ends
    assert {transition.on for transition in spec.lifecycle.transitions} == set(re.findall(r"--> \w+: (\w+)", picture))
    assert picture == draw_spec(load_spec(name))


def test_many_sources_are_one_box():
    """A trigger that leaves nearly everywhere is one arrow; the box says from where."""
    picture = draw_spec(load_spec("decode"))
    assert 'state "allocated, warmed, metadata_bound, captured" as from__fail' in picture
    assert "from__fail --> failed: fail (on failure, 1 step, cleans up)" in picture
    assert 'state "any state" as from__retire' in picture
    assert 1 == len(re.findall(r"--> retired: ", picture))


def test_a_state_is_marked(small):
    """The state of a slot stands out in the picture, and the legend says what that means."""
    spec = parse_spec(small)
    added = set(draw_spec(spec, "old").splitlines()) - set(draw_spec(spec).splitlines())
    assert {
        "    class old current",
        '        state "where the slot is" as legend__current',
        "    class legend__current current",
    } == added


def test_the_legend_has_what_the_picture_uses():
    """A style that the picture uses is explained, and no other."""
    used = set(re.findall(r"^    class (?!legend__)\w+ (\w+)$", draw_spec(load_spec("decode")), re.MULTILINE))
    explained = set(re.findall(r"as legend__(\w+)", draw_spec(load_spec("decode"))))
    assert {"replays", "failure", "many"} == used == explained


def test_a_state_that_is_none_is_refused(small):
    """The nearest one is told."""
    with pytest.raises(CallerError, match="spec small has no state 'reddy'; did you mean 'ready'"):
        draw_spec(parse_spec(small), "reddy")
