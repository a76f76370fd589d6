"""Poison breaks no right engine, and shows staleness that luck would hide."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings

from tests.runtime.conftest import PAGES, ToyEngine
from tests.runtime.test_padding import batches, sources_of
from tsgraph.backends.emulated import staging
from tsgraph.buffers.contract import Fixed, Rows
from tsgraph.errors import BadBatch
from tsgraph.keys import Decision, Mode, Reason
from tsgraph.protocols.backend import Backend
from tsgraph.reference import DecoderConfig, EngineConfig, ReferenceEngine, Request, Sampling, graph_runtime
from tsgraph.runtime import GraphRuntime
from tsgraph.testing.poison import poison

CONFIG = EngineConfig(
    decoder=DecoderConfig(width=32, layers=1, heads=4, kv_heads=2, head_dim=8, hidden=40), rows=5, pages=16, context=32
)
REQUESTS = [
    Request(
        prompt=tuple(range(60 + i, 63 + 2 * i)),
        max_tokens=3 + i,
        arrival=i // 3 * 8,
        sampling=Sampling(temperature=i % 3 / 2, top_k=[0, 20][i % 2], top_p=[1.0, 0.9][i % 2], seed=i),
    )
    for i in range(5)
]


def test_the_reference_engine_is_the_same_under_poison(backend: Backend):
    """Requests that come and go, so that batches grow and shrink: texts and logprobs are those without, to the bit."""
    engine = ReferenceEngine(
        attrs.evolve(CONFIG, device=str(backend.device)), lambda p: graph_runtime(p, backend=backend)
    )
    decisions: list[Decision] = []
    expected = engine.generate(REQUESTS, lambda rows, mode, sources, done: decisions.append(done.decision))
    with poison(engine.runtime):
        assert expected == engine.generate(REQUESTS)
    rows = [decision.rows for decision in decisions if decision.key]
    assert {Reason.EXACT, Reason.PADDED, Reason.NOT_DECODE} == {decision.reason for decision in decisions}
    assert {-1, 1} <= {(after > before) - (after < before) for before, after in pairwise(rows)}


def test_a_right_step_is_the_same_under_poison(backend: Backend):
    """For batches that shrink, idle and grow, outputs and state are those without."""

    def served(poisoned: bool) -> list[torch.Tensor]:
        pages = torch.arange(PAGES * 3, dtype=torch.float32, device=backend.device).reshape(PAGES, 3)
        engine = ToyEngine(backend.device, torch.arange(1.0, 4.0, device=backend.device), pages)
        runtime, left = engine.runtime(backend, sizes=(2, 8)), []
        runtime.capture()
        with poison(runtime) if poisoned else nullcontext():
            for step, owned in enumerate([[3, 5, 7, 9, 11, 13, 15, 1], [2], [], [4, 6, 8], [1, 2], list(range(1, 10))]):
                outputs = runtime(rows=len(owned), **sources_of(owned, step))
                left += [leaf.clone() for leaf in outputs.values()]
        return [*left, pages]

    assert all(map(torch.equal, served(poisoned=False), served(poisoned=True)))


@pytest.fixture(scope="module")
def toy() -> tuple[ToyEngine, GraphRuntime]:
    """An engine with slots of 2 and 8 rows."""
    pages = torch.arange(PAGES * 3, dtype=torch.float32).reshape(PAGES, 3)
    engine = ToyEngine(torch.device("cpu"), torch.arange(1.0, 4.0), pages)
    runtime = engine.runtime("emulated", sizes=(2, 8))
    runtime.capture()
    return engine, runtime


@settings(max_examples=30)
@given(history=batches())
def test_no_history_shows_poison(toy: tuple[ToyEngine, GraphRuntime], history: list[list[int]]):
    """Whatever came before, a replay under poison gives the bits of eager at the padded shape, outputs and state."""
    engine, runtime = toy
    with poison(runtime):
        for step, owned in enumerate(history):
            before, sources = engine.pages.clone(), sources_of(owned, step)
            size = runtime.explain(len(owned)).padded_to
            expected = runtime.eager(rows=len(owned), padded_to=size, **sources)
            left, _ = engine.pages.clone(), engine.pages.copy_(before)
            outputs = runtime(rows=len(owned), **sources)
            assert all(torch.equal(leaf, outputs[name]) for name, leaf in expected.items())
            assert torch.equal(left, engine.pages)


IDS = Rows(torch.int64, pad=0)


def captured(
    step: Callable[..., Any], inputs: Any = None, *, sizes: Any = (4,), outputs: Any = "request"
) -> GraphRuntime:
    """A runtime of `step` with its slots captured."""
    runtime = GraphRuntime.for_step(
        step, inputs=inputs or {"ids": IDS}, sizes=sizes, outputs=outputs, backend="emulated"
    )
    runtime.capture()
    return runtime


def ids(*values: int) -> torch.Tensor:
    """A source."""
    return torch.tensor(values)


def test_a_tail_that_is_not_staged_is_seen(monkeypatch: pytest.MonkeyPatch):
    """A step that reads its pad rows is right by luck while they hold their pads from the beginning."""
    monkeypatch.setattr(staging, "_fill_tail", lambda target, rows, pad: None)
    runtime = captured(lambda ids: ids + ids.amin())
    assert [7, 8, 9] == runtime(ids=ids(7, 8, 9)).tolist()
    with poison(runtime):
        assert [7, 8, 9] != runtime(ids=ids(7, 8, 9)).tolist()


def test_columns_that_are_not_staged_are_seen(monkeypatch: pytest.MonkeyPatch):
    """A table narrower than its buffer is right by luck while nothing wider came before."""
    monkeypatch.setattr(staging, "_fill_margin", lambda target, rows, columns, pad: None)
    runtime = captured(lambda table: table.sum(-1), {"table": Rows(torch.int64, shape=(4,), pad=0, column_pad=0)})
    assert [3, 5] == runtime(table=torch.tensor([[1, 2], [2, 3]])).tolist()
    with poison(runtime):
        assert [3, 5] != runtime(table=torch.tensor([[1, 2], [2, 3]])).tolist()


def test_a_row_beyond_the_slot_is_seen():
    """A step that reads one row too many finds a pad by luck while no larger batch came before."""
    runtime = captured(lambda ids: ids + ids.as_strided((len(ids) + 1,), (1,))[-1], sizes=(1, 2))
    assert [3] == runtime(ids=ids(3)).tolist()
    with poison(runtime):
        assert [3] != runtime(ids=ids(3)).tolist()


def test_a_row_that_no_replay_wrote_is_seen():
    """An output of which a step writes parts holds the rest of an earlier replay."""

    def step(ids: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(ids).index_copy_(0, where, ids)

    runtime = captured(step, {"ids": IDS, "where": IDS}, sizes=(2,))
    first = runtime(ids=ids(5, 6), where=ids(0, 1)).tolist()
    assert first == runtime(ids=ids(5, 5), where=ids(0, 0)).tolist()
    with poison(runtime):
        again = runtime(ids=ids(5, 6), where=ids(0, 1)).tolist()
        assert first == again != runtime(ids=ids(5, 5), where=ids(0, 0)).tolist()


def test_scratch_of_an_earlier_replay_is_seen():
    """So does scratch memory that the step has dropped: a free block of the pool."""

    def step(ids: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        scratch = torch.empty_like(ids).index_copy_(0, where, ids)
        return scratch + 1

    runtime = captured(step, {"ids": IDS, "where": IDS}, sizes=(2,))
    first = runtime(ids=ids(5, 6), where=ids(0, 1)).tolist()
    assert first == runtime(ids=ids(5, 5), where=ids(0, 0)).tolist()
    with poison(runtime):
        assert first != runtime(ids=ids(5, 5), where=ids(0, 0)).tolist()


def test_outputs_that_are_used_too_late_are_seen():
    """Outputs hold until the next step, whichever it is; a step of another size may leave them by luck."""
    runtime = captured(lambda ids: ids * 2)
    kept = runtime(ids=ids(5, 6))
    runtime(ids=ids(*range(9)))
    assert [10, 12] == kept.tolist()
    with poison(runtime):
        kept = runtime(ids=ids(5, 6))
        assert [10, 12] == kept.tolist()
        runtime(ids=ids(*range(9)))
        assert [10, 12] != kept.tolist()


def test_rows_written_in_place_are_kept():
    """What the engine wrote before the call is read by it; the rows behind are staged as ever."""
    runtime = captured(
        lambda ids, held: ids + held, {"ids": IDS, "held": Rows(torch.int64, pad=0, source="engine")}, outputs="request"
    )
    held = runtime.slots["default", 4].batch.buffers["held"]
    with poison(runtime):
        held[:3].copy_(ids(10, 20, 30))
        assert [11, 22, 33] == runtime(ids=ids(1, 2, 3)).tolist()
        held[:4].copy_(ids(10, 20, 30, 40))
        assert [11, 22, 33, 44] == runtime(ids=ids(1, 2, 3, 4), mode=Mode.EXTEND).tolist()


def test_outputs_that_are_the_engines_own_memory_are_kept():
    """A step may return a buffer or a state as it is: only memory of the pool is filled."""
    table = torch.arange(3.0)
    runtime = captured(
        lambda ids, table: {"ids": ids, "table": table, "none": None},
        {"ids": IDS, "table": Fixed(table)},
        outputs={"ids": "request", "table": "whole", "none": "whole"},
    )
    with poison(runtime):
        for _ in range(2):
            outputs = runtime(ids=ids(1, 2))
        assert ([1, 2], [0, 1, 2]) == (outputs["ids"].tolist(), outputs["table"].tolist())


def test_it_ends_with_the_block():
    """Also one within another, and also by an error; before a capture there is nothing but buffers to fill."""
    runtime = GraphRuntime.for_step(
        lambda ids: ids + 1, inputs={"ids": IDS}, sizes=(2,), outputs="request", backend="emulated"
    )
    plain = runtime._serve
    with poison(runtime):
        poisoned = runtime._serve
        with pytest.raises(BadBatch), poison(runtime):
            runtime(ids=ids(1).int())
        assert plain != poisoned == runtime._serve
        assert [2] == runtime(ids=ids(1)).tolist()
    assert plain == runtime._serve
