"""The front doors: what a step gives, on whichever path it runs."""

import json

import pytest
import torch

from tsgraph.buffers.contract import Fixed, Rows, State
from tsgraph.capture.mode import is_capturing
from tsgraph.errors import BadBatch
from tsgraph.keys import Geometry, Mode, Reason
from tsgraph.runtime import GraphRuntime
from tsgraph.spec.draw import draw_spec
from tsgraph.spec.load import load_spec


def host(tree):
    """Outputs as lists, whatever the device."""
    return {name: leaf.tolist() for name, leaf in tree.items()}


@pytest.mark.parametrize("rows", range(1, 9))
def test_a_replay_gives_what_eager_gives(engine, backend, rows):
    """For every live count, outputs and written state equal those of an eager run of the same rows."""
    runtime = engine.runtime(backend)
    runtime.capture()
    sources = engine.sources(*range(5, 5 + rows))
    before = engine.pages.clone()
    expected, expected_pages = host(runtime.eager(**sources)), engine.pages.clone()
    engine.pages.copy_(before)
    assert expected == host(runtime(**sources))
    assert torch.equal(expected_pages[1:], engine.pages[1:])


def test_python_does_not_run_at_replay(engine, backend):
    """A replay never calls the step: what it computes was recorded."""
    runtime = engine.runtime(backend)
    runtime.capture()
    calls = engine.calls
    for rows in (1, 3, 8):
        runtime(**engine.sources(*range(rows)))
    assert calls == engine.calls


def test_a_replay_is_at_one_padded_shape_bitwise(engine, backend):
    """An eager run through the same padded buffers gives the same bits as the replay."""
    runtime = engine.runtime(backend)
    runtime.capture()
    sources = engine.sources(3, 1, 4)
    before = engine.pages.clone()
    expected = {name: leaf.clone() for name, leaf in runtime.eager(padded_to=4, **sources).items()}
    engine.pages.copy_(before)
    for name, leaf in runtime(**sources).items():
        assert torch.equal(expected[name], leaf)


def test_step_tells_the_decision_and_when_it_is_ready(engine, backend):
    """`step` gives outputs, the decision that explain gives, and a mark that becomes done."""
    runtime = engine.runtime(backend)
    runtime.capture()
    done = runtime.step(**engine.sources(1, 2, 3))
    done.ready.wait()
    assert (runtime.explain(3), True, 1) == (done.decision, done.ready.done(), done.decision.waste)


def test_before_capture_every_step_runs_eagerly(engine, backend):
    """An uncaptured runtime serves correctly, and says why it is eager."""
    runtime = engine.runtime(backend)
    done = runtime.step(**engine.sources(7))
    assert (Reason.NOT_CAPTURED, [8]) == (done.decision.reason, done.outputs["next"].tolist())


def test_steps_that_no_slot_fits_run_eagerly(engine, backend):
    """Too many rows and other modes run eagerly, each with its reason, and are counted by it."""
    runtime = engine.runtime(backend)
    runtime.capture()
    runtime(**engine.sources(*range(9)))
    runtime(mode=Mode.EXTEND, **engine.sources(1, 2))
    runtime(**engine.sources(1, 2))
    assert {"replays": 1, "pad_rows": 0, "eager": {"no_size_fits": 1, "not_decode": 1}} == runtime.counters()


def test_switching_a_runtime_off_makes_it_eager_and_back(engine, backend):
    """`enabled` takes effect at the next step, both ways."""
    runtime = engine.runtime(backend)
    runtime.capture()
    runtime.enabled = False
    off = runtime.step(**engine.sources(1)).decision
    runtime.enabled = True
    assert (Reason.DISABLED, Reason.EXACT) == (off.reason, runtime.step(**engine.sources(1)).decision.reason)


def test_an_idle_step_is_all_pads(engine, backend):
    """A step of no rows is served by the smallest slot and changes no live state."""
    runtime = engine.runtime(backend)
    runtime.capture()
    before = engine.pages[1:].clone()
    outputs = runtime(rows=0)
    assert (0, True) == (len(outputs["next"]), torch.equal(before, engine.pages[1:]))


def test_fixed_inputs_are_read_where_they_are(engine, backend):
    """A fixed tensor updated in place is what the next replay reads."""
    runtime = engine.runtime(backend)
    runtime.capture()
    first = runtime(**engine.sources(1))["score"].clone()
    engine.weight.mul_(2)
    engine.pages.copy_(torch.arange(engine.pages.numel()).reshape_as(engine.pages))
    assert torch.equal(first * 2, runtime(**engine.sources(1))["score"])


def test_capture_leaves_state_and_buffers_as_they_were(engine, backend):
    """Capture, early or late, changes no live state, no random state and no buffer that the engine wrote."""
    runtime = engine.runtime(backend)
    runtime.capture(("default", 8))
    runtime(**engine.sources(*range(8)))
    pages, rng = engine.pages.clone(), torch.get_rng_state()
    buffers = {name: view.clone() for name, view in runtime.slots["default", 8].batch.buffers.items()}
    runtime.capture()
    assert torch.equal(pages[1:], engine.pages[1:])
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(held, runtime.slots["default", 8].batch.buffers[name]) for name, held in buffers.items())


def test_every_warmup_finds_its_rows_filled(backend):
    """Before each warm-up every row is what the spec says, whatever the engine or an earlier warm-up wrote (R7)."""
    seen = []

    def step(batch):
        if not is_capturing():
            seen.append((batch.seq_lens.tolist(), batch.input_ids.tolist()))
        batch.seq_lens.fill_(0)
        return {"tokens": batch.input_ids, "accept_lengths": batch.input_ids[:2]}

    geometry = Geometry(rows=2, tokens_per_request=3, sinks={"dummy_cache_slot": 0, "sentinel": 5})
    runtime = GraphRuntime("decode", step, geometry=geometry, sizes=(2,), backend=backend)
    runtime.slots["default", 2].batch.input_ids.fill_(77)
    runtime.capture()
    assert [([3, 3], [1] * 6)] * load_spec("decode").warmup.forwards == seen


def test_capture_leaves_the_random_state_as_it_was(backend):
    """A step that draws random numbers draws the same ones after a capture as without it."""
    runtime = GraphRuntime.for_step(
        lambda ids: ids + torch.rand(ids.shape, device=ids.device),
        inputs={"ids": Rows(torch.int64, pad=0)},
        sizes=(2,),
        outputs="request",
        backend=backend,
    )
    torch.manual_seed(7)
    expected = torch.rand(4, device=backend.device).tolist()
    torch.manual_seed(7)
    runtime.capture()
    assert expected == torch.rand(4, device=backend.device).tolist()


def test_restored_state_is_as_before_warmup(backend):
    """A counter declared `restore=True` is incremented by replays, and by no warm-up."""
    count = torch.zeros(1, dtype=torch.int64, device=backend.device)

    def step(ids):
        count.add_(1)
        return ids + count

    runtime = GraphRuntime.for_step(
        step,
        inputs={"ids": Rows(torch.int64, pad=0)},
        sizes=(2,),
        outputs="request",
        state={"count": State(count, restore=True)},
        backend=backend,
    )
    runtime.capture()
    assert 0 == count.item()
    runtime(ids=torch.tensor([1]))
    assert 1 == count.item()


def test_engine_written_rows_stay_and_pads_are_filled(backend):
    """A buffer declared source="engine" keeps what the engine wrote in place; only its tail is padded."""
    runtime = GraphRuntime.for_step(
        lambda ids: ids * 10,
        inputs={"ids": Rows(torch.int64, pad=-7, source="engine")},
        sizes=(4,),
        outputs="request",
        backend=backend,
    )
    runtime.capture()
    buffer = runtime.slots["default", 4].batch.ids
    buffer.copy_(torch.tensor([1, 2, 3, 4]))
    assert [10, 20] == runtime(rows=2).tolist()
    assert [1, 2, -7, -7] == buffer.tolist()


def test_sizes_asked_for_are_all_captured(backend):
    """The short door captures every size it is given, also beyond the default cap of the spec."""
    runtime = GraphRuntime.for_step(
        lambda ids: ids, inputs={"ids": Rows(torch.int64, pad=0)}, sizes=(1, 256), outputs="request", backend=backend
    )
    assert (1, 256) == runtime.sizes


def test_tokens_per_request_widen_per_token_buffers(backend):
    """With two tokens a request, per-token buffers and outputs have twice the rows."""
    runtime = GraphRuntime.for_step(
        lambda ids, lens: {"tokens": ids + 1, "lens": lens},
        inputs={"ids": Rows(torch.int64, pad=0, per="token"), "lens": Rows(torch.int32, pad=1)},
        sizes=(4,),
        outputs={"tokens": "token", "lens": "request"},
        tokens_per_request=2,
        backend=backend,
    )
    runtime.capture()
    outputs = runtime(ids=torch.arange(6), lens=torch.ones(3, dtype=torch.int32))
    assert {"tokens": [1, 2, 3, 4, 5, 6], "lens": [1, 1, 1]} == host(outputs)


def test_the_full_door_gives_a_batch(backend):
    """Behind the full door the step gets one batch: buffers by attribute, rows of the slot, mode and variant."""
    seen = []

    def step(batch):
        seen.append((batch.rows, batch.tokens, batch.mode, batch.variant))
        return {"tokens": batch.input_ids + 1, "accept_lengths": batch.seq_lens}

    geometry = Geometry(rows=4, sinks={"dummy_cache_slot": 0, "sentinel": 5})
    runtime = GraphRuntime("decode", step, geometry=geometry, sizes=(2, 4), backend=backend)
    runtime.capture()
    ids, lens = torch.tensor([5, 6, 7], dtype=torch.int32), torch.tensor([1, 2, 3], dtype=torch.int32)
    outputs = runtime(
        rows=3,
        input_ids=ids,
        positions=torch.arange(3),
        cache_locations=torch.arange(3, dtype=torch.int32),
        seq_lens=lens,
        request_pool=torch.arange(1, 4),
    )
    assert {"tokens": [6, 7, 8], "accept_lengths": [1, 2, 3]} == host(outputs)
    assert {(4, 4, Mode.DECODE, "default"), (2, 2, Mode.DECODE, "default")} == set(seen)
    assert [1, 2, 3, 5] == runtime.slots["default", 4].batch.state_write_pool.tolist()


def test_capture_mode_is_on_exactly_while_recording(backend):
    """Warm-ups see capture mode off, the recording sees it on, and it is off afterwards (R20)."""
    seen = []

    def step(ids):
        seen.append(is_capturing())
        return ids + 1

    runtime = GraphRuntime.for_step(
        step, inputs={"ids": Rows(torch.int64, pad=0)}, sizes=(2,), outputs="request", backend=backend
    )
    runtime.capture()
    assert ([False] * load_spec("decode").warmup.forwards + [True], False) == (seen, is_capturing())


def test_the_snapshot_is_plain_json(engine, backend):
    """A snapshot survives JSON and tells each slot's state, replays and pool bytes."""
    runtime = engine.runtime(backend)
    runtime.capture()
    runtime(**engine.sources(1, 2, 3))
    snapshot = json.loads(json.dumps(runtime.snapshot()))
    by_size = {slot["size"]: slot for slot in snapshot["slots"]}
    assert ("replayable", 1, 1) == (by_size[4]["state"], by_size[4]["replays"], by_size[4]["pad_rows"])
    assert backend.name == snapshot["backend"]
    assert max(slot["bytes"] for slot in snapshot["slots"]) > 0


def test_the_table_shows_every_slot(engine, backend):
    """The table has a line for each slot, with its state."""
    runtime = engine.runtime(backend)
    runtime.capture()
    lines = [line.split() for line in runtime.table().splitlines()]
    assert {f"default/{size}" for size in (1, 2, 4, 8)} == {line[0] for line in lines if "replayable" in line}


def test_observers_hear_of_captures_and_changed_reasons_but_not_of_replays(engine, backend):
    """Events tell the life of slots and why steps turn eager; a replay makes none."""
    heard = []
    runtime = engine.runtime(backend, sizes=(2,), observers=[lambda event: heard.append(event.name)])
    runtime.capture()
    lived = ["slot.warmed", "slot.metadata_bound", "slot.captured", "slot.replayable"]
    assert ["capture.started", *lived, "capture.finished"] == heard
    heard.clear()
    runtime(**engine.sources(1))
    assert [] == heard
    for _ in range(3):
        runtime(**engine.sources(1, 2, 3))
    assert ["dispatch.reason_changed"] == heard


def test_a_fixed_or_rows_input_is_demanded(backend):
    """An input that is neither Rows nor Fixed is refused by name."""
    with pytest.raises(BadBatch, match="inputs ids are neither Rows nor Fixed"):
        GraphRuntime.for_step(lambda ids: ids, inputs={"ids": torch.int64}, sizes=(1,), backend=backend)
    Fixed(torch.zeros(1))


def test_a_slot_draws_its_lifecycle_with_its_state_marked(engine, backend):
    """The diagram is the spec's, and the marked state is where the slot is, wherever it goes."""
    runtime = engine.runtime(backend, sizes=(1,))
    slot = runtime.slots["default", 1]
    assert draw_spec(runtime.spec, "allocated") == slot.diagram()
    runtime.capture()
    assert "    class replayable current" in slot.diagram().splitlines()
    runtime.invalidate("the weights moved")
    assert "    class stale current" in slot.diagram().splitlines()


def test_receipts_are_of_what_is_recorded(engine, backend):
    """One for each slot that holds a recording; none after a release."""
    runtime = engine.runtime(backend)
    assert {} == runtime.receipts()
    runtime.capture()
    assert {slot.key: slot.receipt for slot in runtime.slots.values()} == runtime.receipts()
    runtime.release()
    assert {} == runtime.receipts()


def test_a_probe_of_a_slot_changes_nothing(engine, backend):
    """A step that bakes nothing in is recorded alike twice, and the slot serves on as if nobody had asked."""
    runtime = engine.runtime(backend, sizes=(2,))
    runtime.capture()
    sources, before = engine.sources(3, 1), engine.pages.clone()
    expected = host(runtime(**sources))
    engine.pages.copy_(before)
    probe = runtime.probe_constants(("default", 2))
    assert (True, "default/2") == (probe.clean, str(probe.first.slot))
    assert torch.equal(before, engine.pages)
    assert expected == host(runtime(**sources))
    slot = runtime.slots["default", 2]
    assert ("replayable", 2) == (slot.state, slot.counts.replays)
