"""With warm-ups per variant, a slot without any of its own proves that it has no lazy work left, or is refused."""

from __future__ import annotations

import attrs
import pytest
import torch

from tsgraph import GraphRuntime, Rows
from tsgraph.capture.laziness import SMALL_CHANGE, Laziness, lazy_work, new_workspace
from tsgraph.errors import CaptureFailed, ContractViolation
from tsgraph.receipts.receipt import CaptureReceipt, Escape, External, Once, Opaque, Output
from tsgraph.spec.load import parse_spec

ELSEWHERE = torch.ones(1)


def _runtime(step, *, per: str = "variant", **words) -> GraphRuntime:
    """A runtime of sizes 2 and 4 on the emulated device, whose failures raise."""
    told = {"extends": "decode", "name": "decode", "version": 1, "warmup": {"per": per}}
    spec = parse_spec({**told, "policy": {"on_capture_failure": "raise", "undeclared_reads": "allow"}})
    inputs = {"x": Rows(torch.float32, pad=0)}
    return GraphRuntime.for_step(step, inputs=inputs, sizes=(2, 4), outputs="request", spec=spec, device="cpu", **words)


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
    from tsgraph.backends.emulated import EmulatedBackend

    backend = EmulatedBackend()
    backend.adopt([ELSEWHERE])
    return backend


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
