"""The benchmark of captures: every way captures the same, and what it captured computes what eager does."""

from __future__ import annotations

import gc

import pytest
import torch

from tsgraph.backends.choice import choose_backend
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.bench.capture import ALONE, BARE, FROZEN, PER_SLOT, PER_VARIANT, SEED, WATCHED_ONCE, Decoder, spec_of
from tsgraph.bench.page import SHEETS
from tsgraph.bench.seed_model import capture as seed_capture
from tsgraph.keys import Batch, Mode
from tsgraph.testing import emulate

SMALL = ("--sizes", "1", "--layers", "1", "--width", "16", "--context", "16", "--backend", "emulated")


def test_captures_in_every_way_and_holds_each_against_eager(bench, capsys, tmp_path):
    """Seven rows: the seed's order, its collector on and off, tsgraph's three ways, the floor, and one size alone.

    A profile says where tsgraph's time goes.
    """
    report = bench("capture", *SMALL, "--profile", str(tmp_path / "profile.txt"))

    ways = report.data["ways"]
    assert [SEED, FROZEN, PER_SLOT, PER_VARIANT, WATCHED_ONCE, BARE, ALONE] == list(ways)
    assert all(found["farthest"] == 0 and not found["failed"] and found["bytes"] > 0 for found in ways.values())
    assert [1] == report.data["sizes"]
    assert "capture/session.py" in (tmp_path / "profile.txt").read_text()
    (sheet,) = SHEETS["capture"](report.data)
    assert [(way, "bit by bit") for way in ways] == [(row[0], row[-1]) for row in sheet.rows]
    assert sheet.title in capsys.readouterr().out


@pytest.fixture
def decoder() -> Decoder:
    """A tiny one, of sizes 1 and 2."""
    return Decoder.of((1, 2), 1, 16, 16, EmulatedBackend())


@pytest.mark.parametrize(
    ("way", "per", "forwards", "models"),
    [
        (PER_SLOT, "slot", [4, 4], ["", ""]),
        (PER_VARIANT, "variant", [4, 0], ["", ""]),
        (WATCHED_ONCE, "variant", [4, 0], ["", "default/2"]),
    ],
)
def test_warm_ups_and_watches_are_as_the_spec_says(decoder, way, per, forwards, models, uncollected):
    """Per variant only the first slot, the largest, is warmed up; per slot each is. One watch may do for all."""
    runtime = decoder.runtime(way, decoder.sizes)
    runtime.capture()

    assert models == [slot.receipt.model for slot in runtime.slots.values()]
    events = [[entry.name for entry in slot.history].count("forward") for slot in runtime.slots.values()]
    assert (per, forwards) == (spec_of(way).warmup.per, events)


def test_the_seed_warms_up_each_size_ascending_then_records_it(decoder, uncollected):
    """Four forwards and one recording for each size, smallest first (§3)."""
    batches = {size: slot.batch for (_, size), slot in decoder.runtime(PER_SLOT, decoder.sizes).slots.items()}
    seen: list[tuple[int, bool]] = []

    def step(batch):
        seen.append((batch.rows, decoder.backend.recording))
        return decoder.parts.step(batch)

    captured = seed_capture.capture_all(step, batches, decoder.backend)
    assert [(size, recording) for size in (1, 2) for recording in (False, False, False, False, True)] == seen
    assert ([1, 2], captured.pool_bytes) == (list(captured.replays), captured.kept.pool.bytes)


def test_the_floor_runs_each_size_once_more_than_nothing(decoder, uncollected):
    """Largest first, with one forward before: no order that runs the step for each size does less."""
    batches = {size: slot.batch for (_, size), slot in decoder.runtime(PER_SLOT, decoder.sizes).slots.items()}
    seen: list[tuple[int, bool]] = []

    def step(batch):
        seen.append((batch.rows, decoder.backend.recording))
        return decoder.parts.step(batch)

    captured = seed_capture.capture_barely(step, batches, decoder.backend)
    assert [(2, False), (2, True), (1, True)] == seen
    assert ([2, 1], True) == (list(captured.replays), gc.isenabled())


def test_the_seed_captures_by_torch_cuda_graph_on_a_gpu(monkeypatch, uncollected):
    """As it comes, in one pool, whose segments are counted; here on the device that `emulate` stands in for."""
    with emulate():
        backend = choose_backend("cuda", [], "cuda")
        buffers = {size: {"seq_lens": backend.allocate((size,), torch.int32, 0)} for size in (4, 2)}
        batches = {size: Batch(size, size, Mode.DECODE, "default", held) for size, held in buffers.items()}
        segments = [{"segment_pool_id": (0, 1), "total_size": 7}, {"segment_pool_id": (0, 2), "total_size": 5}]
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 2))
        monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
        captured = seed_capture.capture_all(lambda batch: batch.seq_lens + 1, batches, backend)

        batches[4]["seq_lens"].fill_(5)
        captured.replays[4]()
        assert ([2, 4], [6] * 4) == (list(captured.replays), captured.outputs[4].tolist())
        assert (5, 2) == (captured.pool_bytes, len(captured.kept.graphs))
