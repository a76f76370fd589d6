"""Receipts of real recordings: owners, outputs, host functions; and the policy on what nobody declared."""

import re
from types import SimpleNamespace

import pytest
import torch

from tsgraph import Fixed, Rows, State, is_capturing
from tsgraph.errors import CaptureFailed, ContractViolation
from tsgraph.receipts.receipt import CaptureReceipt
from tsgraph.testing.fakes import FakeAttention, FakeGrammar


class Attention(FakeAttention):
    """Metadata that may be given attributes."""


def paths(receipt):
    """What was touched: the owner, and how."""
    return {external.path: external.access for external in receipt.externals}


def test_every_kind_of_declared_memory_is_named(scene, on_device, backend):
    """Buffers, states, fixed tensors, weights, collaborators' tensors and what they say that steps write."""
    kv, scale, notes = on_device(0, 0), on_device(2), backend.pin((2,), torch.float32)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(on_device(3, 4))
    attention = Attention()
    attention.kv_indices = on_device(1, 0, dtype=torch.int64)
    attention.written = {"notes": notes}

    def step(x, scale):
        made = x * module.weight * scale
        kv.index_copy_(0, attention.kv_indices, made)
        notes.copy_(made, non_blocking=True)
        return made

    shown = scene(
        step,
        inputs={"x": Rows(torch.float32, pad=0), "scale": Fixed(scale)},
        state={"kv": State(kv, restore=True)},
        modules=[module],
        attention=attention,
    )
    assert {
        "buffer x": "read",
        "parameter weight": "read",
        "fixed scale": "read",
        "state kv": "read written",
        "collaborator attention.kv_indices": "read",
        "memory attention notes": "written",
    } == paths(shown.receipt())
    assert ([], []) == (list(shown.receipt().undeclared()), shown.warnings)
    assert ["host"] == [each.place for each in shown.receipt().externals if each.name == "attention notes"]


def test_the_mask_that_a_batch_was_given_is_declared(scene, on_device):
    """A grammar's mask is its own to refill, whether or not anybody finds it in an attribute."""
    mask = on_device(1, 1)

    class Masked(FakeGrammar):
        def bind(self, batch):
            return mask[: batch.rows]

    grammar = Masked()

    def step(x):
        if not is_capturing():  # a recording runs no host function: its entry stays queued
            grammar.consume()
        return x + mask

    shown = scene(step, grammar=grammar)
    assert {"buffer x": "read", "mask grammar": "read"} == paths(shown.receipt())


def test_outputs_are_told_with_whose_memory_they_are(scene, on_device):
    """Its own, a buffer's, another output's; what is None is no output."""
    state = on_device(0, 0)

    def step(x):
        made = x + 1
        return {"made": made, "again": made.view(2, 1), "x": x, "state": state, "none": None}

    shown = scene(step, state={"state": State(state, sink=0)})
    assert [
        ("['made']", (2,), ""),
        ("['again']", (2, 1), "output['made']"),
        ("['x']", (2,), "buffer x"),
        ("['state']", (2,), "state state"),
    ] == [(each.name, each.shape, each.alias) for each in shown.receipt().outputs]


def test_the_graph_itself_is_told(scene, backend):
    """Nodes by kind, kernels by name, host functions by line, bytes, seconds, and random numbers."""

    def nothing():
        """What the device calls."""

    def step(x):
        made = torch.rand_like(x) + x + x
        if backend.recording:
            backend.host_function(nothing)
        return made

    shown = scene(step)
    receipt = shown.receipt()
    assert (2, 1) == (receipt.nodes["kernel"] - staging_nodes(receipt) - 1, receipt.nodes["host"])
    assert [("aten.add.Tensor", 2)] == [(each.name, each.times) for each in receipt.kernels if "add" in each.name]
    line = f"{__file__}:{step.__code__.co_firstlineno + 3}"
    assert [(nothing.__qualname__, line)] == [(each.name, each.line) for each in receipt.functions]
    assert ["default"] == [each.generator for each in receipt.draws]
    slot = shown.runtime.slots["default", 2]
    assert (slot.bytes, True) == (receipt.pool_bytes, 0 < receipt.seconds < slot.seconds)
    assert ("default/2", "quick", "emulated", "cpu") == (receipt.slot, receipt.spec, receipt.backend, receipt.device)


def staging_nodes(receipt):
    """Nodes of the runtime's own."""
    return sum(each.times for each in receipt.kernels if each.name.startswith("tsgraph."))


def test_a_host_copy_of_an_output_is_the_recordings_own(scene):
    """What `to("cpu", non_blocking=True)` makes is nobody's memory from outside."""
    shown = scene(lambda x: {"x": x + 1, "host": (x + 2).to("cpu", non_blocking=True)})
    assert {"buffer x": "read"} == paths(shown.receipt())


def test_a_receipt_of_a_recording_is_exact_in_json(scene, on_device):
    """Both ways, whatever is in it; the kept memory stays behind."""
    table = on_device(1, 2)
    receipt = scene(lambda x: (x + table).masked_fill(x > 1, float("-inf"))).receipt()
    assert receipt == CaptureReceipt.from_json(receipt.to_json())
    assert (True, ()) == (len(receipt.kept) > 0, CaptureReceipt.from_json(receipt.to_json()).kept)
    assert "-inf" in [str(each) for each in receipt.baked]


def test_a_slot_has_its_receipt_while_it_has_its_graph(scene):
    """From captured on; forgotten with the graph, and new with the next; its numbers are in the snapshot."""
    shown = scene(lambda x: x + 1)
    slot, first = shown.runtime.slots["default", 2], shown.receipt()
    assert first.summary() == shown.runtime.snapshot()["slots"][0]["receipt"]
    shown.runtime.release()
    assert (None, None) == (slot.receipt, shown.runtime.snapshot()["slots"][0]["receipt"])
    shown.runtime.wake()
    assert (True, True) == (slot.receipt is not first, slot.receipt.outputs == shown.receipt().outputs)


# -- the policy -------------------------------------------------------------------------------------------------------


def test_an_undeclared_read_is_told_once_with_what_where_and_how_to_declare_it(scene, on_device):
    """A warning for each tensor, not for each slot; the other facts are in every receipt."""
    table = on_device(1, 2, 3, 4)

    def step(x):
        return x + table[: len(x)]

    shown = scene(step, sizes=(2, 4))
    (event,) = [event for event in shown.events if event.severity == "warning"]
    assert {
        "slot": "default/4",
        "tensor": "step closure table",
        "form": "float32 (4)",
        "operator": "aten.add.Tensor",
        "line": f"{__file__}:{step.__code__.co_firstlineno + 1}",
    } == {key: event.fields[key] for key in ("slot", "tensor", "form", "operator", "line")}
    assert "Fixed(tensor)" in event.fields["fix"]
    assert ["step closure table"] * 2 == [next(shown.receipt(size).undeclared()).path for size in (2, 4)]


def test_strict_runtimes_refuse_undeclared_reads(scene, on_device):
    """All of them in one error, with operator and line; the slot has failed, and nothing is left of its recording."""
    one, two = on_device(1, 2), on_device(3, 4)

    def step(x):
        made = x + one
        return made * two

    shown = scene(step, policy={"undeclared_reads": "refuse", "on_capture_failure": "raise"}, capture=False)
    with pytest.raises(CaptureFailed) as caught:
        shown.runtime.capture()
    cause, line = caught.value.__cause__, step.__code__.co_firstlineno
    assert (ContractViolation, "one, two") == (type(cause), cause.member)
    assert f"aten.add.Tensor at {__file__}:{line + 1} reading step closure one of float32 (2)" in str(cause)
    assert f"aten.mul.Tensor at {__file__}:{line + 2} reading step closure two of float32 (2)" in str(cause)
    assert "Fixed(tensor)" in cause.hint
    slot = shown.runtime.slots["default", 2]
    assert ("failed", None, None, 0) == (slot.state, slot.receipt, slot.graph, slot.bytes)


def test_a_lenient_runtime_says_nothing(scene, on_device):
    """The receipt still has it."""
    table = on_device(1, 2)
    shown = scene(lambda x: x + table, policy={"undeclared_reads": "allow"})
    assert ([], 1) == (shown.warnings, len(list(shown.receipt().undeclared())))


@pytest.mark.parametrize("writes", ["refuse", "allow"])
def test_undeclared_writes_of_a_recording_follow_their_own_policy(scene, on_device, writes):
    """A path that only captures take is not seen by a warm-up: the recording refuses it, or lists it."""
    count = on_device(0, 0)

    def step(x):
        if is_capturing():
            count.add_(x)
        return x + 1

    shown = scene(step, policy={"undeclared_writes": writes, "undeclared_reads": "allow"})
    slot = shown.runtime.slots["default", 2]
    if writes == "allow":
        assert [("step closure count", "read written", False)] == [
            (each.path, each.access, each.writable) for each in slot.receipt.undeclared()
        ]
    else:
        assert "failed" == slot.state
        assert re.search(r"aten\.add_\.Tensor at .* writing step closure count of float32 \(2\)", slot.cause.detail)
        assert "State(tensor" in slot.cause.detail


def test_a_step_that_raises_leaves_no_watch_behind(scene):
    """After a failed recording no mode is on, and the next capture takes its receipt."""
    wrong = SimpleNamespace(now=True)

    def step(x):
        if is_capturing() and wrong.now:
            raise ValueError("planted")
        return x + 1

    shown = scene(step)
    assert ("failed", 0) == (shown.runtime.slots["default", 2].state, torch._C._len_torch_dispatch_stack())
    wrong.now = False
    shown.runtime.wake()
    assert {"buffer x": "read"} == paths(shown.receipt())
