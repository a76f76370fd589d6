"""What the drop-in does otherwise than the original, on purpose: one test for each row of the reference's table."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import attrs
import pytest
import torch

from tests.adapters.tokenspeed.configuration import FULL, WINDOW, Configuration, Flags, Step
from tests.adapters.tokenspeed.engine import FakeEngine
from tests.adapters.tokenspeed.keeping import keep_lengths
from tsgraph.adapters.tokenspeed import get_batch_sizes_to_capture, get_is_capture_mode
from tsgraph.adapters.tokenspeed.collaborators import BarrierRanks
from tsgraph.errors import BadBatch, CaptureFailed, CaptureUnsupported, SpecError, WrongThread

TABLE = Path(__file__).parents[3] / "docs" / "reference" / "tokenspeed-deviations.md"
PAGED = Configuration(sizes=(2, 4), groups=(FULL, WINDOW), target=Flags(paged=True))
SPECULATIVE = Configuration(
    sizes=(2,), spec_algo="EAGLE", spec_num_tokens=2, drafter=True, draft=Flags(), grammar="capturable"
)


def test_every_row_of_the_table_names_a_test():
    """The reference lists these deviations, each by the test that shows it."""
    named = re.findall(r"`(test_\w+)`", TABLE.read_text(encoding="utf-8"))

    assert sorted(named) == sorted(name for name in globals() if name.startswith("test_") and "_table" not in name)


@pytest.mark.parametrize("part", ["target", "draft"])
@pytest.mark.parametrize("step", [Step(rows=1), Step(rows=2, mode="EXTEND")])
def test_context_is_restored_on_every_exit(make, part, step):
    """An exception in the middle of a step leaves the context's size as it was, and the wrapper able to serve."""
    engine = make(SPECULATIVE)
    wrapper = engine.wrap()
    getattr(engine, part).raises = OSError("a backend at fault")

    with pytest.raises(OSError, match="at fault"):
        engine.serve(wrapper, step)

    assert step.rows == engine.target.context.bs
    getattr(engine, part).raises = None
    assert step.rows == len(engine.serve(wrapper, step)[1])


def test_capture_mode_is_left_on_every_exit(make):
    """A forward that fails in a recording leaves capture mode off."""
    engine, failing = make(Configuration(sizes=(1,))), OSError("a forward at fault")

    def forward(**words):
        if get_is_capture_mode():
            raise failing
        return engine.forward(**words)

    with pytest.raises(CaptureFailed) as failure:
        engine.wrap(forward_func=forward)

    assert failing is failure.value.__cause__
    assert not get_is_capture_mode()


def test_buffers_are_restored_after_captures(make):
    """Captures leave in the input buffers, and in the drafter's lengths, what was there before."""
    engine = make(SPECULATIVE)

    engine.wrap()

    assert [1] * 8 == engine.buffers.seq_lens_buf.tolist()
    assert [77] * 8 == engine.drafter.draft_seq_lens_buf.tolist()


def test_sizes_are_sorted(make):
    """An unsorted list of sizes is sorted, so that a step goes to the smallest size that fits."""
    engine = make(Configuration(sizes=(4, 1, 2, 2)))
    wrapper = engine.wrap()

    assert [1, 2, 4] == wrapper.capture_bs
    assert 2 == wrapper.padded_bs(2, engine.context(Step(rows=2)))


def test_no_size_left_is_an_error(make):
    """A cap below every size is refused with the numbers, when the wrapper is made."""
    config = make(Configuration(sizes=(4,))).config
    config.max_cudagraph_capture_size = 2

    with pytest.raises(SpecError, match="cap of 2"):
        get_batch_sizes_to_capture(config)


def test_recorded_context_says_that_all_decode(make):
    """The context of warm-ups and recording takes the path that replays stand for, whatever the ranks."""
    engine = make(Configuration(sizes=(1,), ranks=2))
    engine.wrap()

    assert [True] * 5 == [event[-1]["steady"] for event in engine.trace if event[1] == "forward"]


def test_warm_ups_run_on_the_capture_stream(make):
    """Warm-ups and recording see one stream, the one that the wrapper shows."""
    engine = make(Configuration(sizes=(1,)))
    wrapper = engine.wrap()

    assert [wrapper.stream] * 5 == engine.streams


def test_sampler_reset_waits_for_warm_ups(make):
    """Between the last warm-up and the sampler's reset the device is waited for."""
    engine = make(Configuration(sizes=(1,), variants=()))
    wrapper = engine.wrap()
    events = [entry.name for entry in wrapper.slots["default", 1].history]
    last = len(events) - 1 - events[::-1].index("forward")

    assert "synchronized" in events[last : events.index("sampler_reset")]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("tables", ["paged_cache_block_tables", "paged_cache_block_table_base_offsets"])
def test_rows_are_checked_for_each_group(make, rows, tables):
    """A table shorter or longer than the step is refused by group, with nothing changed."""
    engine = make(attrs.evolve(PAGED, sizes=(4,)))
    wrapper = engine.wrap()
    words = engine.words(Step(rows=2, offsets=True))
    words[tables]["window"] = words[tables]["window"].new_zeros(rows, *words[tables]["window"].shape[1:])
    engine.stage(Step(rows=2))
    before = engine.buffers.seq_lens_buf.clone()
    engine.trace.clear()

    with pytest.raises(BadBatch, match=f"group 'window': expected 2 or 4 rows, got {rows}"):
        wrapper(2, engine.context(Step(rows=2)), None, engine.pages, **words)

    assert [] == engine.trace
    assert torch.equal(before, engine.buffers.seq_lens_buf)


def test_recurrent_rows_are_checked(make):
    """A recurrent index tensor of another length than the step is refused by name."""
    engine = make(Configuration(sizes=(4,)))
    wrapper = engine.wrap()
    indices = torch.zeros(3, dtype=torch.int32)

    with pytest.raises(BadBatch, match="mamba_pool_indices: expected 2 rows, got 3"):
        wrapper(2, engine.context(Step(rows=2)), None, engine.pages, mamba_pool_indices=indices)


def test_idle_step_replays_the_default_variant(make):
    """A step without rows does not ask the sampler, whatever variant ran last."""
    engine = make(Configuration(sizes=(2,), variants=("greedy",)))
    wrapper = engine.wrap()
    engine.serve(wrapper, Step(rows=2, variant="greedy"))

    engine.serve(wrapper, Step(rows=0, variant="greedy"))

    assert [] == [event for event in engine.trace if event[0] == "sampler"]
    replays = {key: slot.counts.replays for key, slot in wrapper.slots.items()}
    assert {("default", 2): 1, ("greedy", 2): 1} == replays


@pytest.mark.parametrize("convention", ["paged", "flat"])
def test_missing_group_is_refused(make, convention):
    """A recorded group without a table is refused by name before any backend sees the step."""
    engine = make(attrs.evolve(PAGED, target=Flags(**{convention: True})))
    wrapper = engine.wrap()
    name = {"paged": "paged_cache_block_tables", "flat": "flat_block_tables"}[convention]
    words = engine.words(Step(rows=2))
    del words[name]["window"]
    engine.trace.clear()

    with pytest.raises(BadBatch, match=f"{convention} tables: group 'window' was not supplied"):
        wrapper(2, engine.context(Step(rows=2)), None, engine.pages, **words)

    assert [] == engine.trace


@attrs.define(eq=False)
class Votes:
    """Ranks that note what they are asked, and answer with one verdict."""

    asked: list[object]
    verdict: str = "agreed"

    def meet(self):
        self.asked.append("meet")

    def settle(self, point, ok, digest, deadline):
        self.asked.append((point, ok))
        return self.verdict


@pytest.mark.parametrize("verdict", ["agreed", "refused"])
def test_ranks_agree_on_each_slot(make, monkeypatch, verdict):
    """Every recording is voted on; one that another rank refuses is no slot here either."""
    votes = Votes([], verdict)
    monkeypatch.setattr(
        "tsgraph.adapters.tokenspeed.assembling.BarrierRanks", lambda count, index: BarrierRanks(count, index, votes)
    )
    engine = make(Configuration(sizes=(1,)))

    if verdict == "agreed":
        assert [("default", 1)] == list(engine.wrap().graphs)
    else:
        with pytest.raises(CaptureFailed, match="R6"):
            engine.wrap()

    assert ("capture default/1", True) == votes.asked[-1]
    assert 6 == votes.asked.count("meet") == engine.trace.count(("ranks", "barrier", {}))


def test_more_rows_than_the_graph_has_are_refused(make):
    """Counts that hide rows of this rank lead to a smaller graph: the step is refused, with nothing changed."""
    engine = make(Configuration(ranks=2, sizes=(1, 2)))
    wrapper = engine.wrap()
    ctx = engine.context(Step(rows=2, others=1))
    ctx.global_num_tokens = [1, 1]
    engine.trace.clear()

    with pytest.raises(BadBatch, match="0 to 1 live rows, got 2"):
        wrapper(2, ctx, None, engine.pages)

    assert ([], 2) == (engine.trace, ctx.bs)


def test_failed_capture_leaves_no_grammar_entry(make):
    """A warm-up that fails takes back the entry that was pushed for it, and forgets the matchers' state."""
    engine = make(SPECULATIVE)

    def forward(**words):
        raise OSError("a forward at fault")

    with pytest.raises(CaptureFailed):
        engine.wrap(forward_func=forward)

    assert engine.grammar.queue.empty()
    assert ("grammar", "reset_state", {}) == engine.trace[-1]


def test_draft_is_bound_to_the_lengths_that_replays_refresh(make):
    """The draft sees its drafter's lengths at capture, too, so that a backend may keep what it is given."""
    engine = make(SPECULATIVE)
    engine.wrap()
    bound = [event[4] for event in engine.trace if event[:2] == ("draft", "bind")]

    assert [("draft_lens", "int32", [2, 2])] * 6 == bound


def test_padded_size_of_an_eager_step_is_its_own(make):
    """`padded_bs` answers for every step, with the rows that it runs with."""
    engine = make(Configuration(sizes=(1, 2)))
    wrapper = engine.wrap()

    assert 5 == wrapper.padded_bs(5, engine.context(Step(rows=5)))
    assert 1 == wrapper.padded_bs(1, engine.context(Step(rows=1, mode="EXTEND")))


# -- what is looked after while graphs serve --------------------------------------------------------------------------


@attrs.define(eq=False)
class Model:
    """A forward that adds a weight to its tokens: `greedy` to those of that variant alone."""

    engine: FakeEngine
    weight: torch.Tensor = attrs.field(factory=lambda: torch.full((1,), 100, dtype=torch.int32))
    greedy: bool = False
    does: object = None

    def forward(self, **words):
        """The engine's forward, and the weight."""
        if callable(self.does):
            self.does()
        tokens, *rest = self.engine.forward(**words)
        return tokens + self.weight if not self.greedy or self._variant() == "greedy" else tokens, *rest

    def _variant(self):
        prepared = [event[-1]["variant"] for event in self.engine.trace if event[:2] == ("sampler", "prepare")]
        return prepared[-1] if prepared else self.engine.sampler.wanted

    def put(self, value):
        """Another weight, in other memory."""
        self.weight = torch.full((1,), value, dtype=torch.int32)
        self.engine.backend.adopt([self.weight])

    def wrap(self, **words):
        """The wrapper around an engine with this forward."""
        self.engine.backend.adopt([self.weight])
        return self.engine.wrap(forward_func=self.forward, **words)


def ways(engine):
    """How the last step was served."""
    return {"forward": "eagerly"}.get(engine.trace[-1][1], "by a graph")


def test_replaced_memory_is_served_eagerly(make):
    """A step after a weight was replaced has its new value, and so have those of graphs that are captured again."""
    model = Model(make(Configuration(sizes=(2, 4))))
    wrapper = model.wrap(staleness="full")
    assert [110, 111] == model.engine.serve(wrapper, Step(rows=2))[0].tolist()
    assert "by a graph" == ways(model.engine)
    model.put(200)

    assert [210, 211] == model.engine.serve(wrapper, Step(rows=2))[0].tolist()
    assert "eagerly" == ways(model.engine)

    assert ({}, {"stale"}) == (wrapper.graphs, {slot.state for slot in wrapper.slots.values()})
    assert "was rebound" in wrapper.slots["default", 2].cause.summary
    assert not wrapper.can_run(2, model.engine.context(Step(rows=2)))
    wrapper.capture()
    assert [210, 211, 212] == model.engine.serve(wrapper, Step(rows=3))[0].tolist()
    assert "by a graph" == ways(model.engine)


def test_metadata_that_are_made_anew_are_found(make):
    """The graph would read what an earlier step left: the step that finds it runs eagerly, its context restored."""
    engine = make(Configuration(sizes=(4,)))
    keep_lengths(engine)
    wrapper = engine.wrap()
    assert [20, 22] == engine.serve(wrapper, Step(rows=2))[0].tolist()
    assert "forward" not in [event[1] for event in engine.trace]
    engine.target.remakes = True

    assert [20, 22, 24] == engine.serve(wrapper, Step(rows=3))[0].tolist()

    assert ("forward", 3, 3) == (engine.trace[-1][1], engine.trace[-1][2], engine.target.context.bs)
    assert "stale" == wrapper.slots["default", 4].state
    assert "is made anew by each refresh" in wrapper.slots["default", 4].cause.summary


def test_stale_variant_is_served_eagerly(make):
    """Where only the graph of a variant has recorded what was replaced, steps of others are replayed as before."""
    model = Model(make(Configuration(sizes=(2,), variants=("greedy",))), greedy=True)
    wrapper = model.wrap(staleness="full")
    model.put(200)
    engine = model.engine

    assert [10, 11] == engine.serve(wrapper, Step(rows=2))[0].tolist()
    assert ("stale", "replayable") == tuple(wrapper.slots[name, 2].state for name in ("greedy", "default"))
    assert [210, 211] == engine.serve(wrapper, Step(rows=2, variant="greedy"))[0].tolist()
    assert ("eagerly", 2) == (ways(engine), engine.target.context.bs)
    assert [10, 11] == engine.serve(wrapper, Step(rows=2))[0].tolist()
    assert "eagerly" != ways(engine)


def test_one_call_is_inside_at_a_time(make):
    """A call from inside of a call, or from another thread meanwhile, is refused with nothing changed."""
    model = Model(make(Configuration(sizes=(2,))))
    wrapper = model.wrap()
    engine, refused = model.engine, []

    def call():
        try:
            wrapper(2, engine.context(Step(rows=2)), None, engine.pages)
        except WrongThread as error:
            refused.append(error.what)

    def intrude():
        call()
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    model.does = intrude
    assert [110] == engine.serve(wrapper, Step(rows=1, mode="EXTEND"))[0].tolist()
    model.does = None

    inside, meanwhile = refused
    assert ("from inside of a step" in inside, "in one thread while another" in meanwhile) == (True, True)
    assert [110, 111] == engine.serve(wrapper, Step(rows=2))[0].tolist()


def test_replay_inside_a_recording_is_refused(make):
    """A graph is not replayed where somebody records the stream; an eager step is recorded there, as ever."""
    engine = make(Configuration(sizes=(2,)))
    wrapper = engine.wrap()
    engine.target.init_forward_metadata = lambda **words: None  # what is traced is read, which no recording may do
    engine.trace.clear()

    with engine.backend.record(engine.backend.pool()):
        with pytest.raises(CaptureUnsupported, match="is being recorded"):
            wrapper(2, engine.context(Step(rows=2)), None, engine.pages)
        assert [] == engine.trace
        assert 2 == len(wrapper(2, engine.context(Step(rows=2, mode="EXTEND")), None, engine.pages)[0])

    assert [10, 11] == engine.serve(wrapper, Step(rows=2))[0].tolist()
