"""With warm-ups per variant, a slot without any of its own proves that it has no lazy work left, or is refused."""

from __future__ import annotations

import attrs
import pytest
import torch

from tsgraph import GraphRuntime, Rows
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.capture.laziness import SMALL_CHANGE, Laziness, Model, lazy_work, new_memory, new_workspace
from tsgraph.capture.pipeline import Engine, Pipeline
from tsgraph.dispatch.peers import Peers
from tsgraph.errors import CaptureFailed, ContractViolation
from tsgraph.protocols.backend import Reached
from tsgraph.protocols.null import NullAttention
from tsgraph.receipts.receipt import CaptureReceipt, Escape, External, Once, Opaque, Output
from tsgraph.spec.load import parse_spec
from tsgraph.testing.fakes import FakeGrammar

ELSEWHERE = torch.ones(1)


def _runtime(step, *, per: str = "variant", receipts: str = "each", **words) -> GraphRuntime:
    """A runtime of sizes 2 and 4 on the emulated device, whose failures raise."""
    told = {"extends": "decode", "name": "decode", "version": 1, "warmup": {"per": per}}
    policy = {"on_capture_failure": "raise", "undeclared_reads": "allow", "receipts": receipts}
    inputs, spec = {"x": Rows(torch.float32, pad=0)}, parse_spec({**told, "policy": policy})
    words = {"device": "cpu", "sizes": (2, 4), **words}
    return GraphRuntime.for_step(step, inputs=inputs, outputs="request", spec=spec, **words)


def _models(runtime) -> dict[int, str]:
    """By size, from whose receipt a slot's was taken over."""
    return {key.size: slot.receipt.model for key, slot in runtime.slots.items()}


def test_a_step_without_lazy_work_is_captured_at_all_sizes():
    """Only the largest slot is warmed up, the other is held against it, and both replay right."""
    runtime = _runtime(lambda x: x * 2 + 1)
    runtime.capture()

    assert {4: True, 2: False} == {key.size: slot.warmed for key, slot in runtime.slots.items()}
    for rows in (2, 3):
        x = torch.arange(float(rows))
        assert (x * 2 + 1).tolist() == runtime(x=x).tolist()


class Keeps:
    """Makes a tensor at the first use of each size, and keeps it."""

    def __init__(self):
        self.made: dict[int, torch.Tensor] = {}

    def __call__(self, x):
        if len(x) not in self.made:
            self.made[len(x)] = torch.ones_like(x)
        return x + self.made[len(x)]


class Touches:
    """Reads a tensor that only smaller sizes read."""

    def __call__(self, x):
        return x + ELSEWHERE if len(x) < 4 else x + 1


@pytest.mark.parametrize(
    ("step", "told"), [(Keeps, "it keeps memory of aten.ones_like"), (Touches, "it touches unknown at ")]
)
def test_lazy_work_is_refused_by_name_and_leaves_the_warmed_slot(step, told, emulated_constants):
    """The slot that found it in its recording fails; with warm-ups per slot there is none, but what is undeclared."""
    runtime = _runtime(step(), backend=emulated_constants)
    with pytest.raises(CaptureFailed, match=r"that of default/4 did") as caught:
        runtime.capture()

    assert told in str(caught.value)
    assert "test_laziness.py:" in str(caught.value)
    assert ["replayable", "failed"] == [slot.state for slot in runtime.slots.values()]
    _runtime(step(), per="slot", backend=emulated_constants).capture()


@pytest.fixture
def emulated_constants():
    """A backend that takes the module's own tensor for the device's."""
    backend = EmulatedBackend()
    backend.adopt([ELSEWHERE])
    return backend


# -- recordings that nobody watches -----------------------------------------------------------------------------------


def test_a_step_without_lazy_work_is_watched_once():
    """The later slots have the first one's receipt, and replay right."""
    runtime = _runtime(lambda x: x * 2 + 1, receipts="warmed", sizes=(1, 2, 4))
    runtime.capture()

    assert {4: "", 2: "default/4", 1: "default/4"} == _models(runtime)
    for rows in (1, 2, 3):
        x = torch.arange(float(rows))
        assert (x * 2 + 1).tolist() == runtime(x=x).tolist()


@pytest.mark.parametrize("receipts", ["each", "warmed"])
def test_memory_of_a_smaller_size_is_refused(receipts, emulated_constants):
    """By operator and line: what nobody watched is recorded again, watched, since its graph tells of that memory."""
    runtime = _runtime(Touches(), receipts=receipts, backend=emulated_constants)
    with pytest.raises(CaptureFailed, match=r"that of default/4 did.*it touches unknown at .*test_laziness.py:"):
        runtime.capture()

    assert ["replayable", "failed"] == [slot.state for slot in runtime.slots.values()]


def test_where_a_step_cannot_be_called_again_the_graph_alone_tells(emulated_constants, monkeypatch):
    """Other ranks and queues of entries count forwards: the memory is told by address, and by kernel."""
    monkeypatch.setattr(Pipeline, "_repeatable", False)
    runtime = _runtime(Touches(), receipts="warmed", backend=emulated_constants)
    with pytest.raises(CaptureFailed, match=r"that of default/4 did") as caught:
        runtime.capture()

    handed = f"it is handed memory of 4 bytes at {ELSEWHERE.data_ptr():#x} that no operator of default/4 touched"
    assert f"{handed}, first by aten.add.Tensor" in str(caught.value)
    assert 'receipts = "each"' in caught.value.__cause__.hint
    assert ["replayable", "failed"] == [slot.state for slot in runtime.slots.values()]


@pytest.mark.parametrize(
    ("parts", "repeatable"), [({}, True), ({"grammar": FakeGrammar()}, False), ({"peers": Peers(count=2)}, False)]
)
def test_a_step_can_be_called_again_where_nobody_counts(parts, repeatable):
    """Neither a queue, of which each forward takes an entry, nor another rank."""
    absent = dict.fromkeys(("step", "backend", "arena", "guard", "marks", "audit", "addresses", "recorder"))
    assert repeatable == Pipeline(engine=Engine(**absent, **parts), slot=None)._repeatable


def test_what_only_looks_like_an_address_is_settled_by_a_watch(monkeypatch):
    """A recording whose graph seems to be handed other memory, and which touches none, is captured, and is watched."""
    told = EmulatedGraph.reach.fget
    graphs = []

    def reach(graph):
        graphs.append(graph)
        return {**told(graph), **({64: Reached("cat", 512)} if len(graphs) > 1 else {})}

    monkeypatch.setattr(EmulatedGraph, "reach", property(reach))
    runtime = _runtime(lambda x: x + 1, receipts="warmed", sizes=(1, 2, 4))
    runtime.capture()

    assert {4: "", 2: "", 1: ""} == _models(runtime)
    assert [4.0, 4.0] == runtime(x=torch.full((2,), 3.0)).tolist()
    used = [slot.graph for slot in runtime.slots.values()]
    assert {"released"} == {graph._state for graph in graphs if graph not in used}


class Tables(NullAttention):
    """Metadata with memory for each size, all under one name."""

    def __init__(self, backend):
        self.backend, self.made, self.table = backend, {}, None

    def bind(self, batch):
        """Another table for each size, the same one at each call."""
        if batch.rows not in self.made:
            self.made[batch.rows] = self.backend.allocate((batch.rows,), torch.float32, batch.rows)
        self.table = self.made[batch.rows]


@pytest.mark.parametrize("receipts", ["each", "warmed"])
def test_metadata_of_each_size_are_watched_at_each(receipts, emulated_constants, monkeypatch):
    """A receipt that was taken over would tell of another size's memory: where nobody can watch, they are refused."""
    tables = Tables(emulated_constants)
    words = {"receipts": receipts, "backend": emulated_constants, "attention": tables}
    runtime = _runtime(lambda x: x + tables.table, **words)
    runtime.capture()
    assert {4: "", 2: ""} == _models(runtime)
    assert [3.0, 3.0] == runtime(x=torch.ones(2)).tolist()

    monkeypatch.setattr(Pipeline, "_repeatable", False)
    if receipts == "warmed":
        with pytest.raises(CaptureFailed, match=r"handed collaborator attention\.\S+, memory of 8 bytes at 0x"):
            _runtime(lambda x: x + tables.table, **words).capture()


def test_memory_that_the_first_was_handed_too_is_no_finding(emulated_constants):
    """Undeclared or not: every size reads it."""
    runtime = _runtime(lambda x: x + ELSEWHERE, receipts="warmed", backend=emulated_constants)
    runtime.capture()

    assert {4: "", 2: "default/4"} == _models(runtime)


def test_a_device_that_does_not_tell_is_watched(monkeypatch, emulated_constants):
    """Every recording is, so lazy work is found as ever."""
    monkeypatch.setattr(EmulatedGraph, "reach", None)
    runtime = _runtime(lambda x: x + 1, receipts="warmed", backend=emulated_constants)
    runtime.capture()
    assert {4: "", 2: ""} == _models(runtime)

    with pytest.raises(CaptureFailed, match="it touches unknown at "):
        _runtime(Touches(), receipts="warmed", backend=emulated_constants).capture()


def test_a_recording_that_alone_is_not_told_is_refused(monkeypatch):
    """The first one was, so nobody watched this one, and it cannot be made again."""
    monkeypatch.setattr(Pipeline, "_repeatable", False)
    told = EmulatedGraph.reach.fget
    graphs = []

    def reach(graph):
        graphs.append(graph)
        return told(graph) if len(graphs) == 1 else None

    monkeypatch.setattr(EmulatedGraph, "reach", property(reach))
    with pytest.raises(CaptureFailed, match="the device does not tell what memory it is handed"):
        _runtime(lambda x: x + 1, receipts="warmed").capture()
    assert 2 == len(graphs)


def test_no_receipt_of_an_older_run_is_taken_over():
    """What it tells of may have been replaced: a slot that is captured alone is watched."""
    runtime = _runtime(lambda x: x + 1, receipts="warmed")
    runtime.capture()
    runtime.invalidate("it is a test", ("default", 2))
    runtime.capture()

    assert {4: "", 2: ""} == _models(runtime)
    assert runtime._parts.engine.laziness._of_this_run is None


def test_nobody_asks_what_watched_graphs_are_handed(monkeypatch):
    """To ask costs time, and the watch tells."""
    monkeypatch.setattr(EmulatedGraph, "reach", property(lambda _: pytest.fail("asked")))
    _runtime(lambda x: x + 1).capture()


@attrs.frozen
class Stub:
    """A graph by what it is handed."""

    reach: object


def test_memory_of_its_own_is_not_new():
    """What was made outside of the pool while a graph was recorded, as for random numbers."""
    first = CaptureReceipt(slot="default/4", spec="decode", backend="cuda", device="cuda:0")
    reach = {64: Reached("add", 8), 128: Reached("rand", 8, own=True), 256: Reached("memcpy", 16)}

    told = list(new_memory(Model(first, frozenset({64})), Stub(reach), None))
    assert ["it is handed memory of 16 bytes at 0x100 that no operator of default/4 touched, first by memcpy"] == told
    assert [] == list(new_memory(Model(first, frozenset(reach)), Stub({64: Reached("mul", 8)}), None))


# -- findings ---------------------------------------------------------------------------------------------------------

EXTERNAL = External(
    kind="parameter",
    name="weight",
    declared=True,
    writable=False,
    place="device",
    shape=(2,),
    stride=(1,),
    dtype="float32",
    address=64,
    bytes=8,
    read=True,
    written=False,
    operators=("aten.add",),
    line="step.py:3",
)
ESCAPE = Escape(operator="aten.zeros", line="step.py:5", shape=(2,), dtype="float32", bytes=8)
LATER = {
    "externals": (EXTERNAL,),
    "once": (Once(operator="aten.arange", line="step.py:4", times=1),),
    "opaque": (Opaque(kind="Triton kernel", name="add", line="step.py:6", times=1),),
    "escapes": (ESCAPE,),
}


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("externals", "it touches parameter weight"),
        ("once", "it does once aten.arange at step.py:4"),
        ("opaque", "it runs Triton kernel add at step.py:6"),
        ("escapes", "it keeps memory of aten.zeros at step.py:5"),
    ],
)
def test_each_part_of_a_receipt_may_tell_of_lazy_work(part, told):
    """What the first one has too is none, whatever its shape; what it has not is told once, in words."""
    first = CaptureReceipt(slot="default/4", spec="decode", backend="cuda", device="cuda:0")
    later = attrs.evolve(first, slot="default/2", **{part: LATER[part] * 2})
    other_shape = [attrs.evolve(each, shape=(4,)) if hasattr(each, "shape") else each for each in LATER[part]]

    assert [told] == list(lazy_work(first, later))
    assert [] == list(lazy_work(attrs.evolve(first, **{part: tuple(other_shape)}), later))
    assert ([told] if part in ("once", "escapes") else []) == list(lazy_work(None, later))


def test_less_than_the_first_is_no_lazy_work():
    """A smaller size may do without what a larger one needs."""
    later = CaptureReceipt(slot="default/2", spec="decode", backend="cuda", device="cuda:0")

    assert [] == list(lazy_work(attrs.evolve(later, **LATER), later))


def test_memory_that_is_no_output_is_a_workspace():
    """Outputs, what the receipt knows of, and small change are expected; the rest is told in bytes."""
    large = torch.zeros(SMALL_CHANGE)
    receipt = CaptureReceipt(slot="default/2", spec="decode", backend="cuda", device="cuda:0", escapes=(ESCAPE,))
    outside = attrs.evolve(EXTERNAL, address=large.untyped_storage().data_ptr())
    grown, known = large.nbytes + SMALL_CHANGE, {"tokens": large, "again": large[:2]}

    assert [] == list(new_workspace(receipt, known, grown + ESCAPE.bytes))
    told = "it leaves 1048577 bytes allocated that are no output"
    assert [told] == [each.partition(":")[0] for each in new_workspace(receipt, known, grown + ESCAPE.bytes + 1)]
    assert [] != list(new_workspace(attrs.evolve(receipt, externals=(outside,)), known, grown + ESCAPE.bytes))


def test_a_variant_is_held_against_its_own_first_slot():
    """What one variant's first recording did says nothing about another's."""
    runtime = _runtime(lambda x: x + 1)
    runtime.capture()
    warmed, later = runtime.slots.values()
    later.receipt = attrs.evolve(later.receipt, externals=(*later.receipt.externals, EXTERNAL))
    laziness = Laziness()
    laziness.check(warmed, None, 0)

    with pytest.raises(ContractViolation, match="it touches parameter weight"):
        laziness.check(later, None, 0)
    later.key = later.key._replace(variant="greedy")
    laziness.check(later, None, 0)
    assert isinstance(warmed.receipt.outputs[0], Output)
