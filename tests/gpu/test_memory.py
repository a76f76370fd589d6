"""What graphs hold of a real device: given back to the driver, taken again, and never written once it is another's."""

from __future__ import annotations

import gc

import attrs
import pytest
import torch

from tsgraph.buffers.contract import Rows
from tsgraph.errors import BadBatch
from tsgraph.runtime import GraphRuntime

pytestmark = pytest.mark.gpu

MIB = 1 << 20
SLACK = 24 * MIB
"""What the driver may keep for its own bookkeeping of graphs, and torch of a segment that is not used up."""

WIDE = 1 << 18
"""Columns of what a step computes on its way: 1 MiB a row, and it has two of these at once."""


@attrs.define(eq=False)
class Wide:
    """A step with a product, which needs a workspace of cuBLAS, and with large intermediates."""

    model: torch.nn.Linear
    heard: list[tuple[str, dict[str, object]]] = attrs.field(factory=list)

    @classmethod
    def fresh(cls) -> Wide:
        """One on the device."""
        torch.manual_seed(0)
        return cls(torch.nn.Linear(1024, 8, device="cuda"))

    def step(self, x):
        """The model's outputs plus a sum that is nothing."""
        wide = x[:, :1].expand(-1, WIDE) * 0.0
        return self.model(x) + (wide + 0.0).sum(1, keepdim=True)

    def runtime(self, sizes=(16, 32, 64), **rest) -> GraphRuntime:
        """A runtime of it."""
        return GraphRuntime.for_step(
            self.step,
            inputs={"x": Rows(torch.float32, shape=(1024,), pad=0.0)},
            outputs="request",
            sizes=sizes,
            modules=[self.model],
            observers=[lambda event: self.heard.append((event.name, dict(event.fields)))],
            **rest,
        )

    def check(self, runtime: GraphRuntime, rows: int, *, eager: bool = False) -> None:
        """Serve one step, by a slot unless `eager`, and hold it against the model itself."""
        x = torch.randn(rows, 1024, device="cuda")
        done = runtime.step(x=x)
        assert done.decision.eager is eager, str(done.decision)
        with torch.inference_mode():
            torch.testing.assert_close(done.outputs.clone(), self.model(x), rtol=1e-3, atol=1e-3)


@pytest.fixture
def wide() -> Wide:
    """A fresh engine, with nothing of an earlier test's left in torch's cache."""
    gc.collect()
    torch.cuda.empty_cache()
    return Wide.fresh()


def used() -> int:
    """Bytes that the driver has lent to anybody, torch's cache given back."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def test_a_release_gives_the_pool_back_to_the_driver_and_wake_takes_it_again(wide):
    """By what the driver says: all but some bookkeeping of its own; woken slots replay right, as often as one likes."""
    runtime = wide.runtime()
    runtime.capture()
    wide.check(runtime, 60)
    runtime.release()
    base = used()
    for _ in range(3):
        runtime.wake()
        wide.check(runtime, 60)
        held, pool = used(), runtime.graph_memory()["bytes"]
        freed = runtime.release()
        left = used()
        told = f"pool {pool / MIB:.0f} MiB, driver: held {(held - base) / MIB:.0f}, left {(left - base) / MIB:.1f} MiB"
        assert freed == pool >= 64 * MIB, told
        assert held - base >= 64 * MIB, told
        assert left - base <= SLACK, told


def test_weights_go_and_come_back_at_other_addresses(wide):
    """Offloaded while the graphs are released; nothing is woken before they are back, and then it reads them there."""
    runtime = wide.runtime()
    runtime.capture()
    runtime.release()
    before = wide.model.weight.data_ptr()
    wide.model.cpu()
    with pytest.raises(BadBatch, match="module 0 weight"):
        runtime.wake()
    occupied = [torch.full((8, 1024), float("nan"), device="cuda") for _ in range(4)]  # where the weights were
    wide.model.cuda()
    assert before != wide.model.weight.data_ptr(), f"the address came back beside {len(occupied)} others"
    runtime.wake()
    for rows in (5, 30, 64):
        wide.check(runtime, rows)


@pytest.mark.parametrize("sizes", [(64,), (16, 32, 64)])
def test_recaptures_take_what_one_capture_did(wide, sizes):
    """M2, J6: with everything stale, no old pool is there while the new one is recorded, also where torch opens one."""
    runtime = wide.runtime(sizes=sizes)
    runtime.capture()
    wide.check(runtime, 64)
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    reserved, pool = torch.cuda.memory_reserved(), runtime.graph_memory()["bytes"]
    for _ in range(4):
        torch.cuda.reset_peak_memory_stats()
        runtime.invalidate("weights were loaded")
        runtime.wake()
        wide.check(runtime, 64)
        peak = torch.cuda.max_memory_reserved()
        told = f"reserved {reserved / MIB:.0f} MiB, peak {peak / MIB:.0f}, pool {pool / MIB:.0f}"
        assert runtime.graph_memory()["bytes"] == pool, told
        assert peak < reserved + pool + 96 * MIB, told  # a warm-up needs as much again, beside the one pool


@pytest.mark.parametrize("undo", ["release", "reset", "recapture"])
def test_the_end_of_one_graph_leaves_the_workspaces_of_others(undo):
    """E4: cuBLAS workspaces are forgotten with any graph of a stream. What another recorded must not be lent again."""
    torch.manual_seed(0)
    weight = torch.randn(16384, 640, device="cuda", dtype=torch.bfloat16) / 128
    runtime = GraphRuntime.for_step(
        lambda x: x @ weight,
        inputs={"x": Rows(torch.bfloat16, shape=(16384,), pad=0.0)},
        outputs="request",
        sizes=(32, 64),
        device="cuda",
        observers=(),
    )
    runtime.capture()
    kept, gone = ("default", 32), ("default", 64)
    x = torch.randn(32, 16384, device="cuda", dtype=torch.bfloat16)
    expected = runtime.eager(x=x, padded_to=32).clone()
    runtime.invalidate("moved", gone)
    {"release": runtime.release, "reset": runtime.reset, "recapture": runtime.capture}[undo](gone)
    torch.cuda.empty_cache()
    with runtime.backend.side_stream():  # whoever asks on that stream gets what was forgotten there
        others = [torch.full((size * MIB,), 77, dtype=torch.uint8, device="cuda") for size in (8, 8, 32, 32, 1, 1)]
    for _ in range(20):
        done = runtime.step(x=x)
        assert tuple(done.decision.key) == kept
        assert torch.equal(expected, done.outputs)
    torch.cuda.synchronize()
    assert [True] * len(others) == [bool((other == 77).all()) for other in others]


def test_what_does_not_fit_the_budget_is_given_back_to_the_driver(wide):
    """The largest is refused, and what its recording took is the driver's again; the smaller ones replay."""
    probe = wide.runtime(sizes=(16, 32))
    probe.capture()
    limit = probe.graph_memory()["bytes"]
    probe.release()
    base = used()
    runtime = wide.runtime(memory_budget=limit)
    runtime.capture()
    states = {slot.key.size: slot.state for slot in runtime.slots.values()}
    assert states == {64: "failed", 32: "replayable", 16: "replayable"}, str(runtime.slots["default", 64].cause)
    held = used() - base
    assert runtime.graph_memory()["bytes"] <= limit
    workspace = 32 * MIB  # the cuBLAS workspace of the stream that warms up, which no pool holds
    assert held <= limit + workspace + SLACK, f"{held / MIB:.0f} MiB for a budget of {limit / MIB:.0f}"
    wide.check(runtime, 30)
    wide.check(runtime, 60, eager=True)


def test_forecast_and_actual(wide):
    """Two recordings tell what all take, within what torch rounds segments to."""
    runtime = wide.runtime(sizes=(8, 16, 32, 64))
    summary = runtime.capture()
    assert summary.forecast is not None
    told = f"forecast {summary.forecast / MIB:.1f} MiB, actual {summary.bytes / MIB:.1f}"
    assert abs(summary.forecast - summary.bytes) <= 40 * MIB, told


def test_eviction_shrinks_the_pool(wide):
    """The pool is captured anew with the slots that are used, and the driver has the rest."""
    runtime = wide.runtime()
    runtime.capture()
    for _ in range(3):
        wide.check(runtime, 16)
    before, held = used(), runtime.graph_memory()["bytes"]
    freed = runtime.evict(held // 3)
    after = used()
    told = f"{freed / MIB:.0f} MiB of {held / MIB:.0f}; the driver got {(before - after) / MIB:.0f}"
    assert freed >= held // 3, told
    assert before - after >= freed - SLACK, told
    wide.check(runtime, 16)
    wide.check(runtime, 64, eager=True)


def test_a_step_waits_for_its_slot_and_is_told_how_long(wide):
    """M4, on a device: milliseconds of the stall, and the step itself replays."""
    runtime = wide.runtime(policy={"capture": "lazy"})
    wide.check(runtime, 30)
    wide.check(runtime, 64)
    stalls = [fields for name, fields in wide.heard if name == "capture.stalled"]
    assert ["default/32", "default/64"] == [stall["slot"] for stall in stalls]
    assert all(0 < stall["milliseconds"] < 60_000 for stall in stalls)
