"""What a failure leaves behind: a failed slot, nothing that others share, and a way to begin again."""

from __future__ import annotations

import gc
import weakref

import attrs
import pytest

from tests.lifecycle.ready import ready
from tsgraph.errors import InternalError, RuleViolation
from tsgraph.lifecycle import Cause, Failure, Lifecycle
from tsgraph.spec.model import After, Rule

ROUTE = ("warm", "bind", "capture", "drain")
CLEANUP = ["leave_capture_mode", "drain_grammar", "reset_grammar", "release_graph"]
PERFORMED = 4 * 8 + 7 + 7 + 4  # the steps of the route, warm-ups repeated


@pytest.fixture
def lifecycle(decode):
    """The decode spec, in an open session."""
    lifecycle = ready(decode)
    lifecycle.open_session(lambda step: None)
    return lifecycle


def _lived(life, perform):
    """Take the route with `perform`, up to the end."""
    for trigger in ROUTE:
        life.fire(trigger, perform)


def _is_clean(life):
    layout = life._lifecycle.law.layout
    capture = any(monitors.modes[layout.modes["capture"]] for monitors in life.scopes)
    return not capture and 0 == life.scopes.slot.counters[layout.counters["grammar"]]


def test_the_route_performs_the_steps_that_failures_are_injected_into(lifecycle, recorder):
    """The number of injections below is the number of steps that the route performs."""
    perform = recorder()
    _lived(lifecycle.begin("default/8", "default"), perform)
    assert PERFORMED == len(perform.steps)


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("at", range(PERFORMED))
def test_a_failure_at_any_step(lifecycle, taken, recorder, noop, at, kind):
    """Wherever a step raises, the error goes on and the slot fails with the cause, cleaned up, having voted once.

    Nothing shared is left on, other slots are untouched, and after a reset the whole route works.
    """
    others = [taken(lifecycle, ROUTE, "default/4"), taken(lifecycle, ROUTE[:2], "greedy/4", "greedy")]
    before = [(life.state, life.history, life.scopes.slot.copy()) for life in others]
    error = kind("injected")
    life, perform = lifecycle.begin("default/8", "default"), recorder(at=at, error=error)

    with pytest.raises(kind) as caught:
        _lived(life, perform)

    assert error is caught.value
    assert "failed" == life.state
    assert (kind.__name__, "injected") == (life.cause.kind, life.cause.summary)
    assert "in __call__" in life.cause.detail
    assert perform.steps[at] == life.last_failure.step
    assert CLEANUP == [step for step in perform.steps[at + 1 :] if step != "settle_ranks"]
    assert 1 == perform.steps.count("settle_ranks")
    assert _is_clean(life)
    assert before == [(life.state, life.history, life.scopes.slot.copy()) for life in others]

    life.fire("reset", noop)
    _lived(life, noop)
    assert ("replayable", None) == (life.state, life.cause)


def test_an_error_tells_slot_state_trigger_and_step(lifecycle, taken, recorder):
    """The error has a note of where it happened; the ledger and the life have it too, as data."""
    life = taken(lifecycle, ROUTE[:2])
    with pytest.raises(ValueError, match="boom") as caught:
        life.fire("capture", recorder(raises={"record": ValueError("boom")}))
    assert "slot default/8: `capture` failed in metadata_bound, at step record" in caught.value.__notes__
    assert Failure("capture", "metadata_bound", "record") == life.last_failure
    assert "`capture` failed in metadata_bound, at step record: ValueError: boom" == life.history[-1].detail


@pytest.mark.parametrize("broken", [[name] for name in [*CLEANUP, "settle_ranks"]] + [[*CLEANUP, "settle_ranks"]])
def test_cleanup_that_raises_stops_no_cleanup(lifecycle, taken, recorder, broken):
    """Each cleanup step is tried though others raise; the original error goes on, theirs are notes on it."""
    life = taken(lifecycle, ROUTE[:2])
    raises = {"check_views": ValueError("boom")} | {name: OSError(name) for name in broken}
    perform = recorder(raises=raises)
    with pytest.raises(ValueError, match="boom") as caught:
        life.fire("capture", perform)
    assert ["check_views", *CLEANUP, "settle_ranks"] == perform.steps
    assert ("failed", "ValueError") == (life.state, life.cause.kind)
    notes = [f"step {name}, which had to run, raised OSError: {name}" for name in broken]
    assert notes == [note for note in caught.value.__notes__ if "had to run" in note]
    assert all(note in life.cause.detail for note in notes)
    done = {entry.step for entry in life.history[-6:] if entry.kind == "event"}
    assert done & {*CLEANUP, "settle_ranks"} == {*CLEANUP, "settle_ranks"} - set(broken)


def test_an_interrupt_during_cleanup_goes_on(lifecycle, taken, recorder):
    """A Ctrl-C while cleaning up after an error is raised, once the cleanup is done; the cause stays the error."""
    life = taken(lifecycle, ROUTE[:2])
    perform = recorder(raises={"record": ValueError("boom"), "drain_grammar": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt) as caught:
        life.fire("capture", perform)
    assert isinstance(caught.value.__context__, ValueError)
    assert [*CLEANUP, "settle_ranks"] == perform.steps[-5:]
    assert ("failed", "ValueError") == (life.state, life.cause.kind)


def test_ranks_that_refuse_fail_the_slot(lifecycle, taken, recorder):
    """Where the vote says no, the rule on it refuses after the steps: the slot fails, and does not vote again."""
    life = taken(lifecycle, ROUTE[:3])
    perform = recorder(outcomes={"settle_ranks": "ranks_refused"})
    with pytest.raises(RuleViolation) as caught:
        life.fire("drain", perform)
    assert ("R6", "drain") == (caught.value.rule, caught.value.context["at"])
    assert ("failed", "RuleViolation") == (life.state, life.cause.kind)
    assert Failure("drain", "captured", None) == life.last_failure
    assert 1 == perform.steps.count("settle_ranks")
    assert "ranks_refused" in [entry.name for entry in life.history]


def test_a_failed_slot_votes_and_the_vote_is_in_its_ledger(lifecycle, taken, recorder):
    """A rank whose capture failed votes too, so that its peers do not wait for it; what they agreed on is kept."""
    life = taken(lifecycle, ROUTE[:2])
    perform = recorder(raises={"record": ValueError("boom")}, outcomes={"settle_ranks": "ranks_refused"})
    with pytest.raises(ValueError, match="boom"):
        life.fire("capture", perform)
    assert ["ranks_refused", "failed"] == [entry.name for entry in life.history[-2:]]


def test_an_undeclared_outcome_fails_the_slot(lifecycle, taken, recorder):
    """A step that says what the spec does not declare is a fault, and the slot fails like after any other error."""
    life = taken(lifecycle, ROUTE[:3])
    with pytest.raises(InternalError, match="'perhaps', but the spec declares ranks_agreed, ranks_refused"):
        life.fire("drain", recorder(outcomes={"settle_ranks": "perhaps"}))
    assert ("failed", "settle_ranks") == (life.state, life.last_failure.step)


def test_a_step_that_a_rule_refuses_is_not_performed(tiny, replaced, recorder):
    """Rules of a step are asked before its work in the run itself too, where outcomes are not the simulated ones."""
    rule = Rule(id="new", guards=("pour",), condition=After("agreed", "refused"), because="", fix="")
    spec = replaced(tiny, "cast", steps=("switch_on", "vote", "pour", "switch_off"))
    life = Lifecycle(attrs.evolve(spec, rules=(*tiny.rules, rule))).begin("a/1", "a")
    life.fire("heat", recorder())
    perform = recorder(outcomes={"vote": "refused"})
    assert "agreed" == life.explain("cast").refusal.rule  # the rule on `cast` needs a later vote
    spec = attrs.evolve(spec, rules=(*(r for r in tiny.rules if r.id != "agreed"), rule))
    life = Lifecycle(spec).begin("a/1", "a")
    life.fire("heat", recorder())
    with pytest.raises(RuleViolation, match="rule new"):
        life.fire("cast", perform)
    assert "pour" not in perform.steps
    assert ("broken", "pour") == (life.state, life.last_failure.step)


@pytest.mark.parametrize("trigger", ["fail", "retire"])
def test_what_cannot_be_refused_is_completed_before_it_raises(lifecycle, taken, recorder, trigger):
    """Failing or retiring a slot by hand takes every step and changes the state, then raises what a step raised."""
    life = taken(lifecycle, ROUTE[:2])
    perform = recorder(raises={"drain_grammar": OSError("stuck")})
    with pytest.raises(OSError, match="stuck"):
        life.fire(trigger, perform, cause=Cause("test", "by hand"))
    assert CLEANUP == perform.steps[:4]
    assert {"fail": "failed", "retire": "retired"}[trigger] == life.state
    assert Cause("test", "by hand") == life.cause


def test_a_failure_where_no_failure_trigger_exists_leaves_the_state(tiny, replaced, taken, recorder):
    """A state that cannot fail keeps its slot: the error goes on with its note, and `last_failure` tells."""
    life = taken(replaced(tiny, "free", steps=("vote",)), ("heat", "cast"))
    with pytest.raises(OSError, match="stuck") as caught:
        life.fire("free", recorder(raises={"vote": OSError("stuck")}))
    assert ("solid", None) == (life.state, life.cause)
    assert Failure("free", "solid", "vote") == life.last_failure
    assert "slot default/8: `free` failed in solid, at step vote" in caught.value.__notes__


@pytest.mark.parametrize("broken", [None, "switch_on", "put_back"])
def test_a_transition_may_clean_up_after_its_own_steps(tiny, replaced, taken, recorder, broken):
    """Cleanup of a transition with steps is taken on success and on failure; its own error fails the slot."""
    spec = replaced(tiny, "cast", steps=("switch_on", "pour", "vote"), cleanup=("lend", "put_back", "switch_off"))
    life = taken(spec, ("heat",))
    perform = recorder(raises={broken: OSError("stuck")} if broken else {})
    if broken is None:
        life.fire("cast", perform)
        assert ["light", "switch_on", "pour", "vote", "lend", "put_back", "switch_off", "darken"] == perform.steps
        return
    with pytest.raises(OSError, match="stuck"):
        life.fire("cast", perform)
    assert {"lend", "put_back", "switch_off"} <= set(perform.steps[perform.steps.index(broken) + 1 :])
    assert ("broken", broken) == (life.state, life.last_failure.step)


# -- memory -----------------------------------------------------------------------------------------------------------


class _Tensor:
    """Stands for what a step's frame holds."""


def _failing(life, raises):
    """Fail the slot with work whose frames hold a tensor; what the tensor's weak references say afterwards."""
    references = []

    def perform(step):
        if step.name in raises:
            tensor = _Tensor()
            references.append(weakref.ref(tensor))
            raise raises[step.name]

    with pytest.raises((ValueError, KeyboardInterrupt)):
        life.fire("warm", perform)
    raises.clear()
    return references


@pytest.mark.parametrize("session", [True, False], ids=["session", "no_session"])
@pytest.mark.parametrize("second", [None, OSError, KeyboardInterrupt])
def test_a_failed_slot_keeps_no_tensor_alive(decode, session, second):
    """Once the error is handled, the frames it went through are gone without a collection: memory comes back."""
    lifecycle = ready(decode)
    if session:
        lifecycle.open_session(lambda step: None)
    life = lifecycle.begin("default/8", "default")
    gc.collect()
    gc.disable()
    try:
        references = _failing(life, {"forward": ValueError("boom")} | ({"drain_grammar": second()} if second else {}))
        assert [None] * (2 if second else 1) == [reference() for reference in references]
    finally:
        gc.enable()
    assert "failed" == life.state
