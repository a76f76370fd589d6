"""Wrong inputs, one by one: a typed error that says what is wrong and what to do, and nothing changed."""

import pytest
import torch

from tsgraph.buffers.contract import Fixed, Rows, State
from tsgraph.errors import BadBatch, CaptureFailed, ContractViolation, IllegalTransition, SpecError, UnknownSlot
from tsgraph.keys import Geometry
from tsgraph.runtime import GraphRuntime

IDS = {"ids": Rows(torch.int64, pad=0)}


def snapshot(runtime, engine):
    """Everything that a refused call must leave alone."""
    views = runtime.slots["default", 8].batch.buffers
    buffers = {name: view.clone() for name, view in views.items()}
    return buffers, engine.pages.clone(), runtime.counters()


def same(one, other):
    """Whether two snapshots are equal."""
    return (
        all(torch.equal(view, other[0][name]) for name, view in one[0].items())
        and torch.equal(one[1], other[1])
        and one[2] == other[2]
    )


CALLS = {
    "a missing source": (lambda s: s.pop("seq_lens"), "'seq_lens' was not supplied"),
    "an unknown source": (lambda s: s.update(seqlens=s["ids"]), "there is no buffer 'seqlens'"),
    "another dtype": (lambda s: s.update(ids=s["ids"].int()), "'ids'.*torch.int64.*torch.int32"),
    "too few rows": (lambda s: s.update(seq_lens=s["seq_lens"][:1]), "'seq_lens'.*3.*1"),
    "too many rows": (lambda s: s.update(seq_lens=s["seq_lens"].repeat(2)), "'seq_lens'.*3.*6"),
    "a wide table": (lambda s: s.update(table=s["table"].repeat(1, 2)), "'table'.*4.*8"),
    "no tensor": (lambda s: s.update(ids=[1, 2, 3]), "'ids'.*list"),
}


@pytest.mark.parametrize("eagerly", [False, True], ids=["replayed", "eager"])
@pytest.mark.parametrize("wrong", CALLS)
def test_a_source_that_does_not_fit_is_named(engine, backend, wrong, eagerly):
    """Missing, unknown, of another dtype, shape or kind: BadBatch names the buffer, on both paths, changing nothing."""
    runtime = engine.runtime(backend)
    runtime.capture()
    runtime.enabled = not eagerly
    runtime(**engine.sources(*range(8)))
    before = snapshot(runtime, engine)
    spoil, text = CALLS[wrong]
    sources = engine.sources(7, 8, 9)
    spoil(sources)
    with pytest.raises(BadBatch, match=text):
        runtime(rows=3, **sources)
    assert same(before, snapshot(runtime, engine))


@pytest.mark.parametrize("rows", [-1, 2.0, True, "3"])
def test_rows_must_be_a_count(engine, backend, rows):
    """Rows that are no non-negative integer are refused."""
    runtime = engine.runtime(backend)
    with pytest.raises(BadBatch, match=r"rows must be a non-negative integer"):
        runtime(rows=rows, **engine.sources(1))


def test_an_unknown_variant_lists_those_there_are(engine, backend):
    """A variant that was never captured is refused, listing the captured ones."""
    runtime = engine.runtime(backend)
    with pytest.raises(BadBatch, match=r"variant 'greedy'.*\n.*variants are default"):
        runtime(variant="greedy", **engine.sources(1))


@pytest.mark.parametrize("key", [("default", 3), ("greedy", 8), 8, ["default", 8]])
def test_an_unknown_slot_lists_those_there_are(engine, backend, key):
    """A key without a slot is a KeyError that lists the slots."""
    slots = engine.runtime(backend).slots
    with pytest.raises(UnknownSlot, match=r"there is no slot.*\n.*default/8, default/4"):
        slots[key]
    with pytest.raises(KeyError):
        slots[key]


def test_an_unknown_trigger_lists_the_known(engine, backend):
    """Firing what no spec declares is refused with the triggers there are."""
    from tsgraph.errors import IllegalTransition

    runtime = engine.runtime(backend)
    with pytest.raises(IllegalTransition, match=r"no such trigger.*legal in allocated: warm"):
        runtime.fire(("default", 8), "polish")


def test_a_buffer_without_a_pad_is_refused(backend):
    """Rows without a pad cannot be declared: the error says why pads exist."""
    with pytest.raises(ContractViolation, match=r"Rows\.pad: expected a number, got none"):
        Rows(torch.int64)


def test_a_missing_sink_is_refused(backend):
    """A spec that names a sink which the geometry lacks is refused, naming the buffer."""
    with pytest.raises(ContractViolation, match=r"dummy_cache_slot.*cache_locations"):
        GraphRuntime("decode", lambda batch: batch, geometry=Geometry(rows=4), backend=backend)


def test_an_unknown_spec_lists_the_shipped(backend):
    """A spec that is neither shipped nor a file says which are shipped."""
    with pytest.raises(SpecError, match=r"decode"):
        GraphRuntime("dekode", lambda batch: batch, geometry=Geometry(rows=4), backend=backend)


def test_an_unknown_backend_lists_the_known():
    """A backend that does not exist is refused with those that do."""
    with pytest.raises(BadBatch, match=r"no backend 'tpu'.*\n.*auto, cuda, emulated"):
        GraphRuntime.for_step(lambda ids: ids, inputs=IDS, sizes=(1,), backend="tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a CUDA device")
@pytest.mark.parametrize("options", [{"backend": "cuda"}, {"device": "cuda"}])
def test_cuda_without_a_device_says_so(options):
    """Asking for CUDA where there is none names the way out."""
    with pytest.raises(BadBatch, match=r"needs a CUDA device.*\n.*emulated"):
        GraphRuntime.for_step(lambda ids: ids, inputs=IDS, sizes=(1,), **options)


def test_an_output_that_could_be_rows_or_whole_is_refused_at_capture(backend):
    """An unmarked output whose leading size equals the rows fails the capture and says what to declare."""
    runtime = GraphRuntime.for_step(lambda ids: ids + 1, inputs=IDS, sizes=(4,), backend=backend)
    runtime.fire(("default", 4), "warm")
    runtime.fire(("default", 4), "bind")
    with pytest.raises(CaptureFailed, match="could be rows or whole"):
        runtime.fire(("default", 4), "capture")


def test_undeclared_state_refuses_warmup_before_it_is_changed(backend):
    """A counter that the step increments and nobody declared is refused, untouched, naming operator and line (J3)."""
    count = torch.zeros(1, dtype=torch.int64, device=backend.device)

    def step(ids):
        count.add_(1)
        return ids + count

    runtime = GraphRuntime.for_step(step, inputs=IDS, sizes=(4,), outputs="request", backend=backend)
    with pytest.raises(CaptureFailed, match=r"add_.*test_wrong_inputs\.py:\d+") as caught:
        runtime.fire(("default", 4), "warm")
    assert isinstance(caught.value.__cause__, ContractViolation)
    assert 0 == count.item()


def test_a_step_that_writes_live_state_in_warmup_is_refused_and_undone(backend):
    """A pad row that writes a row which is no sink is refused, the row restored, its index named (J1, J4)."""
    pages = torch.zeros(4, dtype=torch.int64, device=backend.device)

    def step(ids):
        pages.index_fill_(0, ids + 2, 9)
        return ids

    state = {"pages": State(pages, sink=0)}
    runtime = GraphRuntime.for_step(step, inputs=IDS, sizes=(1,), outputs="request", state=state, backend=backend)
    with pytest.raises(CaptureFailed, match=r"pages.*2"):
        runtime.fire(("default", 1), "warm")
    assert [0, 0, 0, 0] == pages.tolist()


def test_an_address_that_moves_between_recording_and_publishing_is_refused(backend):
    """A parameter rebound while its slot is captured fails the slot, naming it and both addresses (R21)."""
    layer = torch.nn.Linear(1, 1, device=backend.device)
    runtime = GraphRuntime.for_step(
        lambda ids: layer(ids[:, None].float()),
        inputs=IDS,
        sizes=(1,),
        outputs="request",
        modules=[layer],
        backend=backend,
    )
    for trigger in ("warm", "bind", "capture"):
        runtime.fire(("default", 1), trigger)
    kept = layer.weight.data
    layer.weight.data = kept.clone()
    with pytest.raises(CaptureFailed, match=r"module 0 weight.*0x.*R21"):
        runtime.fire(("default", 1), "drain")


def test_a_batch_of_copies_is_refused(backend):
    """A batch that holds a copy in place of a static buffer's view fails before recording, naming the buffer (R19)."""
    runtime = GraphRuntime.for_step(lambda ids: ids, inputs=IDS, sizes=(1,), outputs="request", backend=backend)
    runtime.fire(("default", 1), "warm")
    runtime.fire(("default", 1), "bind")
    batch = runtime.slots["default", 1].batch
    batch.buffers = {"ids": batch.ids.clone()}
    with pytest.raises(CaptureFailed, match=r"check_views.*ids.*R19"):
        runtime.fire(("default", 1), "capture")


def test_a_fixed_input_is_no_source(engine, backend):
    """A fixed tensor cannot be passed with a call: it is read where it is."""
    runtime = engine.runtime(backend)
    with pytest.raises(BadBatch, match=r"there is no buffer 'weight'"):
        runtime(weight=torch.ones(3), **engine.sources(1))


def test_what_is_no_tensor_cannot_be_fixed():
    """Fixed takes a tensor."""
    with pytest.raises(ContractViolation, match=r"Fixed\.tensor: expected a torch\.Tensor, got float"):
        Fixed(1.0)


@pytest.mark.parametrize("deed", ["invalidate", "release", "reset"])
def test_a_deed_on_several_slots_is_done_to_all_or_none(engine, backend, deed):
    """Where one of the keys may not, or is nobody's, no slot changes; a key that is named twice counts once."""
    runtime = engine.runtime(backend, sizes=(1, 2))
    runtime.capture(("default", 1))
    if deed == "reset":
        runtime.invalidate("stale", ("default", 1))
    act = {"invalidate": lambda *keys: runtime.invalidate("why", *keys), "release": runtime.release}
    act = act.get(deed, runtime.reset)
    before = [slot.state for slot in runtime.slots.values()]
    with pytest.raises(IllegalTransition, match="default/2"):
        act(("default", 1), ("default", 2))
    assert before == [slot.state for slot in runtime.slots.values()]
    act(("default", 1), ("default", 1))
    assert before != [slot.state for slot in runtime.slots.values()]
