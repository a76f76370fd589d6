"""What the engine uses of the drop-in beside its calls: attributes, module names, errors."""

from __future__ import annotations

import gc
import inspect
from types import SimpleNamespace

import attrs
import pytest
import torch

from tests.adapters.tokenspeed.configuration import FULL, STATE, WINDOW, Configuration, Flags, Step
from tests.adapters.tokenspeed.keeping import KeepingAttention, keep_lengths
from tsgraph.adapters import tokenspeed
from tsgraph.adapters.tokenspeed import CudaGraphWrapper, MissingTables, UncapturedGraph, pool
from tsgraph.errors import CaptureFailed, ContractViolation, StaleSlot

CONSTRUCTOR = (
    "forward_func", "attn_backend", "token_to_kv_pool", "input_buffers", "config", "draft_attn_backend",
    "draft_token_to_kv_pool", "drafter", "capturable_grammar", "eager_grammar_buffers", "sampling_backend",
    "runtime_states",
)  # fmt: skip


def test_constructor_takes_the_originals_arguments():
    """By place and by name; what is added is a keyword with a default."""
    parameters = list(inspect.signature(CudaGraphWrapper).parameters.values())

    assert CONSTRUCTOR == tuple(each.name for each in parameters[:-2])
    assert {inspect.Parameter.KEYWORD_ONLY} == {each.kind for each in parameters[-2:]}
    assert {"backend": "auto", "staleness": "always"} == {each.name: each.default for each in parameters[-2:]}


def test_attributes_after_a_capture(make):
    """Graphs and outputs by variant and size; sizes; whether it is disabled."""
    engine = make(Configuration(sizes=(1, 2), variants=("greedy",), logprobs=False))
    wrapper = engine.wrap()
    keys = [("default", 1), ("default", 2), ("greedy", 1), ("greedy", 2)]

    assert (keys, keys) == (list(wrapper.graphs), list(wrapper.output_buffers))
    assert ([1, 2], 2, False) == (wrapper.capture_bs, wrapper.max_bs, wrapper.disable)
    tokens, accepted, logprobs = wrapper.output_buffers["default", 2]
    assert (2, 2, None) == (len(tokens), len(accepted), logprobs)


def test_graph_of_the_attribute_is_the_one_that_is_replayed(make):
    """Outputs are the static memory that a replay by hand overwrites."""
    engine = make(Configuration(sizes=(2,)))
    wrapper = engine.wrap()
    engine.buffers.seq_lens_buf[:2] = torch.tensor([5, 6], dtype=torch.int32)

    wrapper.graphs["default", 2].replay()

    assert [5, 6] == wrapper.output_buffers["default", 2][0].tolist()


def test_module_has_the_originals_names():
    """What the engine imports is there."""
    for name in tokenspeed.__all__:
        assert hasattr(tokenspeed, name)
    with pytest.raises(AttributeError, match="no attribute 'CudaGraphWrappers'"):
        tokenspeed.CudaGraphWrappers  # noqa: B018


def test_pool_of_the_module_is_that_of_the_newest_recording(make):
    """Wrappers of one device record into one pool, which the module shows."""
    engine = make(Configuration(sizes=(1,)))
    engine.wrap()
    first = tokenspeed.global_graph_memory_pool

    make(Configuration(sizes=(1,))).wrap()

    assert first is not None
    assert first is tokenspeed.global_graph_memory_pool


def test_pool_is_told_by_its_handle(monkeypatch):
    """Where torch knows a pool by a handle, as on a GPU, the module shows that; before any recording, nothing."""
    monkeypatch.setattr(pool, "_newest", [])
    monkeypatch.setattr(pool, "_shared", {})
    assert tokenspeed.global_graph_memory_pool is None

    pool.share_pool(SimpleNamespace(device="a GPU"), SimpleNamespace(handle=lambda: (0, 1)))

    assert (0, 1) == tokenspeed.global_graph_memory_pool


def test_capture_mode_is_on_only_in_recordings(make):
    """Four warm-ups without, one recording with it."""
    engine = make(Configuration(sizes=(1,)))
    engine.wrap()

    assert [False] * 4 + [True] == [event[3] for event in engine.trace if event[1] == "forward"]
    assert not tokenspeed.get_is_capture_mode()


def test_enforced_eager_captures_when_asked(make):
    """Nothing is captured at first; by hand it is, and enabling it uses what was captured."""
    engine = make(Configuration(sizes=(2,), enforce_eager=True))
    wrapper = engine.wrap()
    assert ({}, True) == (wrapper.graphs, wrapper.disable)

    wrapper.capture()
    wrapper.disable = False

    assert wrapper.can_run(2, engine.context(Step(rows=2)))


@pytest.mark.parametrize("kind", [RuntimeError, KeyError])
def test_uncaptured_default_is_an_error_of_both_kinds(make, kind):
    """An enabled wrapper that has captured nothing refuses a step that padding would send to a graph."""
    engine = make(Configuration(sizes=(2,), enforce_eager=True))
    wrapper = engine.wrap()
    wrapper.disable = False

    with pytest.raises(kind, match="default/2 was not captured") as refusal:
        engine.serve(wrapper, Step(rows=1))

    assert isinstance(refusal.value, UncapturedGraph)
    assert [] == engine.trace


@pytest.mark.parametrize("kind", [RuntimeError, KeyError])
def test_uncaptured_variant_is_an_error_of_both_kinds(make, kind):
    """A variant that nobody declared is refused when it is asked for, with those that there are."""
    engine = make(Configuration(sizes=(2,), variants=("greedy",)))
    wrapper = engine.wrap()

    with pytest.raises(kind, match=r"variant 'beam' was not captured(?s:.*)default, greedy") as refusal:
        engine.serve(wrapper, Step(rows=1, variant="beam"))

    assert isinstance(refusal.value, UncapturedGraph)
    assert 1 == engine.target.context.bs


class BoundAnew(KeepingAttention):
    """One whose binds keep new lengths each time; a refresh goes back to those of the first slot."""

    first, binds = None, 0

    def init_forward_metadata_capture_cuda_graph(self, *args, **words):
        super().init_forward_metadata_capture_cuda_graph(*args, **words)
        self.binds += 1
        self.first = self.kept if self.binds <= 6 else self.first

    def init_forward_metadata_replay_cuda_graph(self, *args, **words):
        self.kept = self.first
        super().init_forward_metadata_replay_cuda_graph(*args, **words)


def test_metadata_that_only_another_variants_graph_reads_are_looked_at(make):
    """The slot of the variant is asked for last, and its graph would read what no refresh writes: it runs eagerly."""
    engine = make(Configuration(sizes=(2,), variants=("greedy",)))
    keep_lengths(engine, BoundAnew)
    wrapper = engine.wrap()

    assert [20, 22] == engine.serve(wrapper, Step(rows=2))[0].tolist()
    assert [20, 22] == engine.serve(wrapper, Step(rows=2, variant="greedy"))[0].tolist()
    assert {("default", 2): "replayable", ("greedy", 2): "stale"} == {
        key: slot.state for key, slot in wrapper.slots.items()
    }
    assert [20, 22] == engine.serve(wrapper, Step(rows=2))[0].tolist()
    assert [2, 0] == [wrapper.slots[name, 2].counts.replays for name in ("default", "greedy")]


def test_what_is_stale_elsewhere_is_told(make):
    """An error of a backend's own, by which nothing that a graph recorded has moved, goes on to the engine."""
    engine = make(Configuration(sizes=(2,)))
    wrapper = engine.wrap()

    def refresh(*args, **words):
        raise StaleSlot("another runtime's")

    engine.target.init_forward_metadata_replay_cuda_graph = refresh
    with pytest.raises(StaleSlot, match="another runtime's"):
        engine.serve(wrapper, Step(rows=2))

    del engine.target.init_forward_metadata_replay_cuda_graph
    assert [10, 11] == engine.serve(wrapper, Step(rows=2))[0].tolist()


def test_an_idle_step_that_finds_a_stale_graph_has_no_tables(make):
    """Those that its replay would have had are not handed to the eager step, nor kept."""
    engine = make(Configuration(sizes=(2,), groups=(FULL, WINDOW), target=Flags(paged=True, flat=True)))
    keep_lengths(engine)
    wrapper = engine.wrap()
    engine.target.remakes = True

    engine.serve(wrapper, Step(rows=0, tables=False))

    (eager,) = [event[-1] for event in engine.trace if event[:2] == ("target", "eager")]
    assert (None, None) == (eager["paged_cache_block_tables"], eager["flat_block_tables"])


def test_looks_can_be_left_out(make):
    """Without them a graph goes on reading what was recorded."""
    engine = make(Configuration(sizes=(2,)))
    weight = [torch.full((1,), 100, dtype=torch.int32)]
    engine.backend.adopt(weight)
    lengths = engine.buffers.seq_lens_buf
    engine.answer = lambda rows: (lengths[:rows] + weight[0], lengths[:rows] + 0, None)
    for staleness, expected in (("off", [110, 111]), ("full", [210, 211])):
        wrapper = engine.wrap(staleness=staleness)
        held = weight[0]
        weight[0] = held + 100
        assert expected == engine.serve(wrapper, Step(rows=2))[0].tolist()
        weight[0] = held


def test_missing_flat_tables_are_an_error_of_both_kinds(make):
    """An eager step of several groups without flat tables would read the first group's pages in every layer."""
    engine = make(Configuration(groups=(FULL, WINDOW), target=Flags(flat=True)))
    wrapper = engine.wrap()

    with pytest.raises(MissingTables, match="2 groups") as refusal:
        engine.serve(wrapper, Step(rows=1, mode="EXTEND", tables=False))

    assert isinstance(refusal.value, RuntimeError)


@pytest.mark.parametrize(
    ("step", "groups"),
    [
        (Step(rows=2, mode="IDLE", tables=False), (FULL, WINDOW)),
        (Step(rows=0, mode="EXTEND", tables=False), (FULL, WINDOW)),
        (Step(rows=2, mode="EXTEND", tables=False), (FULL,)),
        (Step(rows=2, mode="EXTEND"), (FULL, WINDOW)),
    ],
)
def test_eager_steps_that_need_no_flat_tables(make, step, groups):
    """One that idles, one without rows, one of a single group, and one that has them."""
    engine = make(Configuration(groups=groups, target=Flags(flat=True)))

    assert step.rows == len(engine.serve(engine.wrap(), step)[1])


def test_draft_metadata_need_a_drafter(make):
    """They read its lengths and pages."""
    engine = make(Configuration(spec_algo="EAGLE", drafter=True, draft=Flags()))

    with pytest.raises(ContractViolation, match="drafter: expected one"):
        engine.wrap(drafter=None)


def test_forward_returns_three(make):
    """Anything else is refused while capturing, with what was got."""
    engine = make(Configuration(sizes=(1,)))

    with pytest.raises(CaptureFailed, match=r"forward_func\.return"):
        engine.wrap(forward_func=lambda **words: engine.forward(**words)[:2])


def test_variants_stay_what_they_were(make):
    """A sampler that declares others at the capture than before is refused: slots are planned already."""
    engine = make(Configuration(variants=("greedy",), enforce_eager=True))
    wrapper = engine.wrap()
    engine.sampler.declared = ("beam",)

    with pytest.raises(ContractViolation, match="variants"):
        wrapper.capture()


def test_eager_answer_is_untouched(make):
    """An eager step returns the very objects that its forward returned."""
    engine = make(Configuration())
    wrapper = engine.wrap()
    answer = (object(), object(), None)

    engine.answer = lambda rows: answer

    assert answer is engine.serve(wrapper, Step(rows=1, mode="EXTEND"))


def test_padded_call_without_several_groups_passes_other_things_through(make):
    """A table that is no tensor, and one that is padded already, reach the backend as they are."""
    engine = make(Configuration(sizes=(4,), groups=(FULL, STATE), target=Flags(flat=True)))
    wrapper = engine.wrap()
    engine.stage(Step(rows=2))
    ready, other = torch.zeros(4, 2, dtype=torch.int32), object()

    engine.trace.clear()
    wrapper(2, engine.context(Step(rows=2)), None, engine.pages, flat_block_tables={"full": ready, "state": other})

    tables = engine.trace[0][-1]["flat_block_tables"]
    assert (("fresh", "int32", [[0, 0]] * 4), other) == (tables["full"], tables["state"])


@pytest.mark.parametrize(("settings", "kept_away"), [({}, False), ({"enable_cudagraph_gc": False}, True)])
def test_freezing_follows_the_configuration(make, settings, kept_away):
    """The collector is kept away from captures where the configuration says so; without the setting it is not."""
    engine, seen = make(Configuration(sizes=(1,))), []
    config = engine.config
    vars(config).update(settings)

    def forward(**words):
        seen.append(not gc.isenabled())  # what is frozen already, here by a fixture, is not frozen again
        return engine.forward(**words)

    engine.wrap(config=config, forward_func=forward)

    assert ([kept_away] * 5, True) == (seen, gc.isenabled())


def test_widths_are_those_of_the_contract(make):
    """Page of 64 tokens, four tokens a request, one step ahead: 65 columns for 4096 tokens, 4 for a window of 128."""
    full = attrs.evolve(FULL, rows_per_page=64)
    window = attrs.evolve(WINDOW, rows_per_page=64, entry_stride_tokens=1, sliding_window_tokens=128)
    configuration = Configuration(
        spec_algo="EAGLE", spec_num_tokens=4, depth=1, context_len=4096, groups=(full, window), enforce_eager=True
    )
    engine = make(configuration)

    tables = engine.wrap()._capture_paged_cache_block_tables(3, engine.pool)

    assert {"full": (3, 65), "window": (3, 4)} == {group: tuple(table.shape) for group, table in tables.items()}
