from __future__ import annotations

import contextlib

import attrs
import pytest

from tests.lifecycle.ready import ready
from tsgraph.errors import CallerError, InternalError, RuleViolation
from tsgraph.lifecycle import Lifecycle
from tsgraph.lifecycle.law import Law
from tsgraph.lifecycle.shared import KINDS, Shared
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import AtLeast, CounterIs, ModeIs, Rule


@pytest.fixture
def lifecycle(tiny):
    """The tiny spec, with no session open."""
    return Lifecycle(tiny)


def _mode(lifecycle, name):
    return lifecycle.runtime_scope.modes[lifecycle.law.layout.modes[name]]


def _with_rule(spec, at, condition, scope="slot"):
    rule = Rule(id="new", guards=(at,), condition=condition, because="why", fix="do", scope=scope)
    return attrs.evolve(spec, rules=(*spec.rules, rule))


# -- scopes -----------------------------------------------------------------------------------------------------------


def test_the_runtime_scope_is_one_for_all_slots(lifecycle, noop):
    """Every slot feeds the same runtime monitors, whatever its variant, and a reset leaves them."""
    one, other = lifecycle.begin("a/1", "a"), lifecycle.begin("b/1", "b")
    one.fire("heat", noop)
    other.fire("heat", noop)
    one.fire("break", noop)
    one.fire("again", noop)
    assert 4 == lifecycle.runtime_scope.count[lifecycle.law.layout.events["burnt"]]


def test_a_variants_scope_is_shared_by_its_slots_only(lifecycle, noop):
    """Slots of one variant feed one set of monitors, which a reset leaves and other variants never see."""
    burnt = lifecycle.law.layout.events["burnt"]
    one, same = lifecycle.begin("a/1", "a"), lifecycle.begin("a/2", "a")
    other = lifecycle.begin("b/1", "b")
    for life in (one, same):
        life.fire("heat", noop)
    one.fire("break", noop)
    one.fire("again", noop)
    assert (4, 0) == (lifecycle.variant_scope("a").count[burnt], lifecycle.variant_scope("b").count[burnt])
    assert (0, 2, 0) == tuple(life.scopes.slot.count[burnt] for life in (one, same, other))


def test_two_lifecycles_share_nothing(tiny, noop):
    """A runtime's scopes are its own."""
    one, other = Lifecycle(tiny), Lifecycle(tiny)
    one.begin("a/1", "a").fire("heat", noop)
    assert 0 == other.runtime_scope.clock == other.variant_scope("a").clock


def test_warm_ups_counted_per_variant_are_taken_once(tiny, recorder):
    """Where the rule counts in the variant's scope, the second slot of a variant takes none of the rounds again."""
    rules = tuple(attrs.evolve(rule, scope="variant") if rule.id == "burnt_twice" else rule for rule in tiny.rules)
    lifecycle = Lifecycle(attrs.evolve(tiny, rules=rules))
    burnt = []
    for name, variant in (("a/2", "a"), ("a/1", "a"), ("b/2", "b")):
        perform = recorder()
        lifecycle.begin(name, variant).fire("heat", perform)
        burnt.append(perform.steps.count("burn"))
    assert [2, 0, 2] == burnt


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_enters_and_leaves(lifecycle, recorder):
    """Opening takes the `enter` steps and closing the `leave` steps; their events go to the runtime scope."""
    perform = recorder()
    lifecycle.open_session(perform)
    assert (["light"], True, True) == (perform.steps, lifecycle.session_open, _mode(lifecycle, "light"))
    lifecycle.close_session(perform)
    assert (["light", "darken"], False, False) == (perform.steps, lifecycle.session_open, _mode(lifecycle, "light"))


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_session_around_a_block_is_left_on_every_exit(lifecycle, recorder, error):
    """Leaving the block leaves the session, also after an error or a Ctrl-C, which goes on."""
    perform = recorder()
    with contextlib.nullcontext() if error is None else pytest.raises(error), lifecycle.session(perform):
        assert lifecycle.session_open
        if error is not None:
            raise error
    assert (["light", "darken"], False) == (perform.steps, lifecycle.session_open)


def test_a_session_is_not_opened_or_closed_twice(lifecycle, noop):
    """One session at a time, and none to close where none is open; nothing is performed."""
    with pytest.raises(CallerError, match="no session is open"):
        lifecycle.close_session(noop)
    lifecycle.open_session(noop)
    before = lifecycle.runtime_scope.copy()
    with pytest.raises(CallerError, match="open already"):
        lifecycle.open_session(noop)
    assert before == lifecycle.runtime_scope


def test_a_session_that_cannot_be_entered_is_left(tiny, recorder):
    """A failure while entering takes every `leave` step, then goes on; the session is closed."""
    lifecycle = Lifecycle(attrs.evolve(tiny, session=attrs.evolve(tiny.session, enter=("light", "take"))))
    perform = recorder(raises={"take": OSError("no fuel")})
    with pytest.raises(OSError, match="no fuel"):
        lifecycle.open_session(perform)
    assert (["light", "take", "darken"], False) == (perform.steps, lifecycle.session_open)
    assert not _mode(lifecycle, "light")


def test_leaving_takes_every_step_whatever_they_raise(tiny, recorder):
    """A `leave` step that raises stops none after it; the first error is raised, the session is closed."""
    lifecycle = Lifecycle(attrs.evolve(tiny, session=attrs.evolve(tiny.session, leave=("vote", "darken"))))
    perform = recorder(raises={"vote": OSError("stuck")})
    lifecycle.open_session(perform)
    with pytest.raises(OSError, match="stuck"):
        lifecycle.close_session(perform)
    assert (["light", "vote", "darken"], False) == (perform.steps, lifecycle.session_open)
    assert not _mode(lifecycle, "light")


def test_a_rule_refuses_a_session_before_any_effect(tiny, recorder):
    """A rule on a session's step that reads the runtime scope is asked, before anything is performed."""
    lifecycle = Lifecycle(_with_rule(tiny, "light", ModeIs("casting", True)))
    perform = recorder()
    before = lifecycle.runtime_scope.copy()
    with pytest.raises(RuleViolation, match="opening a session is refused"):
        lifecycle.open_session(perform)
    assert ([], before, False) == (perform.steps, lifecycle.runtime_scope, lifecycle.session_open)


def test_a_slot_opens_a_session_of_its_own(lifecycle, recorder):
    """Without an open session, a transition with steps enters one and leaves it; within one it does neither."""
    perform = recorder()
    lifecycle.begin("a/1", "a").fire("heat", perform)
    assert ["light", "take", "burn", "take", "burn", "darken"] == perform.steps
    perform = recorder()
    lifecycle.open_session(perform)
    lifecycle.begin("a/2", "a").fire("heat", perform)
    assert ["light", "take", "burn", "take", "burn"] == perform.steps


def test_a_slots_own_session_is_left_after_a_failure(lifecycle, recorder):
    """The session is left on every exit, after the slot's cleanup; what leaving raises becomes a note."""
    perform = recorder(raises={"burn": ValueError("wet"), "darken": OSError("stuck")})
    life = lifecycle.begin("a/1", "a")
    with pytest.raises(ValueError, match="wet") as caught:
        life.fire("heat", perform)
    assert ["light", "take", "burn", "switch_off", "put_back", "vote", "darken"] == perform.steps
    assert ("broken", False) == (life.state, lifecycle.session_open)
    assert "OSError: stuck" in "\n".join(caught.value.__notes__)


def test_a_slot_whose_session_cannot_be_entered_is_left_alone(lifecycle, recorder, snapshot):
    """The slot has done nothing yet: it does not fail."""
    life = lifecycle.begin("a/1", "a")
    state, history, *_ = snapshot(life)
    with pytest.raises(OSError, match="no light"):
        life.fire("heat", recorder(raises={"light": OSError("no light")}))
    assert (state, history) == snapshot(life)[:2]
    assert (None, False) == (life.last_failure, lifecycle.session_open)


def test_a_session_is_entered_for_neither_cleanup_nor_a_bare_change(lifecycle, recorder):
    """Only transitions that take steps which may be refused are run in a session."""
    life = lifecycle.begin("a/1", "a")
    perform = recorder()
    life.fire("break", perform)
    life.fire("free", perform)
    life.fire("again", perform)
    assert ["switch_off", "put_back", "vote"] == perform.steps


# -- served forwards --------------------------------------------------------------------------------------------------


def test_served_forwards_feed_the_runtime_scope_as_integers(lifecycle):
    """Each kind of serving is a tuple of effects, which the runtime scope takes without looking up a name."""
    counts = lifecycle.runtime_scope.count
    events = lifecycle.law.layout.events
    for effect in lifecycle.serving.replay + lifecycle.serving.eager + lifecycle.serving.abandon:
        lifecycle.runtime_scope.apply(effect)
    assert (2, 2) == (counts[events["lent_out"]], counts[events["served"]])
    assert 0 == lifecycle.runtime_scope.counters[lifecycle.law.layout.counters["lent"]]


def test_served_forwards_of_decode(decode):
    """The decode spec tells replays, eager forwards and entries that were taken back apart."""
    lifecycle = ready(decode)
    push, serving = lifecycle.serving.push, lifecycle.serving
    for effect in (*push, *serving.replay, *push, *serving.eager, *push, *serving.abandon):
        lifecycle.runtime_scope.apply(effect)
    counts = {name: lifecycle.runtime_scope.count[number] for name, number in lifecycle.law.layout.events.items()}
    served = {name for name, count in counts.items() if count} - {"metadata_made", "indices_shared"}
    assert {"entry_pushed", "entry_taken", "replayed", "served_eagerly", "entry_abandoned"} == served


def test_serving_that_no_rule_guards_is_free():
    """Where nothing guards a kind of serving there is nothing to ask: without a grammar decode's is not guarded."""
    lifecycle = Lifecycle(load_spec("decode").restricted_to(frozenset()))
    for kind in KINDS:
        assert ((), False) == (lifecycle.shared._guarded[kind], lifecycle.guarded(kind))
        lifecycle.admit(kind)


def test_only_what_can_be_refused_is_asked(decode):
    """With a grammar the entry of a forward is asked about, and nothing that comes after it."""
    lifecycle = ready(decode)
    asked = {kind: [step.name for step in steps] for kind, steps in lifecycle.shared._guarded.items()}
    taken = ["take_entry"]
    assert {"push": ["push_entry"], "replay": taken, "eager": taken, "abandon": ["abandon_entry"]} == asked


def test_a_sum_is_what_all_slots_have(decode):
    """Counts and sets of each slot's counter reach the sum; a reset takes away what that slot had."""
    layout = Law.of(decode).layout
    shared = Shared(Law.of(decode))
    one, other = shared.scopes("default"), shared.scopes("default")
    held, push = layout.counters["held"], shared.law.effects["push_grammar", "grammar_pushed"]
    drain = shared.law.effects["drain_grammar", "grammar_drained"]
    seen = []
    for scopes, effects in ((one, push), (other, push), (other, push), (one, drain), (one, drain)):
        scopes.apply(effects)
        seen.append(shared.runtime.counters[held])
    other.begun_again(layout)
    assert ([1, 2, 3, 2, 2], 0) == (seen, shared.runtime.counters[held])


def test_a_guarded_forward_is_admitted_or_refused(tiny):
    """A rule on a serving step is asked before the forward; a refusal changes nothing."""
    lifecycle = Lifecycle(_with_rule(tiny, "lend", ModeIs("light", False)))
    lifecycle.admit("eager")
    lifecycle.open_session(lambda step: None)
    before = lifecycle.runtime_scope.copy()
    for kind in ("eager", "replay"):
        with pytest.raises(RuleViolation, match=rf"serving a forward \({kind}\) is refused") as caught:
            lifecycle.admit(kind)
        assert "new" == caught.value.rule
    assert before == lifecycle.runtime_scope


def test_a_later_serving_step_is_judged_after_the_earlier_ones(tiny):
    """`replay` lends and then serves: the second step's rule sees what the first did, and nothing was applied."""
    lifecycle = Lifecycle(_with_rule(tiny, "serve", CounterIs("lent", 1)))
    lifecycle.admit("replay")
    lifecycle.runtime_scope.apply(lifecycle.serving.eager[0])
    with pytest.raises(RuleViolation, match="counter lent is 1"):
        lifecycle.admit("replay")
    assert 1 == lifecycle.runtime_scope.counters[lifecycle.law.layout.counters["lent"]]


def test_an_underflow_is_refused_before_the_forward(lifecycle):
    """R24: a forward that would take a counter below its floor is not admitted."""
    with pytest.raises(RuleViolation, match="counter lent is 0") as caught:
        lifecycle.admit("abandon")
    assert "R24" == caught.value.rule


@pytest.mark.parametrize("scope", ["slot", "variant"])
def test_rules_on_a_slot_do_not_judge_served_forwards(tiny, scope):
    """A served forward belongs to no slot or variant: only what the runtime scope can tell is asked."""
    lifecycle = Lifecycle(_with_rule(tiny, "lend", AtLeast("burnt", 1), scope))
    lifecycle.admit("eager")


def test_an_undeclared_outcome_of_a_session_step_is_a_fault(lifecycle, recorder):
    """A session's step says one of its declared events."""
    with pytest.raises(InternalError, match="the spec declares lit"):
        lifecycle.open_session(recorder(outcomes={"light": "dim"}))
    assert not lifecycle.session_open


# -- setup -------------------------------------------------------------------------------------------------------------


def test_a_setup_tells_the_runtime_what_was_done(decode):
    """Its steps are performed once, in order, and what they append is in the runtime's ledger."""
    lifecycle, performed = Lifecycle(decode), []
    lifecycle.set_up(lambda step: performed.append(step.name))
    counts = lifecycle.runtime_scope.count

    assert ["init_metadata", "share_indices"] == performed
    assert [1, 1] == [counts[lifecycle.law.layout.events[event]] for event in ("metadata_made", "indices_shared")]


def test_nothing_is_bound_without_a_setup(decode):
    """R2: metadata that have made no buffers are not bound, and the refusal says what to do."""
    life = Lifecycle(decode).begin("default/1", "default")

    assert "R2" == life.explain("warm").refusal.rule
    assert "let metadata make their state" in life.explain("warm").refusal.fix


def test_a_setup_in_the_wrong_order_is_refused(decode):
    """R3: indices are compared once they are made."""
    turned = attrs.evolve(decode, setup=attrs.evolve(decode.setup, steps=("share_indices", "init_metadata")))
    with pytest.raises(RuleViolation, match="building a runtime is refused: at share_indices, rule R3a") as caught:
        Lifecycle(turned).set_up(lambda step: None)
    assert "R3a" == caught.value.rule


def test_a_draft_is_not_bound_before_it_is_settled_whose_indices_it_reads(decode):
    """R3: a setup that leaves the question open lets no slot be warmed."""
    lifecycle = Lifecycle(attrs.evolve(decode, setup=attrs.evolve(decode.setup, steps=("init_metadata",))))
    lifecycle.set_up(lambda step: None)

    assert "R3b" == lifecycle.begin("default/1", "default").explain("warm").refusal.rule
