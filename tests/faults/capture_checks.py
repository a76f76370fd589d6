"""What must hold after a capture, well or badly ended, and after memory was given back."""

from __future__ import annotations

import gc
from typing import Any, Literal, cast

import attrs
import torch
from hypothesis import strategies as st

from tests.faults.bench import LIVE_ROW, Bench, CopyingAttention, Moment, entry, require_replayable
from tests.faults.histories import Rows, Turn
from tests.faults.parts import Drafter
from tests.faults.rig import require
from tests.faults.shape import Shape
from tsgraph.capture.mode import is_capturing, set_capturing
from tsgraph.keys import Batch, RankCounts
from tsgraph.runtime import GraphRuntime
from tsgraph.testing.fakes import FakeRanks

SIZES = ((1, 2), (2, 5), (1, 3, 4))
MOMENTS: tuple[Moment, ...] = ("warming", "recording")
SPECULATIVE = Shape(spec="speculative", sizes=(1, 2))
VARIANTS = (("default",), ("default", "greedy"))

shapes = st.builds(
    Shape,
    spec=st.sampled_from(("decode", "speculative")),
    sizes=st.sampled_from(SIZES),
    variants=st.sampled_from(VARIANTS),
)


def check_capture(shape: Shape) -> None:
    """Every slot is replayable, every variant and the default one has its slots, and nothing shared is left changed."""
    collects, frozen = gc.isenabled(), gc.get_freeze_count() > 0
    bench = Bench(shape)
    runtime = bench.captured()
    require((gc.isenabled(), gc.get_freeze_count() > 0) == (collects, frozen), "the collector was left otherwise (R43)")
    require_replayable(runtime)
    expected = {(variant, size) for variant in shape.variants for size in shape.sizes}
    require(expected == set(runtime.slots), f"there are other slots than {sorted(expected)}")
    _check_shared(bench)
    pooled, largest = runtime.backend.memory().pooled, max(slot.bytes for slot in runtime.slots.values())
    require(pooled == largest, f"the pool has {pooled} bytes, its largest graph {largest}: it is not one pool (R5)")
    _check_each_slot(runtime)


def check_context(shape: Shape) -> None:
    """What is warmed up and recorded pretends that every rank has as many rows, all of them decoding."""
    seen: list[tuple[int, RankCounts | None]] = []
    for moment in MOMENTS:
        bench = Bench(shape, lambda _, batch: seen.append((batch.rows, batch.counts)), moment)
        bench.captured(ranks=FakeRanks(count=2))
    require({rows for rows, _ in seen} == set(shape.sizes), "some slot was not recorded")
    for rows, counts in seen:
        expected = RankCounts([rows * shape.tokens] * 2, [rows] * 2, all_decode_or_idle=True)
        require(counts == expected, f"{rows} rows were recorded with {counts} (R14, R15)")


def check_setup(equal: bool) -> None:
    """Metadata make their state for the largest slot, and a draft shares indices exactly where forms are equal."""
    bench = Bench(SPECULATIVE)
    target, draft = bench.parts.attention, cast("Drafter", bench.parts.drafter)
    target.kv_indices, draft.kv_indices = torch.zeros(4), torch.zeros(4 if equal else 3)
    bench.runtime()
    told = [part.setup and part.setup.rows for part in (target, draft)]
    require(told == [max(SPECULATIVE.sizes)] * 2, f"metadata were made for {told} rows (R2)")
    require(
        (draft.kv_indices is target.kv_indices) == equal, "indices of other forms are shared, or equal ones not (R3)"
    )


def check_default(shape: Shape) -> None:
    """A sampler that names other variants only still has the default one captured."""
    bench = Bench(shape)
    bench.parts.sampler.names = ("greedy",)
    runtime = bench.runtime()
    require(runtime.variants == ("default", "greedy"), f"the variants are {runtime.variants}")


def _check_shared(bench: Bench) -> None:
    """What slots share with the rest of the process is as it was."""
    mode = is_capturing()
    set_capturing(on=False)  # put right, so that nothing after this check suffers
    require(not mode, "capture mode was left on (R20)")
    require(not bench.parts.grammar.queue, "a grammar entry was left in the queue (R23)")
    require(bench.parts.grammar.current is None, "a grammar entry was left current (R23)")


def _check_each_slot(runtime: GraphRuntime) -> None:
    """Each slot serves its variant's own step."""
    for variant, size in runtime.slots:
        shape = Shape(spec=runtime.spec.name, sizes=runtime.sizes)  # type: ignore[arg-type]
        live = Turn(tuple(range(1, size + 1)), (shape.tokens,) * size, variant)
        with entry(runtime, size):
            outputs = runtime(rows=size, variant=variant, **Rows(shape, live, 1).sources())
        expected = shape.tokens + (100 if variant == "greedy" else 0)
        require(
            outputs["accept_lengths"].tolist() == [expected] * size, f"slot {variant}/{size} gave another's outputs"
        )


# -- what may not be published -----------------------------------------------------------------------------------------

Misdeed = Literal["live row", "undeclared", "moved", "copied", "raises", "outvoted"]


@attrs.frozen
class Misbehaviour:
    """An engine whose step, collaborator or peer does `deed`, while `moment`."""

    shape: Shape
    deed: Misdeed
    moment: Moment = "warming"


CASES: tuple[tuple[Misdeed, Moment], ...] = (
    ("live row", "warming"),
    ("undeclared", "warming"),
    ("moved", "recording"),
    ("copied", "never"),
    ("outvoted", "never"),
    ("raises", "warming"),
    ("raises", "recording"),
)
small = st.builds(Shape, spec=st.sampled_from(("decode", "speculative")), sizes=st.sampled_from(((1,), (2,), (3,))))
misbehaviours = st.builds(lambda shape, case: Misbehaviour(shape, *case), small, st.sampled_from(CASES))


def check_refusal(case: Misbehaviour) -> None:
    """No slot of an engine that misbehaves is published, and what it did to live memory is undone or did not happen."""
    bench = Bench(case.shape, _DEEDS.get(case.deed, _nothing), case.moment)
    rest: dict[str, Any] = {}
    if case.deed == "copied":
        bench.parts.attention = CopyingAttention.of(case.shape)
        bench.parts.recurrent.attention = bench.parts.attention
        rest["drafter"] = None
    if case.deed == "outvoted":
        rest["ranks"] = FakeRanks(verdict="refused")
    runtime = bench.captured(**rest)
    published = [str(slot) for slot in runtime.slots.values() if slot.state != "failed"]
    require(not published, f"an engine that misbehaves ({case.deed}) has {published}")
    require(float(bench.rows[LIVE_ROW]) == 0.0, "a warm-up's write to a live row was not undone (R12)")
    require(not bench.undeclared.any(), "a warm-up wrote to undeclared memory (R12)")
    require(all(slot.graph is None for slot in runtime.slots.values()), "a failed slot holds a recording (P17)")
    _check_shared(bench)


def _nothing(_bench: Bench, _batch: Batch) -> None:
    """Behaves."""


def _write_live(bench: Bench, _batch: Batch) -> None:
    bench.rows[LIVE_ROW].add_(1)


def _write_undeclared(bench: Bench, _batch: Batch) -> None:
    bench.undeclared.add_(1)


def _move(bench: Bench, _batch: Batch) -> None:
    bench.moving.weight.data = bench.moving.weight.data.clone()


def _raise(_bench: Bench, _batch: Batch) -> None:
    raise ValueError("no such layer")


_DEEDS = {"live row": _write_live, "undeclared": _write_undeclared, "moved": _move, "raises": _raise}

# -- giving memory back, and captures between steps --------------------------------------------------------------------


def check_release(shape: Shape) -> None:
    """A slot that is released or stale serves no more and holds no memory; captured again, it serves again."""
    runtime = Bench(shape).captured()
    require_replayable(runtime)
    key = ("default", shape.sizes[0])
    runtime.invalidate("a weight moved", key)
    decision = runtime.explain(key[1])
    require(decision.eager, f"a stale slot goes on serving: {decision}")
    runtime.release()
    held = [str(slot) for slot in runtime.slots.values() if slot.graph is not None]
    require(not held, f"slots that were released hold recordings: {held}")
    require(runtime.backend.memory().pooled == 0, "the pool was not given back")
    require(runtime.explain(key[1]).eager, "a released slot goes on serving")


def check_undisturbed(shape: Shape) -> None:
    """A capture between two steps leaves the caller's random numbers and the rows in static buffers as they were."""
    bench = Bench(shape, _draw, "warming")
    runtime = bench.runtime()
    buffer = runtime.slots["default", shape.rows].batch.buffers["positions"]
    assert isinstance(buffer, torch.Tensor)
    buffer.fill_(77)
    before = torch.get_rng_state()
    with bench.parts.capturing():
        runtime.capture()
    require(torch.equal(before, torch.get_rng_state()), "a capture drew from the caller's generator")
    require(bool((buffer == 77).all()), "a capture overwrote rows in a static buffer")


def _draw(_bench: Bench, batch: Batch) -> None:
    torch.rand(batch.rows)


lives = st.builds(Shape, sizes=st.sampled_from(((1, 2), (3,))))
