from __future__ import annotations

import pytest

STATES = ["fresh", "ready", "old", "broken", "gone"]
TO_LOST = {"on": "lose", "from": ["ready"], "to": "lost"}

PLANTED = [
    (("lifecycle.initial", "frsh"), ["lifecycle.initial: unknown state 'frsh'; did you mean 'fresh'?"]),
    (("lifecycle.final", ["end"]), ["lifecycle.final: unknown state 'end'"]),
    (("lifecycle.replays_in", ["redy"]), ["lifecycle.replays_in: unknown state 'redy'; did you mean 'ready'?"]),
    (("lifecycle.replays_in", []), ["lifecycle.replays_in: no state permits replays"]),
    (
        ("lifecycle.initial", "gone"),
        [
            "lifecycle.initial: 'gone' is final too; a slot would end where it begins",
            *(
                f"lifecycle.states: '{state}' cannot be reached from 'gone'"
                for state in ("fresh", "ready", "old", "broken")
            ),
        ],
    ),
    (("lifecycle.states", [*STATES, "ready"]), ["lifecycle.states: 'ready' is declared 2 times"]),
    (
        ("lifecycle.states", [*STATES, "island"]),
        [
            "lifecycle.states: 'island' cannot be reached from 'fresh'",
            "lifecycle.states: 'island' is a trap; neither an end nor a replay can be reached from it",
        ],
    ),
    (
        ("lifecycle.states", [*STATES, "lost"], "transitions.5", TO_LOST),
        [
            "lifecycle.states: 'lost' is a trap; neither an end nor a replay can be reached from it",
        ],
    ),
    (("transitions.0.from", ["gone", "fresh"]), ["transitions[make].from: 'gone' is final; nothing leads out of it"]),
    (("transitions.0.from", []), ["transitions[make].from: leads from no state"]),
    (("transitions.1.from", ["reddy"]), ["transitions[expire].from: unknown state 'reddy'; did you mean 'ready'?"]),
    (("transitions.1.to", "olde"), ["transitions[expire].to: unknown state 'olde'; did you mean 'old'?"]),
    (("transitions.1.from", ["ready", "ready"]), ["transitions[expire].from: 'ready' is declared 2 times"]),
    (
        ("transitions.0.steps", ["measur", "measure", "build"]),
        ["transitions[make].steps: unknown step 'measur'; did you mean 'measure'?"],
    ),
    (
        ("transitions.2.finally", ["tidi", "tidy"]),
        ["transitions[fail].finally: unknown step 'tidi'; did you mean 'tidy'?"],
    ),
    (
        ("transitions.0.free", [["measure", "measure"], ["measur", "build"]]),
        [
            "transitions[make].free: 'measure' is declared 2 times",
            "transitions[make].free: unknown step of 'make' 'measur'; did you mean 'measure'?",
        ],
    ),
    (
        ("transitions.2.free", [["tidy", "measure"]]),
        ["transitions[fail].free: unknown step of 'fail' 'measure'"],
    ),
    (
        ("steps.measure", {"event": ["measured", "refused"], "needs": "ranks"}, "rules.0.needs", "ranks"),
        ["transitions[fail].steps: lacks 'measure'; peers would wait for a rank that failed to settle"],
    ),
    (("transitions.0.repeat", -1), ["transitions[make].repeat: -1 is no number of times"]),
    (("transitions.3.on", "expire", "lifecycle.on_release", "expire"), ["transitions: 'expire' is declared 2 times"]),
    (("lifecycle.on_failure", "fial"), ["lifecycle.on_failure: unknown trigger 'fial'; did you mean 'fail'?"]),
    (("lifecycle.on_change", "expires"), ["lifecycle.on_change: unknown trigger 'expires'; did you mean 'expire'?"]),
    (("lifecycle.on_release", "dorp"), ["lifecycle.on_release: unknown trigger 'dorp'; did you mean 'drop'?"]),
    (("lifecycle.on_reset", "rset"), ["lifecycle.on_reset: unknown trigger 'rset'; did you mean 'reset'?"]),
    (("transitions.2.from", ["ready"]), ["transitions[fail].from: lacks 'fresh', where the steps of 'make' may fail"]),
    (
        ("transitions.2.to", "ready"),
        [
            "transitions[fail].to: 'ready' permits replays, but on_failure must end them",
            "lifecycle.states: 'broken' cannot be reached from 'fresh'",
        ],
    ),
    (
        ("lifecycle.replays_in", ["ready", "old"]),
        [
            "transitions[expire].from: lacks 'old'; a slot would go on replaying what is out of date",
            "transitions[expire].to: 'old' permits replays, but on_change must end them",
        ],
    ),
]


@pytest.mark.parametrize(("changes", "expected"), PLANTED)
def test_each_flaw_of_the_graph_is_told(planted, changes, expected):
    """One thing wrong in a sound lifecycle: exactly its problems, with key path and reason."""
    assert set(expected) == planted(*changes)
