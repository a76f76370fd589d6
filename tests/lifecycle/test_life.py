"""Every state against every trigger, on the shipped decode spec, and what `fire` and `explain` promise."""

from __future__ import annotations

import itertools

import attrs
import pytest

from tests.lifecycle.ready import ready
from tsgraph.errors import CallerError, IllegalTransition, RuleViolation, WrongThread
from tsgraph.lifecycle import Cause
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import COLLABORATORS

ROUTE = ("warm", "bind", "capture", "drain")

# How each state is reached, and where each trigger that it has leads. Every state is listed, also the one without any.
PATHS = {
    "allocated": (),
    "warmed": ROUTE[:1],
    "metadata_bound": ROUTE[:2],
    "captured": ROUTE[:3],
    "replayable": ROUTE,
    "stale": (*ROUTE, "invalidate"),
    "failed": ("fail",),
    "released": (*ROUTE, "release"),
    "retired": ("retire",),
}
LEGAL = {
    "allocated": {"warm": "warmed", "fail": "failed", "retire": "retired"},
    "warmed": {"bind": "metadata_bound", "fail": "failed", "retire": "retired"},
    "metadata_bound": {"capture": "captured", "fail": "failed", "retire": "retired"},
    "captured": {"drain": "replayable", "fail": "failed", "retire": "retired"},
    "replayable": {"invalidate": "stale", "release": "released", "retire": "retired"},
    "stale": {"release": "released", "reset": "allocated", "retire": "retired"},
    "failed": {"release": "released", "reset": "allocated", "retire": "retired"},
    "released": {"reset": "allocated", "retire": "retired"},
    "retired": {},
}
TRIGGERS = (*ROUTE, "invalidate", "fail", "release", "reset", "retire")
PAIRS = [(state, trigger) for state in PATHS for trigger in TRIGGERS]
CLEANUP = ["leave_capture_mode", "drain_grammar", "reset_grammar", "release_graph"]
STEPS = {
    "warm": [
        "bind_mask",
        "synchronize",
        "meet_ranks",
        "prepare_sampler",
        "fill_lengths",
        "bind_metadata",
        "push_grammar",
        "forward",
    ]
    * 4,
    "bind": [
        "bind_mask",
        "synchronize",
        "reset_sampler",
        "meet_ranks",
        "prepare_sampler",
        "fill_lengths",
        "bind_metadata",
    ],
    "capture": [
        "check_views",
        "arm_comm",
        "push_grammar",
        "enter_capture_mode",
        "record",
        "leave_capture_mode",
        "synchronize",
    ],
    "drain": ["drain_grammar", "reset_grammar", "check_addresses", "settle_ranks"],
    "invalidate": [],
    "fail": [*CLEANUP, "settle_ranks"],
    "release": ["release_graph"],
    "reset": ["release_graph"],
    "retire": CLEANUP,
}


@pytest.fixture
def lifecycle(decode):
    """The decode spec, in an open session."""
    lifecycle = ready(decode)
    lifecycle.open_session(lambda step: None)
    return lifecycle


def test_the_matrix_is_the_specs(decode):
    """The tables of this file name every state and trigger of the spec."""
    assert set(decode.lifecycle.states) == set(PATHS) == set(LEGAL)
    assert {transition.on for transition in decode.lifecycle.transitions} == set(TRIGGERS) == set(STEPS)


@pytest.mark.parametrize(("state", "trigger"), [(s, t) for s, t in PAIRS if t not in LEGAL[s]])
def test_an_illegal_trigger_changes_nothing(lifecycle, taken, recorder, snapshot, state, trigger):
    """A trigger that does not exist in the state raises before any effect: nothing is performed, nothing is changed."""
    life, neighbour = taken(lifecycle, PATHS[state]), taken(lifecycle, ROUTE[:2], "default/4")
    before = snapshot(life), snapshot(neighbour)
    perform = recorder()
    assert not life.can(trigger)
    with pytest.raises(IllegalTransition):
        life.fire(trigger, perform, cause=Cause("test", "no"))
    assert state == life.state
    assert [] == perform.steps
    assert before == (snapshot(life), snapshot(neighbour))


@pytest.mark.parametrize(("state", "trigger"), [(s, t) for s, t in PAIRS if t in LEGAL[s]])
def test_a_legal_trigger_takes_its_steps_and_leads_where_it_says(lifecycle, taken, recorder, state, trigger):
    """A legal trigger performs the declared steps in order, repeated as declared, and enters the declared state."""
    life = taken(lifecycle, PATHS[state])
    perform = recorder()
    assert life.can(trigger)
    life.fire(trigger, perform)
    assert LEGAL[state][trigger] == life.state
    assert STEPS[trigger] == perform.steps


def test_an_unknown_trigger_is_refused_with_those_that_exist(lifecycle, snapshot, noop):
    """A trigger that the spec does not have raises in every state, and names those it has."""
    life = lifecycle.begin("default/8", "default")
    before = snapshot(life)
    assert not life.can("anneal")
    with pytest.raises(IllegalTransition, match="no such trigger") as caught:
        life.fire("anneal", noop)
    assert all(trigger in caught.value.hint for trigger in TRIGGERS)
    assert before == snapshot(life)


def test_history_is_what_happened_in_order(lifecycle, taken):
    """The ledger has the event of each step, then the state that it led to, beginning with the initial state."""
    life = taken(lifecycle, ROUTE[:2])
    entries = [(entry.kind, entry.name, entry.step) for entry in life.history]
    assert ("state", "allocated", "begin") == entries[0]
    assert [("event", "metadata_bound", "bind_metadata"), ("state", "metadata_bound", "bind")] == entries[-2:]
    assert [*STEPS["warm"], "warm", *STEPS["bind"], "bind"] == [step for _, _, step in entries[1:]]


def test_a_reset_begins_a_life_and_keeps_the_history(lifecycle, taken, noop):
    """A reset counts a new life, starts the slot's own monitors anew, clears cause and failure, keeps what was."""
    life = taken(lifecycle, ())
    with pytest.raises(ZeroDivisionError):
        life.fire("warm", lambda step: 1 / 0)
    before = life.history
    life.fire("reset", noop)
    assert before == life.history[:-2]
    assert (1, "graph_released") == (life.history[-2].life, life.history[-2].name)
    assert (2, "allocated") == (life.history[-1].life, life.history[-1].name)
    assert lifecycle.law.layout.monitors() == life.scopes.slot
    assert (None, None) == (life.cause, life.last_failure)
    assert life.scopes.runtime is lifecycle.runtime_scope
    assert life.scopes.variant is lifecycle.variant_scope("default")
    assert 0 < lifecycle.runtime_scope.clock == lifecycle.variant_scope("default").clock + 3  # setup, session


def test_a_cause_is_kept_until_a_reset(lifecycle, taken, noop):
    """What made a slot stale is told there and after its release, and in its ledger; a reset clears it."""
    life = taken(lifecycle, ROUTE)
    cause = Cause("weights", "layer.0 has moved")
    life.fire("invalidate", cause=cause)
    assert (cause, "weights: layer.0 has moved") == (life.cause, life.history[-1].detail)
    life.fire("release", noop)
    assert cause == life.cause
    life.fire("reset", noop)
    assert life.cause is None


def test_steps_need_someone_to_perform_them(lifecycle, taken, snapshot):
    """A transition with steps or cleanup is refused without `perform`: the ledger would tell what nobody did."""
    for trigger in ("warm", "fail", "retire"):
        life = taken(lifecycle, ())
        before = snapshot(life)
        with pytest.raises(CallerError, match="nothing performs them"):
            life.fire(trigger)
        assert before == snapshot(life)


def test_a_transition_is_not_fired_from_within_another(lifecycle, taken):
    """Work that fires a trigger of its own slot is refused, and that fails the transition like any other error."""
    life = taken(lifecycle, ())

    def perform(step):
        if step.name == "forward":
            life.fire("retire", perform)

    with pytest.raises(WrongThread, match="in a transition already"):
        life.fire("warm", perform)
    assert "failed" == life.state
    life.fire("reset", lambda step: None)
    assert "allocated" == life.state


def test_work_may_ask_what_is_possible(lifecycle, taken):
    """`can` and `explain` change nothing, so that work may ask them at any time."""
    life = taken(lifecycle, ())
    asked = []
    life.fire("warm", lambda step: asked.append(life.can("fail")))
    assert {True} == set(asked)


# -- explain ----------------------------------------------------------------------------------------------------------


def test_explain_tells_the_steps(lifecycle, taken):
    """What is allowed comes with the steps that would be taken, and reads as two lines."""
    explanation = taken(lifecycle, ROUTE[:1]).explain("bind")
    assert (True, None, tuple(STEPS["bind"])) == (explanation.allowed, explanation.refusal, explanation.trace)
    assert f"`bind` in warmed: allowed\n  steps: {', '.join(STEPS['bind'])}" == str(explanation)


def test_explain_tells_the_first_refusal(decode, replaced, taken):
    """What a rule refuses comes with the rule, its reason, what to do, what is legal, and the steps before it."""
    life = taken(replaced(decode, "capture", steps=("check_views", "record")), ROUTE[:2])
    refusal = life.explain("capture").refusal
    assert ("rule", "R22", "record") == (refusal.kind, refusal.rule, refusal.at)
    assert ("capture", "fail", "retire") == refusal.legal
    text = str(life.explain("capture"))
    for part in (
        "refused",
        "at record, rule R22 demands",
        "because: with more",
        "fix: push one",
        "before: freeze_gc, check",
    ):
        assert part in text


def test_explain_tells_the_session_that_would_be_opened(decode, taken):
    """Without an open session, the steps begin with those that enter one."""
    assert "freeze_gc" == taken(decode, ROUTE[:2]).explain("capture").trace[0]


def test_explain_of_an_illegal_trigger_tells_the_way(lifecycle, taken):
    """A wrong state is told with what is legal and the way to where the trigger exists."""
    explanation = taken(lifecycle, ()).explain("capture")
    assert ("state", "fire warm, bind first") == (explanation.refusal.kind, explanation.refusal.fix)
    assert ("warm", "fail", "retire") == explanation.refusal.legal
    assert "it does not exist in allocated; legal: warm, fail, retire" in str(explanation)


def test_explaining_changes_nothing(lifecycle, taken, snapshot):
    """However often it is asked, an explanation leaves slot and scopes as they were."""
    for state, path in PATHS.items():
        life = taken(lifecycle, path, name=f"default/{state}")
        before = snapshot(life)
        for trigger in (*TRIGGERS, "anneal"):
            life.explain(trigger)
        assert before == snapshot(life)


# -- collaborators ----------------------------------------------------------------------------------------------------


def _present():
    spec = load_spec("decode")
    named = sorted({step.needs for step in spec.steps.values()} - {None, "freeze_gc"})
    sets = (frozenset(chosen) for n in range(len(named) + 1) for chosen in itertools.combinations(named, n))
    return [(present, freeze) for present in sets for freeze in (True, False)]


@pytest.mark.parametrize(
    ("present", "freeze"), _present(), ids=lambda v: "+".join(sorted(v)) if v != bool(v) else str(v)
)
def test_every_combination_of_collaborators_has_a_way(noop, present, freeze):
    """Whatever is absent, the route leads to a replayable slot, leaves nothing on, and works again after a reset."""
    whole = load_spec("decode")
    spec = attrs.evolve(whole, policy=attrs.evolve(whole.policy, freeze_gc=freeze)).restricted_to(present)
    lifecycle = ready(spec)
    life = lifecycle.begin("default/8", "default")
    for triggers in (lifecycle.route, ("invalidate", "reset"), lifecycle.route):
        for trigger in triggers:
            assert life.can(trigger)
            life.fire(trigger, noop)
    assert "replayable" == life.state
    assert ({"holds_graph"}, set(), set()) == tuple(_modes_on(monitors, lifecycle) for monitors in life.scopes)
    assert [0] * len(spec.counters) == life.scopes.slot.counters


def _modes_on(monitors, lifecycle):
    return {name for name, number in lifecycle.law.layout.modes.items() if monitors.modes[number]}


# -- one rule at a time -----------------------------------------------------------------------------------------------

# For each rule, the step of a transition that satisfies it and no rule asked earlier. R9b is implied by R9a where no
# binding is left, so there the order is turned, and so it is for R21b; R25 is implied by R22 while warm-ups repeat, so
# there they are written out. R24 is the floor of the counter `grammar`; R22 would refuse first, and is dropped.
WITHOUT = {
    "R7": ("warm", "fill_lengths"),
    "R8a": ("warm", "prepare_sampler"),
    "R8b": ("warm", "bind_metadata"),
    "R6b": ("warm", "synchronize"),
    "R6c": ("warm", "meet_ranks"),
    "R18": ("warm", "bind_mask"),
    "R25b": ("warm", "bind_metadata"),
    "R22": ("warm", "push_grammar"),
    "W1": ("warm", "forward"),
    "R10a": ("bind", "synchronize"),
    "R10b": ("bind", "reset_sampler"),
    "R11": ("bind", "prepare_sampler"),
    "R9a": ("bind", "bind_metadata"),
    "R19": ("capture", "check_views"),
    "C3": ("capture", "arm_comm"),
    "R20a": ("capture", "enter_capture_mode"),
    "R20b": ("capture", "leave_capture_mode"),
    "C1": ("capture", "record"),
    "C2": ("capture", "synchronize"),
    "R23a": ("drain", "drain_grammar"),
    "R23b": ("drain", "reset_grammar"),
    "R21": ("drain", "check_addresses"),
    "R6": ("drain", "settle_ranks"),
}
REFUSED_AT = {"R11": "capture", "R9a": "capture", "R9b": "capture"}
SESSION = {"R43": "enter", "R43b": "leave"}  # each trigger opens a session of its own, and leaves it
NO_GRAMMAR = ("R8b", "R9a")  # with a grammar, R25b refuses earlier
CHANGED = {
    "R9b": ("bind", {"steps": (*STEPS["bind"][:4], "fill_lengths", "bind_metadata", "prepare_sampler")}),
    "R25": ("warm", {"steps": (*STEPS["warm"], "fill_lengths", "bind_metadata", "push_grammar"), "repeat": 1}),
    "R21b": ("drain", {"steps": ("check_addresses", "drain_grammar", "reset_grammar", "settle_ranks")}),
    "R24": ("warm", {"steps": tuple(step for step in STEPS["warm"][:8] if step != "push_grammar")}),
    "R43": ("capture", {}),
    "R43b": ("bind", {}),
}


def _broken(spec, replaced, rule):
    if rule in WITHOUT:
        on, dropped = WITHOUT[rule]
        steps = spec.lifecycle.transition(on).steps
        return on, replaced(spec, on, steps=tuple(step for step in steps if step != dropped))
    on, words = CHANGED[rule]
    spec = replaced(spec, on, **words)
    if rule in SESSION:
        return on, attrs.evolve(spec, session=attrs.evolve(spec.session, **{SESSION[rule]: ()}))
    return on, attrs.evolve(spec, rules=tuple(r for r in spec.rules if not (rule == "R24" and r.id == "R22")))


@pytest.mark.parametrize("rule", [*WITHOUT, *CHANGED])
def test_a_shortcut_is_refused_by_its_rule_before_any_effect(decode, replaced, taken, recorder, snapshot, rule):
    """Leaving out what a rule demands is refused by that very rule, as `explain` says, before anything is performed."""
    present = frozenset(COLLABORATORS) - ({"grammar"} if rule in NO_GRAMMAR else set())
    on, spec = _broken(decode.restricted_to(present), replaced, rule)
    trigger = REFUSED_AT.get(rule, on)
    life = taken(spec, ROUTE[: ROUTE.index(trigger)])
    before, perform = snapshot(life), recorder()
    assert rule == life.explain(trigger).refusal.rule
    with pytest.raises(RuleViolation) as caught:
        life.fire(trigger, perform)
    assert rule == caught.value.rule
    assert ([], before) == (perform.steps, snapshot(life))
    assert [r.fix for r in spec.rules if r.id == rule] in ([caught.value.hint], [])


def test_every_rule_of_decode_has_a_shortcut_here(decode):
    """Each rule of the spec, and the floor R24, is broken above, by another setup, or by forwards that are served."""
    setup, serving = {"R2", "R3a", "R3b"}, {"R22b", "R22c"}
    assert {rule.id for rule in decode.rules} | {"R24"} == {*WITHOUT, *CHANGED, *setup, *serving}


def test_without_a_sampler_binding_again_is_still_demanded(replaced, taken, noop):
    """R9a is implied by other rules where there is a sampler; where there is none it alone refuses."""
    spec = load_spec("decode").restricted_to(frozenset({"comm"}))
    life = taken(replaced(spec, "bind", steps=("synchronize",)), ROUTE[:2])
    with pytest.raises(RuleViolation) as caught:
        life.fire("capture", noop)
    assert "R9a" == caught.value.rule
