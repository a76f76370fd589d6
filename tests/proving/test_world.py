"""What the pipeline and the world around it can do: each case is broken by exactly that, or holds because it cannot."""

from __future__ import annotations

import attrs
import pytest

from tests.proving.conftest import STEPS, moves, promise, rule
from tsgraph.proving import prove
from tsgraph.spec.model import After, AtLeast, Counter, CounterIs, ModeIs, Serving, Session, Step, Switch

ON = {
    "on": Step(name="on", event=("ON",), mode={"m": True}),
    "off": Step(name="off", event=("OFF",), mode={"m": False}),
}
STEPS_M = {**STEPS, **ON}
PUSH = Step(name="push", event=("PUSH",), count={"n": 1})
POP = Step(name="pop", event=("POP",), count={"n": -1})
STEPS_N = {**STEPS, "push": PUSH, "pop": POP}


def mode(scope):
    """A mode m of this scope, with the steps on and off."""
    return {"modes": {"m": Switch(name="m", scope=scope)}, "steps": STEPS_M}


def counter(floor, scope="slot"):
    """A counter n, with the steps push and pop."""
    return {"counters": {"n": Counter(name="n", counts="n", scope=scope, floor=floor)}, "steps": STEPS_N}


def test_steps_are_skipped(tiny):
    """A declared step need not be taken: begin, make begins, make ends."""
    assert {"P": 3} == moves(prove(tiny(properties=(promise("ready", AtLeast("A", 1)),))))


def test_a_rule_of_the_trigger_stops_a_skip(tiny):
    """What the trigger demands is there where it ends."""
    assert {} == moves(
        prove(tiny(rules=(rule("make", AtLeast("A", 1)),), properties=(promise("ready", AtLeast("A", 1)),)))
    )


def test_steps_are_repeated(tiny):
    """After a, b the pipeline takes a again: begin, make begins, then a."""
    spec = tiny(rules=(rule("make", After("B", "A")),), properties=(promise("A", AtLeast("A", 2)),))
    assert {"P": 3} == moves(prove(spec))
    never_twice = promise("A", After("B", "A"), before=True)
    spec = tiny(rules=(rule("make", AtLeast("A", 1)),), properties=(never_twice,))
    assert {"P": 3} == moves(prove(spec))


def test_steps_are_reordered(tiny):
    """b comes before a, unless a rule forbids it."""
    after = promise("B", AtLeast("A", 1))
    assert {"P": 3} == moves(prove(tiny(properties=(after,))))
    assert {} == moves(prove(tiny(rules=(rule("b", AtLeast("A", 1)),), properties=(after,))))


COUNTED = {**STEPS, "a": Step(name="a", event=("A",), count={"n": 1})}
NEVER_TWICE = promise("A", CounterIs("n", 0), before=True)
OF_A = {"counters": {"n": Counter(name="n", counts="how often a was taken")}, "steps": COUNTED}


def test_a_step_raises_anywhere_and_the_slot_fails(tiny):
    """It raises after a was done: begin, make begins, a, make fails."""
    assert {"P": 4} == moves(prove(tiny(properties=(promise("failed", CounterIs("n", 0)),), **OF_A)))


def test_the_failures_steps_may_raise_but_its_cleanup_works(tiny):
    """A step of the failure is any or none; cleanup is there."""
    spec = tiny(("b",), {"fail": {"steps": ("a",), "cleanup": ("c",)}}, properties=(
        promise("failed", AtLeast("A", 1), name="step"), promise("failed", AtLeast("C", 1), name="cleanup"),
    ))  # fmt: skip
    assert {"step": 2} == moves(prove(spec))


@pytest.mark.parametrize(("part", "broken"), [("steps", {}), ("cleanup", {"P": 4})])
def test_a_tried_step_is_not_tried_again_by_the_failure(tiny, part, broken):
    """The failure's own steps are taken only if the transition has not tried them; its cleanup is taken in any case."""
    rules = (rule("a", CounterIs("n", 0)),)
    spec = tiny(("a", "b"), {"fail": {part: ("a",)}}, rules=rules, properties=(NEVER_TWICE,), **OF_A)
    assert broken == moves(prove(spec))


def test_cleanup_of_a_failure_counts_as_no_try(tiny):
    """Cleanup that takes the failure's own step leaves it to be taken again, as the machine has it."""
    spec = tiny(("b", "a"), {"fail": {"steps": ("a",), "cleanup": ("a",)}}, rules=(rule("a", AtLeast("C", 1)),),
                properties=(promise("A", CounterIs("n", 1)),),
                counters={"n": Counter(name="n", counts="a")},
                steps={**STEPS, "a": Step(name="a", event=("A",), count={"n": 1})})  # fmt: skip
    assert 2 == moves(prove(spec))["P"]


def test_a_trigger_that_rules_refuse_does_not_begin(tiny):
    """The declared steps are simulated first: where they are refused, nothing happens, and nothing fails either."""
    spec = tiny(("b",), rules=(rule("b", AtLeast("A", 1)),), properties=(promise("failed", AtLeast("A", 1)),))
    assert {"P": 2} == moves(prove(spec))
    assert "`fail` → failed" in prove(spec).violations[0].trace[-1]


def test_rules_refuse_at_the_end_and_the_slot_fails(tiny):
    """The trigger's rules are asked after the steps, and cleanup has run twice by then."""
    spec = tiny(("a", "b"), {"make": {"cleanup": ("c",)}}, rules=(rule("make", AtLeast("A", 1)),),
                properties=(promise("C", After("A", "C"), before=True),))  # fmt: skip
    violation = prove(spec).violations[0]
    assert 3 == violation.moves
    assert "C" in violation.trace[-1]


@pytest.mark.parametrize("state", ["ready", "failed"])
def test_cleanup_is_never_skipped(tiny, state):
    """Whether a transition ends or fails, its cleanup has run."""
    spec = tiny(("on",), properties=(promise(state, ModeIs("m", False)),), **mode("slot"))
    assert {"P": 4} == moves(prove(spec))
    spec = tiny(("on",), {"make": {"cleanup": ("off",)}}, properties=spec.properties, **mode("slot"))
    assert {} == moves(prove(spec))


def test_a_reset_begins_a_new_life(tiny):
    """What the slot's ledger held is gone, what the others held is not."""
    kept = tiny(("a",), properties=(promise("fresh", CounterIs("n", 0)),), **OF_A)
    assert {} == moves(prove(kept))
    shared = attrs.evolve(kept, counters={"n": Counter(name="n", counts="n", scope="runtime")})
    assert {"P": 2} == moves(prove(shared))


def test_the_moment_just_before_and_just_after_differ(tiny):
    """Just before a, A is not there; just after, it is."""
    assert {"P": 3} == moves(prove(tiny(properties=(promise("A", AtLeast("A", 1), before=True),))))
    assert {} == moves(prove(tiny(properties=(promise("A", AtLeast("A", 1)),))))


# -- other scopes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["variant", "runtime"])
def test_another_slot_moves_what_is_shared(tiny, scope):
    """A mode of the slot's own stays as the slot left it; a shared one is switched between its transitions."""
    changes = {
        "make": {"to": "half"},
        "finish": {"source": ("half",), "to": "ready"},
        "fail": {"source": ("fresh", "half")},
    }
    words = {"rules": (rule("make", ModeIs("m", False)),), "properties": (promise("ready", ModeIs("m", False)),)}
    assert {} == moves(prove(tiny(("on", "off"), changes, **mode("slot"), **words)))
    assert {"P": 5} == moves(prove(tiny(("on", "off"), changes, **mode(scope), **words)))


def test_another_slot_takes_steps_inside_of_this_ones_transitions(tiny):
    """make begins only where the mode is off, and no step of its own switches it: another slot does, before b."""
    changes = {"finish": {"source": ("ready",), "to": "done", "steps": ("on",)}, "fail": {"source": ("fresh", "ready")}}
    rules, kept = (rule("a", ModeIs("m", False)),), promise("B", ModeIs("m", False), before=True)
    assert {"P": 4} == moves(prove(tiny(("a", "b"), changes, rules=rules, properties=(kept,), **mode("runtime"))))


def test_a_slot_of_another_variant_does_not_feed_this_ones_ledger(tiny):
    """What is asked of the variant's ledger is fed by slots of the variant only, and told so."""
    spec = tiny(("b",), properties=(promise("fresh", CounterIs("n", 0), scope="variant"),), **counter(None, "variant"))
    assert {} == moves(prove(spec))
    spec = tiny(("push",), properties=(promise("fresh", CounterIs("n", 0)),), **counter(None, "variant"))
    violation = prove(spec).violations[0]
    assert "another slot of the variant: push: PUSH" in violation.trace[0]


def test_another_slot_is_asked_the_rules_that_read_what_is_shared(tiny):
    """A rule of the runtime's ledger holds for every slot; one of a slot's own ledger cannot be asked of another."""
    kept = promise("fresh", ModeIs("m", False))
    spec = tiny(("on",), rules=(rule("on", ModeIs("m", True)),), properties=(kept,), **mode("runtime"))
    assert {} == moves(prove(spec))
    spec = tiny(("on",), rules=(rule("on", AtLeast("A", 1)),), properties=(kept,), **mode("runtime"))
    assert {"P": 2} == moves(prove(spec))


def test_rounds_end_early_where_the_variant_has_enough(tiny):
    """A count in the variant's ledger lets a transition begin whose steps would be refused if they were taken."""
    rules = (rule("make", AtLeast("A", 1), name="W", scope="variant"), rule("a", AtLeast("C", 1), name="never"))
    spec = tiny(("a",), {"end": {"cleanup": ("a",)}}, rules=rules, properties=(promise("ready", AtLeast("A", 1)),))
    assert {"P": 4} == moves(prove(spec))


# -- sessions and serving ----------------------------------------------------------------------------------------------


def test_a_session_of_ones_own_is_left(tiny):
    """Its steps may be skipped while it is open, and its leave steps never are."""
    session = Session(enter=("on",), leave=("off",))
    inside = tiny(("a",), properties=(promise("A", ModeIs("m", True)),), session=session, **mode("runtime"))
    assert {"P": 3} == moves(prove(inside))
    after = attrs.evolve(inside, properties=(promise("stale", ModeIs("m", False)),))
    outside = prove(after).violations[0]
    assert any("a session opens" in line for line in outside.trace)
    rules = (rule("a", ModeIs("m", True)),)
    assert {} == moves(prove(attrs.evolve(inside, rules=rules)))


def test_a_session_opens_only_where_its_steps_are_not_refused(tiny):
    """A rule of the runtime's ledger that guards an enter step keeps the whole session shut."""
    session = Session(enter=("on",), leave=("off",))
    shut = tiny(("a",), rules=(rule("on", AtLeast("C", 1), scope="runtime"),),
                properties=(promise("A", ModeIs("m", True)),), session=session, **mode("runtime"))  # fmt: skip
    assert {} == moves(prove(shut))


def test_served_forwards_feed_the_runtimes_ledger(tiny):
    """Eager forwards come at any time; a slot's own replay is judged only where replays are permitted."""
    eager = tiny(("b",), properties=(promise("fresh", AtLeast("A", 0), name="x"),), serving=Serving(eager=("a",)))
    told = promise("fresh", CounterIs("n", 0))
    moved = tiny(("b",), properties=(told,), serving=Serving(eager=("push",)), **counter(None, "runtime"))
    assert ({}, {"P": 2}) == (moves(prove(eager)), moves(prove(moved)))
    replayed = tiny(("b",), properties=(promise("A", AtLeast("B", 1)),), serving=Serving(replay=("a",)))
    assert {"P": 4} == moves(prove(replayed))


# -- counters ----------------------------------------------------------------------------------------------------------


def test_a_floor_refuses_a_fall(tiny):
    """What would go below the floor is not done; without a floor it is."""
    never = promise("POP", CounterIs("n", -1), name="below")
    spec = tiny(("push", "pop"), properties=(never,), **counter(0))
    assert {"below": 4} == moves(prove(spec))
    spec = tiny(("push", "pop"), properties=(promise("POP", CounterIs("n", 0)),), **counter(None))
    assert {"P": 3} == moves(prove(spec))


def test_a_counter_far_from_what_is_asked_still_counts(tiny):
    """Beyond its bounds a counter stands for many values; a way that only the bits know is no counterexample."""
    jump = {**STEPS_N, "push": Step(name="push", event=("PUSH",), count={"n": 9})}
    rules = (rule("push", CounterIs("n", 0)),)
    spec = tiny(("push", "pop"), rules=rules, properties=(promise("ready", CounterIs("n", 0)),), **counter(0))
    spec = attrs.evolve(spec, steps=jump, properties=(promise("POP", CounterIs("n", 8)),))
    assert {"P": 5} == moves(prove(spec))


# -- sums over all slots -----------------------------------------------------------------------------------------------

SUMS = {
    "counters": {
        "n": Counter(name="n", counts="n", floor=0),
        "all": Counter(name="all", counts="all", scope="runtime", sums="n"),
    },
    "steps": STEPS_N,
    "serving": Serving(eager=("a",)),
}
"""A slot's counter and its sum, where forwards that serve take the step a."""


def test_a_rule_about_a_sum_tells_of_this_slot(tiny):
    """Where the sum is none, this slot has none, whichever it is; without the rule it may have one."""
    none = promise("A", CounterIs("n", 0), before=True)
    kept = tiny(("push",), rules=(rule("a", CounterIs("all", 0)),), properties=(none,), **SUMS)
    assert ({}, {"P"}) == (moves(prove(kept)), set(moves(prove(attrs.evolve(kept, rules=())))))


def test_a_sum_tells_of_other_slots_too(tiny):
    """What this slot does not have another may: that this one has none is not enough."""
    others = promise("A", CounterIs("all", 0), before=True, scope="runtime")
    free = tiny(("push",), properties=(others,), **SUMS)
    assert {"P"} == set(moves(prove(free)))
    kept = attrs.evolve(free, rules=(rule("a", CounterIs("all", 0)),))
    assert {} == moves(prove(kept))


def test_a_sum_falls_when_a_slot_begins_again(tiny):
    """What a slot forgets by a reset is no longer summed: its next life may have the sum none and do more."""
    spec = tiny(("push", "a"), rules=(rule("a", CounterIs("all", 0)),),
                properties=(promise("A", AtLeast("PUSH", 2), scope="runtime"),), **SUMS)  # fmt: skip
    assert {"P"} == set(moves(prove(spec)))
