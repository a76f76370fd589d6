"""Graphs' memory: given back and taken again, within a budget, and never held twice."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
import torch

from tests.runtime.hungry import ROW, Hungry, serve, states
from tsgraph.buffers.contract import Fixed, Rows, State
from tsgraph.errors import BadBatch, BadGeometry, CaptureFailed, IllegalTransition, OutOfBudget, RankDisagreement
from tsgraph.keys import Reason
from tsgraph.runtime import GraphRuntime
from tsgraph.testing.fakes import FakeRanks

LARGE, SMALL = ("default", 8), ("default", 2)


@pytest.fixture
def hungry() -> Hungry:
    """A fresh engine on a fresh device."""
    return Hungry()


# -- release and wake -------------------------------------------------------------------------------------------------


def test_releasing_everything_gives_all_memory_back(hungry):
    """With the last graph the pool's memory is the device's again, and what was given back is told."""
    runtime = hungry.runtime()
    runtime.capture()
    held = hungry.pooled
    assert 2 * 8 * ROW <= held == runtime.release() == hungry.told("memory.released")[0]["bytes"]
    assert (0, 0) == (hungry.pooled, runtime.graph_memory()["bytes"])
    assert ["SLOT_RELEASED"] == serve(runtime, 3)


def test_what_some_slots_held_serves_the_next_recordings(hungry):
    """The pool is the unit: it stays as large while one graph is left, and a recapture needs nothing more."""
    runtime = hungry.runtime()
    runtime.capture()
    held = hungry.pooled
    assert (0, held) == (runtime.release(SMALL), hungry.pooled)
    assert ["EXACT", "SLOT_RELEASED"] == serve(runtime, 8) + serve(runtime, 2)
    runtime.wake()
    assert (held, ["EXACT"]) == (hungry.pooled, serve(runtime, 2))


def test_wake_brings_back_what_was_replayable(hungry):
    """What was released is captured again; what never was captured is not."""
    runtime = hungry.runtime()
    runtime.capture(LARGE, SMALL)
    runtime.release()
    assert {8: "released", 4: "allocated", 2: "released", 1: "allocated"} == states(runtime)
    assert (LARGE, SMALL) == runtime.wake().captured
    assert {8: "replayable", 4: "allocated", 2: "replayable", 1: "allocated"} == states(runtime)


def test_a_failed_slot_keeps_its_error_and_is_tried_again(hungry):
    """A release of everything is of what holds memory; wake gives what failed one more chance."""
    hungry.fails = {4}
    runtime = hungry.runtime()
    runtime.capture()
    runtime.release()
    assert ("failed", True) == (states(runtime)[4], "planted" in str(runtime.slots["default", 4].cause))
    hungry.fails = set()
    runtime.wake()
    assert {"replayable"} == set(states(runtime).values())


def test_what_was_failed_when_it_was_released_is_not_woken(hungry):
    """Given away by name it held nothing, so there is nothing to bring back."""
    hungry.fails = {4}
    runtime = hungry.runtime()
    runtime.capture()
    runtime.release(("default", 4))
    runtime.wake()
    assert "released" == states(runtime)[4]


def test_weights_may_be_moved_in_between(hungry):
    """Offloaded and loaded elsewhere: woken slots read where the weights are now (faults F1, F2)."""
    runtime = hungry.runtime()
    runtime.capture()
    runtime.release()
    gone = weakref.ref(hungry.model.bias.untyped_storage())
    saved = hungry.model.bias.detach().clone()
    hungry.model.bias.data = torch.empty(0)
    gc.collect()
    assert gone() is None
    hungry.model.bias.data = saved + 1.0
    runtime.wake()
    assert ["EXACT", "PADDED"] == serve(runtime, 8) + serve(runtime, 7)
    assert 1.5 == hungry.model.bias.item()


def test_nothing_is_woken_while_something_is_away(hungry):
    """F5: a wake in stages. Each stage that is missing is named, nothing changes, and the last one wakes."""
    runtime = hungry.runtime()
    runtime.capture()
    runtime.release()
    storage = hungry.model.weight.untyped_storage()
    storage.resize_(0)
    for call in (runtime.wake, lambda: runtime.capture(LARGE)):
        with pytest.raises(BadBatch, match="module 0 weight has no memory now") as caught:
            call()
        assert "bring it back" in caught.value.hint
    assert {"released"} == set(states(runtime).values())
    storage.resize_(4)
    runtime.wake()
    assert {"replayable"} == set(states(runtime).values())


def test_state_that_was_made_anew_is_woken_by_name():
    """F3: the pause drops the state and the resume makes another one; the woken slots write that, and only that."""
    held = {"totals": torch.zeros(4), "scale": torch.ones(1)}

    def deposit(account, amount, scale):
        held["totals"].index_add_(0, account, amount * scale)
        return held["totals"][account]

    runtime = GraphRuntime.for_step(
        deposit,
        inputs={
            "account": Rows(torch.int64, pad=0),
            "amount": Rows(torch.float32, pad=0.0),
            "scale": Fixed(held["scale"]),
        },
        state={"totals": State(held["totals"], sink=0)},
        outputs="request",
        sizes=(2,),
        backend="emulated",
        observers=(),
    )
    runtime.capture()
    runtime.release()
    old = held["totals"]
    held["totals"], scale = torch.full((4,), 5.0), torch.full((1,), 2.0)
    unsaid = runtime.wake()
    assert ((("default", 2),), True) == (unsaid.failed, "undeclared" in str(runtime.slots["default", 2].cause))
    with pytest.raises(BadBatch, match="fixed nobody, state nobody was never declared"):
        runtime.wake(state={"nobody": State(old, sink=0)}, fixed={"nobody": Fixed(old)})
    runtime.wake(state={"totals": State(held["totals"], sink=0)}, fixed={"scale": Fixed(scale)})
    done = runtime.step(account=torch.tensor([3]), amount=torch.tensor([1.0]))
    assert (Reason.PADDED, [7.0]) == (done.decision.reason, done.outputs.tolist())
    assert ([0.0] * 4, [5.0, 5.0, 5.0, 7.0]) == (old.tolist(), held["totals"].tolist())


@pytest.mark.parametrize("policy", ["eager", "raise"])
def test_a_wake_that_fails_half_way_is_taken_up_by_the_next(hungry, policy):
    """Every slot is replayable, failed or still released, and says why; then nothing is captured twice."""
    runtime = hungry.runtime(policy={"on_capture_failure": policy})
    runtime.capture()
    runtime.release(why="sleep")
    hungry.fails = {4}
    if policy == "raise":
        with pytest.raises(CaptureFailed, match="planted"):
            runtime.wake()
        assert {8: "replayable", 4: "failed", 2: "released", 1: "released"} == states(runtime)
        assert ["asked: sleep"] * 2 == [str(runtime.slots["default", size].cause) for size in (2, 1)]
    else:
        assert (("default", 4),) == runtime.wake().failed
    assert "planted" in str(runtime.slots["default", 4].cause)
    hungry.fails, hungry.recorded = set(), []
    runtime.wake()
    assert {"replayable"} == set(states(runtime).values())
    assert ([4, 2, 1] if policy == "raise" else [4]) == hungry.recorded


def test_a_plan_that_ranks_do_not_share_wakes_nothing(hungry):
    """The ranks agree on what is captured before anything is given back or begun again."""
    ranks = FakeRanks(count=1)
    runtime = hungry.runtime(ranks=ranks)
    runtime.capture()
    runtime.invalidate("moved", LARGE)
    runtime.release(SMALL)
    before = states(runtime), hungry.pooled
    ranks.count, ranks.verdict = 2, "refused"
    with pytest.raises(RankDisagreement):
        runtime.wake()
    assert before == (states(runtime), hungry.pooled)


def test_outputs_that_somebody_keeps_hold_their_memory_only_so_long(hungry):
    """They stay what they are after a release, which tells what is still held; later captures go elsewhere."""
    runtime = hungry.runtime()
    runtime.capture()
    kept = runtime(ids=torch.arange(3))
    before, freed = hungry.pooled, runtime.release()
    left = hungry.told("memory.released")[0]["held"]
    assert (before, True) == (freed + left, 0 < left < before)
    runtime.wake()
    serve(runtime, 8)
    assert [0.5, 1.5, 2.5] == kept.tolist()
    del kept
    runtime.release()
    assert 0 == hungry.pooled


def test_outputs_in_a_cycle_are_found(hungry):
    """Nobody has them any more, but only the collector knows."""
    runtime = hungry.runtime()
    runtime.capture()
    cycle = [runtime(ids=torch.arange(3))]
    cycle.append(cycle)
    enabled = gc.isenabled()
    gc.disable()
    del cycle
    held = hungry.pooled
    assert (held, 0) == (runtime.release(), hungry.pooled)
    if enabled:
        gc.enable()


def test_a_release_by_hand_counts_as_one(hungry):
    """Firing the trigger gives the memory back, too, and wake brings the slot back."""
    runtime = hungry.runtime(sizes=(8,))
    runtime.capture()
    runtime.fire(LARGE, "release", "by hand")
    assert (0, "asked: by hand") == (hungry.pooled, str(runtime.slots[LARGE].cause))
    with pytest.raises(IllegalTransition):
        runtime.release(LARGE)
    assert (LARGE,) == runtime.wake().captured


# -- recaptures -------------------------------------------------------------------------------------------------------


def peak_of(hungry, monkeypatch):
    """The most bytes that pools hold at the end of any recording from now on."""
    seen, record = [], type(hungry.backend).record

    def watched(backend, pool, **words):
        seen.append(hungry.pooled)
        return record(backend, pool, **words)

    monkeypatch.setattr(type(hungry.backend), "record", watched)
    return lambda: max([*seen, hungry.pooled])


@pytest.mark.parametrize("again", ["wake", "capture"])
def test_recaptures_do_not_hold_old_and_new_graphs(hungry, monkeypatch, again):
    """M2, J6: with everything stale the old pool goes first, and k recaptures take what one did."""
    runtime = hungry.runtime()
    runtime.capture()
    held, peak = hungry.pooled, peak_of(hungry, monkeypatch)
    for _ in range(3):
        runtime.invalidate("weights were loaded")
        getattr(runtime, again)()
        assert (held, held, {"replayable"}) == (hungry.pooled, peak(), set(states(runtime).values()))


def test_just_what_is_stale_is_captured_again(hungry):
    """The others keep their recordings and go on replaying."""
    runtime = hungry.runtime()
    runtime.capture()
    hungry.recorded.clear()
    others = {size: runtime.slots["default", size].graph for size in (8, 4, 1)}
    runtime.invalidate("moved", SMALL)
    assert ["SLOT_STALE", "EXACT"] == serve(runtime, 2) + serve(runtime, 4)
    runtime.wake()
    assert [2] == hungry.recorded
    assert others == {size: runtime.slots["default", size].graph for size in (8, 4, 1)}


def test_one_large_slot_may_need_room_once_more(hungry):
    """Others live in its old place: the pool grows once, not each time, and a release of everything packs it."""
    runtime = hungry.runtime()
    runtime.capture()
    held, after = hungry.pooled, set()
    for _ in range(3):
        runtime.invalidate("moved", LARGE)
        runtime.wake()
        after.add(hungry.pooled)
    assert (1, True) == (len(after), held <= max(after) <= 2 * held)
    runtime.release()
    runtime.wake()
    assert held == hungry.pooled


def test_order_of_sizes_does_not_matter(hungry):
    """M1: the largest is recorded first, and the others live in its memory."""
    runtime = hungry.runtime()
    summary = runtime.capture()
    assert [8, 4, 2, 1] == hungry.recorded
    assert (summary.bytes, 0) == (runtime.slots[LARGE].bytes, summary.forecast - summary.bytes)


def test_a_slot_that_is_reset_in_every_way_is_recorded_again(hungry):
    """L6: released, reset, reset by a wake, and dropped; each recapture is right, and nothing is given back twice."""
    runtime = hungry.runtime(sizes=(8,))
    for method, *words in (("release",), ("invalidate", "moved"), ("fire", LARGE, "release")):
        runtime.capture()
        graph = runtime.slots[LARGE].graph
        getattr(runtime, method)(*words)
        runtime.reset()
        graph.release()
        assert (0, "allocated") == (hungry.pooled, states(runtime)[8])
    runtime.capture()
    assert ["EXACT"] == serve(runtime, 8)
    del runtime
    gc.collect()
    assert 0 == hungry.pooled


def test_padded_steps_need_no_memory_of_their_own(hungry):
    """G7: what pads point at is there before anything is captured, so a full device keeps no step from its slot."""
    runtime = hungry.runtime()
    runtime.memory_budget = runtime.capture().bytes
    gc.collect()
    before = hungry.backend.memory().allocated, hungry.pooled
    assert {"PADDED"} == set(serve(runtime, 3) + serve(runtime, 5) + serve(runtime, 7))
    gc.collect()
    assert before == (hungry.backend.memory().allocated, hungry.pooled)


# -- budget -----------------------------------------------------------------------------------------------------------


def grown(sizes, *, order="largest_first"):
    """By how much each recording grows a pool, by size, without a budget."""
    hungry = Hungry()
    runtime = hungry.runtime(sizes=tuple(sorted(sizes)))
    for size in sorted(sizes, reverse=order == "largest_first"):
        runtime.capture(("default", size))
    return {slot.key.size: slot.bytes for slot in runtime.slots.values()}


def test_slots_that_do_not_fit_are_refused_and_the_rest_serve(hungry):
    """The largest is more than the budget: its memory is given back, its steps run eagerly and say why."""
    limit = grown((4, 2, 1))[4]
    runtime = hungry.runtime(memory_budget=limit)
    summary = runtime.capture()
    assert {8: "failed", 4: "replayable", 2: "replayable", 1: "replayable"} == states(runtime)
    assert ("OutOfBudget", (LARGE,)) == (runtime.slots[LARGE].cause.kind, summary.failed)
    assert (limit, ["SLOT_FAILED"], ["EXACT"]) == (hungry.pooled, serve(runtime, 8), serve(runtime, 4))


def test_a_policy_may_raise_instead(hungry):
    """Then the error of the budget is the cause, and the memory is back as well."""
    runtime = hungry.runtime(memory_budget=1, policy={"on_capture_failure": "raise"})
    with pytest.raises(CaptureFailed, match=r"default/8 .* with a budget of 1") as caught:
        runtime.capture()
    assert (OutOfBudget, 0) == (type(caught.value.__cause__), hungry.pooled)


@pytest.mark.parametrize("policy", ["eager", "raise"])
def test_what_a_refused_recording_took_of_a_shared_pool_goes_too(hungry, policy):
    """Captured smallest first, the large one is beyond the budget; the small ones are packed into a pool without it."""
    small = grown((2, 1))
    runtime = hungry.runtime(sizes=(1, 2, 8), memory_budget=sum(small.values()), policy={"on_capture_failure": policy})
    runtime.capture(("default", 2), ("default", 1))
    held = hungry.pooled
    if policy == "raise":
        with pytest.raises(CaptureFailed):
            runtime.capture()
    else:
        assert (LARGE,) == runtime.capture().failed
    assert (held, {8: "failed", 2: "replayable", 1: "replayable"}) == (hungry.pooled, states(runtime))
    assert ["EXACT", "SLOT_FAILED"] == serve(runtime, 2) + serve(runtime, 8)


def test_what_is_forecast_not_to_fit_is_not_recorded():
    """Two recordings tell what a third, larger one needs: it is refused before anything is run for it."""
    hungry = Hungry()
    need = grown((4,))[4]
    runtime = hungry.runtime(sizes=(4, 8), memory_budget=2 * need)
    runtime.capture(("default", 4))
    summary = runtime.capture(LARGE)
    assert ([4], {4: "replayable", 8: "failed"}) == (hungry.recorded, states(runtime))
    assert f"is forecast to need {2 * need} bytes, beside the {need}" in runtime.slots[LARGE].cause.summary
    assert (2 * need, 0) == (summary.forecast, summary.bytes)


def test_forecast_and_actual_are_told(hungry):
    """By the summary, the snapshot and the events: what was expected after two recordings, and what it was."""
    runtime = hungry.runtime(memory_budget=1 << 20)
    summary = runtime.capture()
    (foretold,), (finished,) = hungry.told("memory.forecast"), hungry.told("capture.finished")
    assert (foretold["bytes"], foretold["budget"]) == (summary.forecast, 1 << 20)
    assert (finished["forecast"], finished["bytes"]) == (summary.forecast, summary.bytes)
    graphs = {"bytes": hungry.pooled, "budget": 1 << 20, "forecast": summary.forecast}
    assert graphs == json.loads(json.dumps(runtime.snapshot()))["graphs"]


def test_a_budget_that_changes_holds_from_then_on(hungry):
    """What was captured stays; what is captured again must fit. A budget that is no number of bytes is refused."""
    runtime = hungry.runtime()
    runtime.capture()
    with pytest.raises(BadGeometry):
        runtime.memory_budget = -1
    runtime.memory_budget = grown((4,))[4]
    assert ["EXACT"] == serve(runtime, 8)
    runtime.release()
    runtime.wake()
    assert "failed" == states(runtime)[8]
    assert runtime.memory_budget >= hungry.pooled > 0


def test_ranks_pack_together(hungry):
    """A rank whose graphs fit captures anew with one whose graphs do not: it cannot know what those take there."""

    class Crowded(FakeRanks):
        def settle(self, point, ok, digest, deadline):
            crowded = point == "graphs fit the budget" and ("settle", point) not in self.calls
            self.calls.append(("settle", point))
            return "refused" if crowded else "agreed"

    ranks = Crowded(count=2)
    runtime = hungry.runtime(sizes=(2, 4), ranks=ranks, memory_budget=1 << 20)
    runtime.capture()
    assert ([4, 2, 4, 2], {"replayable"}) == (hungry.recorded, set(states(runtime).values()))
    points = ["plan of 2 slots: default/4, default/2", "capture default/4", "capture default/2"]
    settled = [call[1] for call in ranks.calls if call[0] == "settle"]
    assert [*points, "graphs fit the budget", *points] == settled


# -- eviction ---------------------------------------------------------------------------------------------------------


def test_the_least_used_slots_are_evicted(hungry):
    """A third of the memory back: of what fits in the rest the most used stay, captured anew, in a smaller pool."""
    runtime = hungry.runtime()
    runtime.capture()
    serve(runtime, 8)
    serve(runtime, 2, times=5)
    serve(runtime, 4, times=3)
    held = hungry.pooled
    freed = runtime.evict(held // 3)
    assert (held - freed, True) == (hungry.pooled, held // 3 <= freed < held)
    assert {8: "released", 4: "replayable", 2: "replayable", 1: "replayable"} == states(runtime)
    assert ["SLOT_EVICTED", "EXACT"] == serve(runtime, 8) + serve(runtime, 4)


def test_evicting_more_than_there_is_evicts_all(hungry):
    """And nothing is evicted for nothing."""
    runtime = hungry.runtime()
    assert (0, 0) == (runtime.evict(1 << 30), len(hungry.told("memory.released")))
    runtime.capture()
    held = hungry.pooled
    assert (0, held) == (runtime.evict(0), hungry.pooled)
    assert (held, 0) == (runtime.evict(1 << 30), hungry.pooled)
    assert {"released"} == set(states(runtime).values())


@pytest.mark.parametrize("count", [-1, 0.5, True])
def test_what_is_no_number_of_bytes_evicts_nothing(hungry, count):
    """It is refused, and every slot stays."""
    runtime = hungry.runtime(sizes=(4,))
    runtime.capture()
    with pytest.raises(BadBatch, match="a whole number"):
        runtime.evict(count)
    assert {"replayable"} == set(states(runtime).values())


def test_evicted_slots_are_not_woken_but_may_be_captured(hungry):
    """They were not replayable when the rest was released; reset, they are captured like any other."""
    runtime = hungry.runtime(sizes=(4, 8))
    runtime.capture()
    serve(runtime, 4)
    runtime.evict(1)
    runtime.release()
    assert (("default", 4),) == runtime.wake().captured
    runtime.reset(LARGE)
    runtime.capture(LARGE)
    assert {8: "replayable", 4: "replayable"} == states(runtime)


def test_what_was_to_stay_is_brought_back_by_a_wake(hungry):
    """An eviction that fails half-way, where failures are raised: what it did not come to is not lost."""
    runtime = hungry.runtime(policy={"on_capture_failure": "raise"})
    runtime.capture()
    for rows in (4, 2, 1):
        serve(runtime, rows)
    hungry.fails = {4}
    with pytest.raises(CaptureFailed):
        runtime.evict(hungry.pooled // 3)
    assert {8: "released", 4: "failed", 2: "released", 1: "released"} == states(runtime)
    assert ["evicted", "packed"] == [runtime.slots["default", size].cause.kind for size in (8, 2)]
    hungry.fails = set()
    runtime.wake()
    assert {8: "released", 4: "replayable", 2: "replayable", 1: "replayable"} == states(runtime)


def test_ranks_evict_the_same_slots_or_none(hungry):
    """Each rank judges by its own memory, so they agree on what stays before anything goes."""
    ranks = FakeRanks(count=1)
    runtime = hungry.runtime(ranks=ranks)
    runtime.capture()
    before = states(runtime), hungry.pooled
    ranks.count, ranks.verdict = 2, "refused"
    with pytest.raises(RankDisagreement):
        runtime.evict(1)
    assert before == (states(runtime), hungry.pooled)
