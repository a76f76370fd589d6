from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc

import attrs
import pytest
import transitions.core

from tsgraph.errors import IllegalTransition, InternalError, SpecError
from tsgraph.lifecycle import Lifecycle
from tsgraph.spec.model import After, Rule, Step


def test_the_route_is_the_shortest_way_to_a_replay(decode, tiny):
    """`route` leads from the initial state to one that permits replays, without failing or resetting on the way."""
    assert ("warm", "bind", "capture", "drain") == Lifecycle(decode).route
    assert ("heat", "cast") == Lifecycle(tiny).route


def test_the_route_leaves_out_triggers_with_a_role(tiny, replaced):
    """A shortcut through the change or failure trigger is no route."""
    assert ("heat", "cast") == Lifecycle(replaced(tiny, "spoil", source=("cold",), to="solid")).route


def test_a_spec_without_a_way_to_a_replay_has_no_route(tiny, replaced):
    """No way is the empty route; the spec layer is who says that it is wrong."""
    assert () == Lifecycle(replaced(tiny, "cast", source=("spoilt",))).route


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"to": "molten"}, "transitions.heat: there is no state 'molten'"),
        ({"source": ("icy",)}, "transitions.heat: there is no state 'icy'"),
        ({"steps": ("take", "fly")}, "transitions.heat: there is no step 'fly'"),
        ({"cleanup": ("fly",)}, "transitions.heat: there is no step 'fly'"),
        ({"on": "cast"}, "transitions.cast: declared more than once"),
    ],
)
def test_unknown_names_are_refused_at_construction(tiny, replaced, words, problem):
    """`transitions` would find a bad name only when it is fired; here no lifecycle is made."""
    with pytest.raises(SpecError) as caught:
        Lifecycle(replaced(tiny, "heat", **words))
    assert problem in caught.value.problems


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"initial": "icy"}, "lifecycle: there is no state 'icy'"),
        ({"replays_in": ("icy",)}, "lifecycle: there is no state 'icy'"),
        ({"on_failure": "explode"}, "lifecycle: no transition is named 'explode'"),
    ],
)
def test_unknown_roles_are_refused_at_construction(tiny, words, problem):
    """Roles name states and triggers that exist."""
    with pytest.raises(SpecError) as caught:
        Lifecycle(attrs.evolve(tiny, lifecycle=attrs.evolve(tiny.lifecycle, **words)))
    assert (problem,) == caught.value.problems


@pytest.mark.parametrize("trigger", ["break", "end"])
def test_a_rule_cannot_guard_what_cannot_be_refused(tiny, trigger):
    """A rule on the failure's trigger, or on one that only cleans up, would never be asked: it is refused."""
    rule = Rule(id="never", guards=(trigger,), condition=After("on", "off"), because="", fix="")
    with pytest.raises(SpecError, match=f"transitions.{trigger}: rule never guards it"):
        Lifecycle(attrs.evolve(tiny, rules=(*tiny.rules, rule)))


# -- the traps of `transitions` ---------------------------------------------------------------------------------------


def test_slots_cost_the_machine_nothing(tiny, noop):
    """Slots are no models of the machine: 100 lives that were lived, and are held, leave 0 bytes in `transitions`."""
    lifecycle = Lifecycle(tiny)
    lives = [lifecycle.begin(f"a/{n}", "a") for n in range(101)]
    lives[0].fire("heat", noop)
    gc.collect()
    tracemalloc.start()
    try:
        for life in lives[1:]:
            life.fire("heat", noop)
        gc.collect()
        left = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, transitions.core.__file__)])
    finally:
        tracemalloc.stop()
    assert [] == lifecycle.machine.models
    assert 0 == sum(trace.size for trace in left.traces)
    assert ["hot"] * 101 == [life.state for life in lives]


def test_the_machine_has_no_states_or_triggers_of_its_own(decode):
    """No `to_state` triggers, no default state: exactly what the spec declares."""
    machine = Lifecycle(decode).machine
    assert set(decode.lifecycle.states) == set(machine.states)
    assert {transition.on for transition in decode.lifecycle.transitions} == set(machine.events)


def test_the_machine_uses_nothing_that_hides_an_error(decode):
    """Never queued, nothing ignored, no exception handler; conditions are callables: strings would be imported."""
    machine = Lifecycle(decode).machine
    assert (False, None, []) == (machine.has_queue, machine.ignore_invalid_triggers, machine.on_exception)
    rows = [row for event in machine.events.values() for rows in event.transitions.values() for row in rows]
    assert all(callable(condition.func) for row in rows for condition in row.conditions)
    assert not any(row.before or row.after or row.prepare for row in rows)
    assert not any(state.on_enter or state.on_exit for state in machine.states.values())


@pytest.mark.parametrize("name", ["state", "fire", "can", "trigger", "__init__"])
def test_a_trigger_may_be_named_like_a_method(tiny, replaced, taken, name):
    """`transitions` silently binds no trigger whose name the model has; unregistered slots have no such clash."""
    spec = replaced(tiny, "spoil", on=name)
    spec = attrs.evolve(spec, lifecycle=attrs.evolve(spec.lifecycle, on_change=name))
    life = taken(spec, ("heat", "cast", name))
    assert "spoilt" == life.state


def test_a_condition_answers_with_a_bool(tiny, taken):
    """`transitions` takes a truthy value that is not True for a refusal: a rule that says 3 is a rule that holds."""
    lifecycle = Lifecycle(tiny)
    row = lifecycle.machine.events["heat"].transitions["cold"][0]
    for condition in row.conditions:
        condition.func = attrs.evolve(condition.func, guard=attrs.evolve(condition.func.guard, holds=lambda scopes: 3))
    assert "hot" == taken(lifecycle, ("heat",)).state


def test_the_machine_is_the_last_defence(tiny, taken, noop):
    """A rule that the machine finds broken after all others had agreed is a fault of tsgraph, and the slot fails."""
    lifecycle = Lifecycle(tiny)
    life = taken(lifecycle, ("heat",))
    condition = lifecycle.machine.events["cast"].transitions["hot"][0].conditions[0]
    condition.func = attrs.evolve(condition.func, guard=attrs.evolve(condition.func.guard, holds=lambda scopes: False))
    with pytest.raises(InternalError, match="the machine refuses `cast`"):
        life.fire("cast", noop)
    assert "broken" == life.state


def test_every_rule_of_a_trigger_is_a_condition_of_the_machine(decode):
    """The machine carries the trigger's rules, in order; those of triggers that cannot be refused carry none."""
    machine = Lifecycle(decode).machine
    for transition in decode.lifecycle.transitions:
        expected = [rule.id for rule in decode.rules if transition.on in rule.guards]
        for source in transition.source:
            (row,) = machine.events[transition.on].transitions[source]
            assert expected == [condition.func.guard.rule.id for condition in row.conditions]


def test_the_spec_is_left_as_it_was(tiny, decode):
    """`transitions` mutates state dicts that it is handed; it is handed none of the spec's own collections."""
    for spec in (tiny, decode):
        before = repr(spec)
        Lifecycle(spec)
        assert before == repr(spec)


def test_the_state_is_not_to_be_assigned(tiny):
    """Only the machine changes a state."""
    life = Lifecycle(tiny).begin("a/1", "a")
    with pytest.raises(AttributeError):
        life.state = "solid"


# -- what the machine says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("triggers", "asked", "fix"),
    [
        ((), "capture", "fire warm, bind first"),
        (("warm", "bind"), "warm", "fire fail, reset first"),
        (("warm", "bind", "capture", "drain"), "warm", "fire invalidate, reset first"),
        (("retire",), "warm", "begin a new slot: nothing leads there from retired"),
        ((), "anneal", "fire one of warm, bind, capture, drain, invalidate, release, fail, reset, retire"),
    ],
)
def test_an_illegal_trigger_says_how_to_get_there(decode, taken, noop, triggers, asked, fix):
    """A refusal for the state says what is legal here and the shortest way to where the trigger exists."""
    life = taken(decode, triggers)
    with pytest.raises(IllegalTransition, match="slot default/8 is") as caught:
        life.fire(asked, noop)
    assert fix == caught.value.hint
    assert decode.lifecycle.triggers(life.state) == caught.value.context["legal"]


def test_the_lifecycle_imports_no_torch():
    """The lifecycle is pure Python: torch stays unloaded."""
    code = "import sys, tsgraph.lifecycle; sys.exit('torch' in sys.modules)"
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_an_absent_step_is_an_event_that_never_happens(tiny):
    """A rule may name the event of a step that a restriction has dropped: the event just never happens."""
    steps = {name: step for name, step in tiny.steps.items() if name != "lend"} | {
        "serve": Step(name="serve", event=("served",))
    }
    rule = Rule(id="lent", guards=("pour",), condition=After("lent_out", "poured"), because="", fix="")
    spec = attrs.evolve(
        tiny, steps=steps, rules=(*tiny.rules, rule), serving=attrs.evolve(tiny.serving, replay=(), eager=())
    )
    life = Lifecycle(spec).begin("a/1", "a")
    life.fire("heat", lambda step: None)
    assert "lent" == life.explain("cast").refusal.rule
