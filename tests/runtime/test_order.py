"""Which collaborator is asked what, in which order, by capture, replay, eager steps and failures."""

import pytest
import torch

from tsgraph.buffers.contract import Rows
from tsgraph.errors import CaptureFailed, ContractViolation
from tsgraph.keys import Mode
from tsgraph.runtime import GraphRuntime
from tsgraph.testing.fakes import FakeAttention, all_fakes

IDS = torch.tensor([1, 2, 3])


@pytest.fixture
def calls():
    """The shared list of calls."""
    return []


def build(backend, calls, step=None, variants=(), **rest):
    """A runtime with every collaborator present, whose forwards consume their grammar entry."""
    fakes = all_fakes(calls, variants) | rest

    def forward(ids):
        calls.append(("forward",))
        return ids + 1

    return GraphRuntime.for_step(
        step or forward,
        inputs={"ids": Rows(torch.int64, pad=0)},
        sizes=(4,),
        outputs="request",
        backend=backend,
        **fakes,
    )


def test_a_capture_asks_each_collaborator_as_the_spec_says(backend, calls):
    """One slot's capture makes exactly the declared calls: four warm-ups, bind, record, drain, vote."""
    runtime = build(backend, calls)
    assert [("attention.init_state", 4), ("drafter.init_state", 4)] == calls  # once, when it is built (R2)
    calls.clear()
    runtime.capture()
    both = [("attention.bind", 4), ("drafter.bind", 4)]
    prepare = ("sampler.prepare", 4, "default")
    warm = [("grammar.bind", 4), ("ranks.meet",), prepare, *both, ("grammar.push", 4), ("forward",)]
    bind = [("grammar.bind", 4), ("sampler.reset",), ("ranks.meet",), prepare, *both]
    record = [("comm.arm",), ("grammar.push", 4), ("forward",)]
    drain = [("grammar.cancel",), ("grammar.reset",), ("ranks.settle", "capture default/4", True)]
    assert [*warm * 4, *bind, *record, *drain] == calls


def test_a_replay_refreshes_the_target_then_the_draft_then_restores(backend, calls):
    """Around a replay: target, draft, communication before; recurrent state after, with live rows (R38, R42)."""
    runtime = build(backend, calls)
    runtime.capture()
    runtime.push(3)
    calls.clear()
    runtime(ids=IDS)
    refreshes = [("attention.refresh", 4, 3), ("drafter.refresh", 4, 3)]
    assert [*refreshes, ("comm.restore",), ("recurrent.update", 3)] == calls


def test_an_eager_step_has_the_same_interface(backend, calls):
    """An eager decode step begins metadata eagerly and updates recurrent state; another mode does not update it."""
    runtime = build(backend, calls)
    calls.clear()
    runtime.push(3)
    runtime(ids=IDS)
    begin = [("attention.begin_eager", 3), ("drafter.begin_eager", 3), ("forward",)]
    eager = [("grammar.push", 3), ("grammar.bind", 3), *begin]
    assert [*eager, ("recurrent.update", 3)] == calls
    calls.clear()
    runtime.push(3)
    runtime(ids=IDS, mode=Mode.EXTEND)
    assert eager == calls


def test_no_replay_prepares_the_sampler(backend, calls):
    """The wrapper never refills the sampler's buffers: the engine prepared them (R39)."""
    runtime = build(backend, calls)
    runtime.capture()
    runtime.push(3)
    calls.clear()
    runtime(ids=IDS)
    assert not [call for call in calls if call[0].startswith(("sampler", "grammar"))]


def test_each_variant_has_its_slots(backend, calls):
    """Variants that the sampler asks for are captured beside the default, and chosen explicitly."""
    runtime = build(backend, calls, variants=("greedy",))
    runtime.capture()
    runtime.push(3)
    decision = runtime.step(ids=IDS, variant="greedy").decision
    assert (("greedy", 4), ("default", "greedy")) == (decision.key, runtime.variants)


def test_a_vote_against_fails_the_slot(backend, calls):
    """Where the ranks refuse, the slot fails here too, and it does not vote twice."""
    fakes = all_fakes(calls)
    fakes["ranks"].verdict = "refused"
    runtime = build(backend, calls, ranks=fakes["ranks"])
    runtime.capture()
    votes = [call for call in calls if call[0] == "ranks.settle"]
    assert ("failed", 1) == (runtime.slots["default", 4].state, len(votes))


def test_a_failing_rank_votes_too(backend, calls):
    """A rank whose step fails says so, once, so that its peers never wait."""

    def broken(ids):
        raise ValueError("no such layer")

    runtime = build(backend, calls, step=broken)
    runtime.capture()
    votes = [call for call in calls if call[0] == "ranks.settle"]
    assert [("ranks.settle", "capture default/4", False)] == votes


def test_a_failed_forward_leaves_no_grammar_entry(backend, calls):
    """An entry whose forward failed is cancelled: nothing of the slot stays in the shared queue (R25)."""
    fakes = all_fakes(calls)

    def broken(ids):
        raise ValueError("no such layer")

    runtime = build(backend, calls, step=broken, grammar=fakes["grammar"])
    runtime.capture()
    assert [] == fakes["grammar"].queue


def test_a_collaborator_without_a_member_is_refused(backend, calls):
    """A part that lacks a member of its protocol is a ContractViolation that names both, before anything is built."""
    with pytest.raises(ContractViolation, match=r"Sampler\.prepare: expected a member, got none on object"):
        build(backend, calls, sampler=object())


def test_a_pad_that_a_collaborator_does_not_honour_is_refused(backend, calls):
    """A collaborator that maps only -1 to a sink cannot be given a pad of 0."""
    attention = FakeAttention(calls, honours={"ids": (-1,)})
    with pytest.raises(ContractViolation, match="ids"):
        build(backend, calls, attention=attention)


def test_policy_raise_hands_the_failure_to_the_caller(backend, calls):
    """With on_capture_failure = "raise" the error comes out of capture, chained to its cause."""
    import attrs

    from tsgraph.spec.load import load_spec

    law = load_spec("decode")
    law = attrs.evolve(law, policy=attrs.evolve(law.policy, on_capture_failure="raise"))

    def broken(ids):
        raise ValueError("no such layer")

    runtime = build(backend, calls, step=broken, spec=law)
    with pytest.raises(CaptureFailed, match="warm failed at step forward: no such layer") as caught:
        runtime.capture()
    assert isinstance(caught.value.__cause__, ValueError)
