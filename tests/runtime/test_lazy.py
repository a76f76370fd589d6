"""Slots that are captured when a step first wants them: when exactly, what it disturbs, and what if it fails."""

from __future__ import annotations

import pytest
import torch

from tests.faults.queue_checks import Engine
from tests.runtime.hungry import ROW, Hungry, serve, states
from tsgraph.adapters.local_ranks import LocalRanks
from tsgraph.buffers.contract import Rows, State
from tsgraph.capture.eviction import EARNED
from tsgraph.capture.mode import is_capturing
from tsgraph.errors import BadBatch, CaptureFailed, HostFunctionFailed, RuleViolation
from tsgraph.keys import Mode, RankCounts, Reason
from tsgraph.runtime import GraphRuntime
from tsgraph.testing.fakes import FakeRanks

LAZY = {"capture": "lazy", "freeze_gc": False}


@pytest.fixture
def hungry() -> Hungry:
    """A fresh engine on a fresh device."""
    return Hungry()


# -- when -------------------------------------------------------------------------------------------------------------


def test_a_step_is_served_by_the_slot_that_it_was_the_first_to_want(hungry):
    """The slot is captured before that step, which replays; slots that no step wants are not captured (M3)."""
    runtime = hungry.runtime(policy=LAZY)
    assert Reason.ON_DEMAND is runtime.explain(3).reason
    assert ["PADDED", "PADDED", "EXACT"] == serve(runtime, 3, times=2) + serve(runtime, 1)
    assert {8: "allocated", 4: "replayable", 2: "allocated", 1: "replayable"} == states(runtime)
    assert ([4, 1], {"replays": 3, "pad_rows": 2, "eager": {}}) == (hungry.recorded, runtime.counters())


def test_what_a_step_waited_for_is_told_in_milliseconds(hungry):
    """M4: a capture under traffic holds the step up, and an event says by how much."""
    runtime = hungry.runtime(policy=LAZY)
    serve(runtime, 3, times=2)
    (stall,) = hungry.told("capture.stalled")
    seconds = runtime.slots["default", 4].seconds
    assert ("default/4", "replayable", True) == (stall["slot"], stall["state"], stall["milliseconds"] >= 1e3 * seconds)


def test_only_declared_sizes_are_ever_captured(hungry):
    """M3: whatever sizes come, there are the slots of the plan and no others; the rest runs eagerly and is counted."""
    runtime = hungry.runtime(policy=LAZY)
    for rows in range(100):
        serve(runtime, rows)
    assert ([1, 2, 4, 8], {"no_size_fits": 91}) == (hungry.recorded, runtime.counters()["eager"])


def test_captured_ahead_nothing_is_captured_in_serving(hungry):
    """M4: without the policy no step ever waits for a capture, stale slots included."""
    runtime = hungry.runtime()
    assert ["NOT_CAPTURED"] == serve(runtime, 3)
    runtime.capture()
    runtime.invalidate("moved")
    assert ["SLOT_STALE"] == serve(runtime, 3)
    assert [8, 4, 2, 1] == hungry.recorded


def test_only_decode_steps_want_slots(hungry):
    """A step that prefills, one that is asked to be eager, and one of a runtime that is off have nothing captured."""
    runtime = hungry.runtime(policy=LAZY)
    runtime(ids=torch.arange(3), mode=Mode.EXTEND)
    runtime.eager(ids=torch.arange(3))
    runtime.enabled = False
    serve(runtime, 3)
    assert ([], {"allocated"}) == (hungry.recorded, set(states(runtime).values()))


@pytest.mark.parametrize(
    "wrong",
    [{"ids": torch.zeros(3)}, {"ids": torch.arange(3), "rows": 2}, {"ids": torch.arange(3), "nobody": torch.arange(3)}],
)
def test_a_call_that_is_refused_has_nothing_captured(hungry, wrong):
    """It changes nothing, as ever."""
    runtime = hungry.runtime(policy=LAZY)
    with pytest.raises(BadBatch):
        runtime(**wrong)
    assert ([], {"allocated"}) == (hungry.recorded, set(states(runtime).values()))


def test_a_stale_slot_is_captured_again_when_it_is_wanted(hungry):
    """On demand, whoever said it and why: the old graph goes first, and no other slot is touched (M2)."""
    runtime = hungry.runtime(policy=LAZY)
    serve(runtime, 8)
    serve(runtime, 4)
    held = hungry.pooled
    runtime.invalidate("moved", ("default", 8))
    runtime.fire(("default", 4), "invalidate")
    assert ["PADDED"] == serve(runtime, 3)
    assert {8: "stale", 4: "replayable", 2: "allocated", 1: "allocated"} == states(runtime)
    assert held >= hungry.pooled


# -- sleep ------------------------------------------------------------------------------------------------------------


def test_a_runtime_that_sleeps_captures_nothing(hungry):
    """Released as a whole, it takes no memory for a step, not even for slots that it never captured, until it wakes."""
    runtime = hungry.runtime(policy=LAZY)
    serve(runtime, 3)
    runtime.release()
    assert ["SLOT_RELEASED", "NOT_CAPTURED"] == serve(runtime, 3) + serve(runtime, 8)
    assert 0 == hungry.pooled
    assert (("default", 4),) == runtime.wake().captured
    assert ["PADDED", "EXACT"] == serve(runtime, 3) + serve(runtime, 8)


def test_slots_released_by_name_stay_released(hungry):
    """The others are captured when they are wanted."""
    runtime = hungry.runtime(policy=LAZY)
    serve(runtime, 3)
    runtime.release(("default", 4))
    assert ["SLOT_RELEASED", "EXACT"] == serve(runtime, 3) + serve(runtime, 8)


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_slot_that_fails_is_eager_from_then_on(hungry):
    """It is told once, with its cause, and not tried again for each step; others are captured; wake tries again."""
    hungry.fails = {4}
    runtime = hungry.runtime(policy=LAZY)
    assert ["SLOT_FAILED"] * 3 == serve(runtime, 3, times=3)
    assert (1, [4]) == (len(hungry.told("slot.failed")), hungry.recorded)
    assert ["EXACT"] == serve(runtime, 8)
    hungry.fails = set()
    runtime.wake()
    assert ["PADDED"] == serve(runtime, 3)


def test_a_policy_may_raise_from_the_call(hungry):
    """Once: the step is not served then, and the next one runs eagerly."""
    hungry.fails = {4}
    runtime = hungry.runtime(policy={**LAZY, "on_capture_failure": "raise"})
    with pytest.raises(CaptureFailed, match="planted"):
        serve(runtime, 3)
    assert ["SLOT_FAILED"] == serve(runtime, 3)


def test_what_an_earlier_step_raised_is_not_taken_for_a_failed_capture():
    """Its error reaches the caller, as from the next replay, and the slot is captured for the step after that."""
    runtime = GraphRuntime.for_step(
        lambda ids: ids + 1,
        inputs={"ids": Rows(torch.int64, pad=0)},
        outputs="request",
        sizes=(2,),
        backend="emulated",
        policy=LAZY,
        observers=(),
    )

    def fails():
        raise ValueError("planted")

    runtime.backend.host_function(fails)
    with pytest.raises(HostFunctionFailed, match="planted"):
        runtime(ids=torch.arange(2))
    assert "allocated" == runtime.slots["default", 2].state
    assert Reason.EXACT is runtime.step(ids=torch.arange(2)).decision.reason


def test_memory_that_a_later_capture_has_grown_makes_earlier_slots_begin_again(hungry):
    """E6: a workspace as large as the largest batch so far. No slot replays what it recorded before it grew."""
    module = torch.nn.Module()
    module.workspace = hungry.backend.allocate((0,), torch.float32, 0)
    recorded = []

    def step(ids):
        if len(module.workspace) < len(ids):
            module.workspace = hungry.backend.allocate((len(ids),), torch.float32, 0.5)
        if is_capturing():
            recorded.append(len(ids))
        return ids + module.workspace[: len(ids)]

    runtime = GraphRuntime.for_step(
        step,
        inputs={"ids": Rows(torch.int64, pad=0)},
        outputs="request",
        sizes=(2, 8),
        modules=[module],
        backend=hungry.backend,
        policy=LAZY,
        observers=(),
    )
    for rows in (2, 8, 2, 8):
        done = runtime.step(ids=torch.arange(rows))
        assert (Reason.EXACT, [row + 0.5 for row in range(rows)]) == (done.decision.reason, done.outputs.tolist())
    assert [2, 8, 2] == recorded


# -- what it may not disturb ------------------------------------------------------------------------------------------


def test_live_state_and_rows_written_in_place_stay(hungry):
    """Requests run meanwhile: state rows that are no sink, and buffers that the engine has filled, are as before."""
    pages = torch.arange(8.0)
    runtime = GraphRuntime.for_step(
        lambda page, amount: pages.index_add_(0, page, amount)[page],
        inputs={"page": Rows(torch.int64, pad=0, source="engine"), "amount": Rows(torch.float32, pad=9.0)},
        state={"pages": State(pages, sink=0)},
        outputs="request",
        sizes=(4,),
        backend="emulated",
        policy=LAZY,
        observers=(),
    )
    written = runtime._parts.engine.arena.tensors()["page"]
    written[:3] = torch.tensor([5, 6, 7])
    random = torch.get_rng_state()
    done = runtime.step(rows=3, amount=torch.ones(3))
    assert (Reason.PADDED, [6.0, 7.0, 8.0]) == (done.decision.reason, done.outputs.tolist())
    assert ([1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0], [5, 6, 7, 0]) == (pages[1:].tolist(), written.tolist())
    assert torch.equal(random, torch.get_rng_state())


def served(engine, rows, ticket):
    """One step, whose forward, the last of all, takes this ticket."""
    engine.call(rows)
    engine.runtime.backend.synchronize()
    assert ticket is engine.grammar.taken[-1]


def lazy_engine(**words) -> Engine:
    """An engine with a grammar queue, whose slots are captured when they are wanted."""
    engine = Engine()
    engine.runtime = GraphRuntime(
        engine.runtime._parts.declared.spec,
        engine.step,
        geometry=engine.runtime.geometry,
        sizes=(1, 2, 4),
        outputs="request",
        grammar=engine.grammar,
        backend="emulated",
        policy={**LAZY, **words},
        observers=(),
    )
    return engine


def test_no_grammar_entry_is_lost(hungry):
    """The slot's entries go ahead of the one that waits, which its own step takes; pushes are pops and drained ones."""
    engine = lazy_engine()
    for rows in (3, 3, 1, 2):
        served(engine, rows, engine.push(rows))
    queue = engine.grammar.queue
    assert ((), queue.pushed) == (queue.waiting, queue.consumed + queue.cancelled)
    assert {"replayable"} == {slot.state for slot in engine.runtime.slots.values()}


def test_a_failed_capture_leaves_the_entry_that_waits(hungry):
    """Its step runs eagerly, or raises, and the entry is there for it, or to be cancelled."""
    for policy in ("eager", "raise"):
        engine = lazy_engine(on_capture_failure=policy)
        ticket, engine.bursts = engine.push(3), "recording"
        if policy == "raise":
            with pytest.raises(CaptureFailed):
                engine.call(3)
            assert (ticket,) == engine.grammar.queue.waiting
            engine.bursts = ""
        served(engine, 3, ticket)
        assert "failed" == engine.runtime.slots["default", 4].state


def test_a_step_without_its_entry_has_nothing_captured(hungry):
    """It is refused first, as ever (R24)."""
    engine = lazy_engine()
    with pytest.raises(RuleViolation) as caught:
        engine.call(3)
    assert ("R24", 0) == (caught.value.rule, engine.grammar.queue.pushed)


# -- ranks ------------------------------------------------------------------------------------------------------------


def test_ranks_capture_alike(hungry):
    """All know what all bring, so all want the same slot in the same step, the idle ones, too: plan, vote, replay."""
    calls: list[tuple] = []
    runtime = hungry.runtime(policy=LAZY, ranks=FakeRanks(calls, count=2, index=1))
    counts = RankCounts([3, 0], all_decode_or_idle=True)
    done = runtime.step(rows=0, mode=Mode.IDLE, counts=counts)
    assert (("default", 4), 0) == (done.decision.key, len(done.outputs))
    votes = [call[1:] for call in calls if call[0] == "ranks.settle"]
    assert [("plan of 1 slots: default/4", True), ("capture default/4", True)] == votes


def test_a_rank_whose_peers_are_unknown_captures_nothing(hungry):
    """Nobody would come to its vote."""
    runtime = hungry.runtime(policy=LAZY, ranks=FakeRanks(count=2))
    assert Reason.OTHER_RANKS_UNKNOWN is runtime.step(ids=torch.arange(3)).decision.reason
    assert [] == hungry.recorded


def test_a_slot_that_fails_on_one_rank_fails_on_all(hungry):
    """The vote goes against it: no rank replays what another runs eagerly, and none tries again alone."""

    class Against(FakeRanks):
        def settle(self, point, ok, digest, deadline):
            return "refused" if point.startswith("capture") else "agreed"

    runtime = hungry.runtime(policy=LAZY, ranks=Against(count=2))
    counts = RankCounts([3, 3], all_decode_or_idle=True)
    reasons = [runtime.step(ids=torch.arange(3), counts=counts).decision.reason for _ in range(2)]
    assert ([Reason.SLOT_FAILED] * 2, [4]) == (reasons, hungry.recorded)


def test_what_may_be_stale_on_one_rank_alone_waits_for_all(hungry):
    """With several ranks a stale slot stays eager until it is woken: its peers might never come to the vote."""
    runtime = hungry.runtime(policy=LAZY, ranks=FakeRanks(count=2))
    counts = RankCounts([3, 3], all_decode_or_idle=True)
    runtime(ids=torch.arange(3), counts=counts)
    runtime.invalidate("moved")
    assert Reason.SLOT_STALE is runtime.step(ids=torch.arange(3), counts=counts).decision.reason
    runtime.wake()
    assert Reason.PADDED is runtime.step(ids=torch.arange(3), counts=counts).decision.reason


def test_a_rank_alone_votes_with_itself(hungry):
    """As an engine with one process does."""
    runtime = hungry.runtime(policy=LAZY, ranks=LocalRanks())
    assert ["PADDED"] == serve(runtime, 3)


# -- budget -----------------------------------------------------------------------------------------------------------


def need(size: int) -> int:
    """What a pool with a recording of this size holds."""
    hungry = Hungry()
    hungry.runtime(sizes=(size,)).capture()
    return hungry.pooled


def test_what_does_not_fit_is_refused_once(hungry):
    """The slot has failed and says why; what is there stays and serves."""
    runtime = hungry.runtime(policy=LAZY, memory_budget=need(4))
    assert ["EXACT", "SLOT_FAILED", "SLOT_FAILED"] == serve(runtime, 4) + serve(runtime, 8, times=2)
    assert ("OutOfBudget", [4]) == (runtime.slots["default", 8].cause.kind, hungry.recorded)
    assert ["EXACT"] == serve(runtime, 4)


def test_a_larger_slot_makes_a_pool_in_which_the_smaller_ones_live(hungry):
    """Wanted smallest first they would take the sum (M1): where the largest first leaves room, the pool begins anew."""
    limit = need(8) + 4096
    runtime = hungry.runtime(policy={**LAZY, "over_budget": "evict"}, memory_budget=limit)
    for rows in (1, 2, 4, 8):
        assert ["EXACT"] == serve(runtime, rows)
    for rows in (4, 2, 1, 8):
        assert ["EXACT"] == serve(runtime, rows)
    assert ({"replayable"}, True) == (set(states(runtime).values()), hungry.pooled <= limit)


def outputs_runtime(hungry, limit):
    """Slots whose outputs are large: each holds its own, so two of them need more than the largest."""
    return GraphRuntime.for_step(
        lambda ids: ids[:, None].expand(-1, 1024).float() + 0.0,
        inputs={"ids": Rows(torch.int64, pad=0)},
        outputs="request",
        sizes=(6, 8),
        backend=hungry.backend,
        policy={**LAZY, "over_budget": "evict"},
        memory_budget=limit,
        observers=[hungry.heard.append],
    )


def wants(runtime, rows, times):
    """Serve steps; returns whether the last one was replayed."""
    return [runtime.step(ids=torch.arange(rows)).decision.key is not None for _ in range(times)][-1]


def test_two_slots_without_room_for_both_do_not_take_turns(hungry):
    """Wanted as often as the other it stays eager; wanted more, by as much as a capture takes to pay, it displaces."""
    alone = outputs_runtime(Hungry(), None)
    alone.capture(("default", 8))
    limit = alone.graph_memory()["bytes"] + ROW
    runtime = outputs_runtime(hungry, limit)
    assert wants(runtime, 8, 1)
    served = [(wants(runtime, 6, 1), wants(runtime, 8, 1)) for _ in range(2 * EARNED)]
    assert ({(False, True)}, 2) == (set(served), len(hungry.told("slot.captured")))
    assert Reason.ON_DEMAND is runtime.explain(6).reason
    assert not wants(runtime, 6, EARNED // 2)
    assert wants(runtime, 8, 2 * EARNED)
    assert not wants(runtime, 6, EARNED // 2)
    assert wants(runtime, 6, EARNED)
    assert {8: "released", 6: "replayable"} == states(runtime)
    assert "evicted: it made room for slot default/6" == str(runtime.slots["default", 8].cause)
    assert (True, Reason.ON_DEMAND) == (hungry.pooled <= limit, runtime.explain(8).reason)
    assert wants(runtime, 8, 2 * EARNED)
    assert 1 == len(hungry.told("slot.failed"))  # when nothing told yet what the two take together


def test_evicted_slots_come_back_when_they_are_wanted(hungry):
    """Asked for memory, a lazy runtime gives its pool back; what is used comes back by itself."""
    runtime = hungry.runtime(policy=LAZY)
    for rows in (8, 4):
        serve(runtime, rows)
    held = hungry.pooled
    assert (held, 0) == (runtime.evict(1), hungry.pooled)
    assert (["EXACT"], [8, 4, 4]) == (serve(runtime, 4), hungry.recorded)
