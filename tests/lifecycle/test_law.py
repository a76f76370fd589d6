from __future__ import annotations

import attrs
import pytest

from tsgraph.errors import IllegalTransition, InternalError, RuleViolation
from tsgraph.lifecycle.law import Law, Refusal
from tsgraph.lifecycle.monitors import Scopes
from tsgraph.spec.model import CounterIs, ModeIs, Rule


@pytest.fixture
def law(tiny):
    """The compiled tiny spec."""
    return Law.of(tiny)


@pytest.fixture
def scopes(law):
    """Scopes in which nothing has happened."""
    return Scopes(*(law.layout.monitors() for _ in range(3)))


def test_rules_are_asked_in_the_order_of_the_spec(law, scopes):
    """The first rule that refuses is the one that is told, with its reason and what to do."""
    refusal = law.refusal("heat", scopes)
    assert ("burnt_twice", "why burnt_twice", "fix burnt_twice") == (refusal.rule, refusal.because, refusal.fix)
    assert "burnt has happened at least 2 times" in refusal.what


def test_what_no_rule_guards_is_not_refused(law, scopes):
    """A step or trigger without rules is free."""
    assert law.refusal("take", scopes) is None
    assert law.refusal("spoil", scopes) is None


def test_a_step_is_refused_by_its_counters_floor_where_no_rule_refuses(tiny):
    """R24 is asked before the step's work, so an underflow is refused before it happens."""
    law = Law.of(attrs.evolve(tiny, rules=()))
    refusal = law.step_refusal(tiny.steps["burn"], Scopes(*(law.layout.monitors() for _ in range(3))))
    assert ("R24", "burn") == (refusal.rule, refusal.at)


def test_a_rule_on_an_absent_counter_or_mode_is_void(tiny):
    """A counter whose collaborator is absent is not checked; neither is a mode that is not there."""
    rules = tuple(
        Rule(id=name, guards=("pour",), condition=condition, because="", fix="")
        for name, condition in {"c": CounterIs("gone", 3), "m": ModeIs("gone", True)}.items()
    )
    law = Law.of(attrs.evolve(tiny, rules=rules))
    assert law.refusal("pour", Scopes(*(law.layout.monitors() for _ in range(3)))) is None


def test_an_outcome_is_one_of_the_declared(law, tiny):
    """None is the first declared event; another must be declared, else it is a fault of whoever performed the step."""
    vote = tiny.steps["vote"]
    assert ("agreed", "agreed", "refused") == tuple(law.outcome(vote, said) for said in (None, "agreed", "refused"))
    with pytest.raises(InternalError, match="'perhaps', but the spec declares agreed, refused"):
        law.outcome(vote, "perhaps")


def test_what_only_cleans_up_cannot_be_refused(tiny):
    """The failure's trigger and a transition with cleanup alone cannot be refused; one with steps, or bare, can."""
    roles = tiny.lifecycle
    assert {"heat", "cast", "spoil", "free", "again"} == {t.on for t in roles.transitions if roles.refusable(t)}


def test_steps_repeat(law, tiny, scopes):
    """A transition takes its steps as often as it says."""
    trace = []
    assert law.simulate(tiny.lifecycle.transition("heat"), scopes, trace) is None
    assert ["take", "burn", "take", "burn"] == trace


@pytest.mark.parametrize(("scope", "rounds"), [("slot", 2), ("variant", 1), ("runtime", 2)])
def test_rounds_end_when_what_is_counted_with_others_is_enough(tiny, scope, rounds):
    """Warm-ups counted per variant: the rounds that an earlier slot took are not taken again; per slot, all are."""
    rules = tuple(attrs.evolve(rule, scope=scope) if rule.id == "burnt_twice" else rule for rule in tiny.rules)
    law = Law.of(attrs.evolve(tiny, rules=rules))
    scopes = Scopes(*(law.layout.monitors() for _ in range(3)))
    scopes.variant.count[law.layout.events["burnt"]] = 1
    scopes.slot.count[law.layout.events["burnt"]] = 1
    trace = []
    assert law.simulate(tiny.lifecycle.transition("heat"), scopes, trace) is None
    assert rounds == trace.count("burn")


def test_a_simulation_stops_at_the_first_refusal(law, tiny, scopes):
    """What comes before the refused step has been taken on the copies; the refused step and later ones have not."""
    scopes.runtime.modes[law.layout.modes["light"]] = False
    trace = []
    refusal = law.simulate(tiny.lifecycle.transition("cast"), scopes, trace)
    assert ("lit", "pour") == (refusal.rule, refusal.at)
    assert ["switch_on"] == trace


def test_cleanup_of_a_transition_with_steps_comes_before_its_rules(tiny, replaced, scopes):
    """A transition may clean up after its own steps: its rules see what the cleanup did."""
    spec = replaced(tiny, "cast", steps=("switch_on",), cleanup=("switch_off",))
    law = Law.of(attrs.evolve(spec, rules=tuple(rule for rule in tiny.rules if rule.id == "cast_over")))
    trace = []
    assert law.simulate(spec.lifecycle.transition("cast"), scopes, trace) is None
    assert ["switch_on", "switch_off"] == trace


def test_the_shared_law_asks_only_what_reads_the_runtime(law):
    """Steps of no slot are not judged by rules that read a slot's or a variant's events."""
    shared = law.shared()
    assert ["lit", "casting", "burnt_here", "fresh"] == [guard.rule.id for guard in law.guards["pour"]]
    assert ["lit", "casting", "fresh"] == [guard.rule.id for guard in shared.guards["pour"]]


@pytest.mark.parametrize(("kind", "error"), [("state", IllegalTransition), ("rule", RuleViolation)])
def test_a_refusal_becomes_the_error_of_its_kind(kind, error):
    """The error says who, what, why and what to do, and holds the facts as data."""
    refusal = Refusal(kind=kind, rule="R9", at="record", what="late", because="frozen", fix="bind", legal=("bind",))
    raised = refusal.error("slot a is warmed: `capture`", slot="a")
    assert isinstance(raised, error)
    assert "slot a is warmed: `capture` is refused: late (frozen)" == raised.what
    assert ("bind", "record", ("bind",), "a") == (raised.hint, *(raised.context[k] for k in ("at", "legal", "slot")))
