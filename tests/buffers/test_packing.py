"""Packed staging: whatever way rows go, buffers hold to the bit what copies would leave."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tests.buffers.compiled_kernel import COMPILER, CompiledDeep, CompiledInBlocks, CompiledKernel
from tests.buffers.test_staging import CANARY, ROWS, WRONG, batch, layouts, sources_for, write_in_place
from tsgraph.backends.choice import choose_backend
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.staging import EmulatedKernel
from tsgraph.backends.ring import TRAYS
from tsgraph.backends.stager import Stager
from tsgraph.buffers import packing, pattern
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.packing import Packing, lanes_of
from tsgraph.buffers.staging import Staging
from tsgraph.errors import BadBatch

NEEDS_COMPILER = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
COMPILED = [pytest.param(kernel, marks=NEEDS_COMPILER) for kernel in (CompiledKernel, CompiledDeep, CompiledInBlocks)]
ON_A_GPU = pytest.param(None, marks=pytest.mark.gpu, id="cuda")
KERNELS = pytest.mark.parametrize("kernel", [EmulatedKernel, *COMPILED, ON_A_GPU])
READS = st.sampled_from(["ring", "landing"])


@attrs.define(eq=False)
class Slot:
    """A size of a runtime: what stages its rows, and a graph of nothing but the staging node, if it has one."""

    backend: Any
    packing: Packing
    graph: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        with self.backend.record(self.backend.pool()) as self.graph:
            self.packing.record()

    def serve(self, live: int, sources: dict[str, Any]) -> None:
        self.packing.stage(live, sources)
        self.graph.replay()


def stager_of(arena: Arena, kernel: Any, reads: Any) -> Any:
    """What brings rows: with a `kernel` of the emulation, or with that of the arena's own backend."""
    backend: Any = arena.backend
    if kernel is None:
        return backend.stager(lanes_of(arena), arena.rows, reads=reads)
    return Stager(lanes_of(arena), arena.rows, backend, kernel(), lambda: backend._recording, reads)


def partly_on_device(data: st.DataObject, backend: Any, sources: dict[str, Any]) -> dict[str, Any]:
    """Some of the sources there, or none."""

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        if data.draw(st.booleans()):  # no longer where an allocation begins
            tensor = torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)
        if not data.draw(st.booleans()):
            return tensor
        tensor = tensor if backend.device.type == "cpu" else on_the_gpu(tensor, backend)
        backend.adopt([tensor])
        return tensor

    return {
        name: {group: placed(each) for group, each in source.items()} if isinstance(source, dict) else placed(source)
        for name, source in sources.items()
    }


def on_the_gpu(tensor: torch.Tensor, backend: Any) -> torch.Tensor:
    """A copy there, as far into its allocation as `tensor` is, and with its strides."""
    memory = torch.empty(
        tensor.untyped_storage().nbytes() // tensor.itemsize, dtype=tensor.dtype, device=backend.device
    )
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(tensor)


def bytes_in(arena: Arena) -> dict[str, bytes]:
    """All that its buffers hold."""
    return {label: bytes(tensor.cpu().view(torch.uint8).numpy()) for label, tensor in arena.tensors().items()}


@KERNELS
@settings(max_examples=25)
@given(data=st.data())
def test_every_batch_leaves_what_copies_leave(field, arena_of, kernel, data):
    """For any fields, sources on host and device, dense or not, and any history of batches through slots of two sizes.

    Rows beyond the slot, which copies never touch, are compared too. Ring and landing, launches and nodes are drawn.
    """
    fields = data.draw(st.permutations([field(**word) for word in data.draw(layouts())]))
    backend = EmulatedBackend() if kernel else choose_backend("cuda", [], "cuda")
    copied, packed = (arena_of(*fields, rows=ROWS, backend=backend) for _ in range(2))
    sizes, inside = (ROWS, data.draw(st.integers(1, ROWS - 1))), data.draw(st.booleans())
    stager = stager_of(packed, kernel, data.draw(READS))
    slots = [Slot(backend, Packing(packed, stager, size, inside=inside)) for size in sizes]
    for tensor in (*copied.tensors().values(), *packed.tensors().values()):
        tensor.fill_(True if tensor.dtype is torch.bool else CANARY)
    for _ in range(data.draw(st.integers(1, 5))):
        which = data.draw(st.integers(0, 1))
        live = data.draw(st.integers(0, sizes[which]))
        sources = partly_on_device(data, backend, sources_for(data, fields, live))
        write_in_place(data, copied, live)
        for label, tensor in copied.tensors().items():
            packed.tensors()[label].copy_(tensor)
        Staging(copied, sizes[which]).stage(live, sources)
        slots[which].serve(live, sources)
        assert bytes_in(copied) == bytes_in(packed)


# -- cases ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def arena(field, arena_of):
    """The buffers of `tests.buffers.test_staging`, on the emulated device."""
    return arena_of(
        field("ids", per="token", rows_per_request=2, pad=1),
        field("lens", dtype=torch.int32, pad=1),
        field("table", shape=(4,), pad=-1, column_pad=-2),
        field("groups", group="full", shape=(2,), pad=-1),
        field("groups", group="window", shape=(1,), pad=-1),
        field("cached", pad=9, source="engine"),
        backend=EmulatedBackend(),
    )


def slot_of(arena: Arena, size: int = 4, *, inside: bool = True) -> Slot:
    """One slot with a ring of its own."""
    return Slot(arena.backend, Packing(arena, stager_of(arena, None, "ring"), size, inside=inside))


WAYS = pytest.mark.parametrize("inside", [True, False], ids=["graph", "launch"])


@WAYS
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_source_is_named_and_nothing_changes(arena, contents, wrong, inside):
    """Like copies do, whether the call before was right or there was none; and what comes next is served."""
    slot, (sources, message) = slot_of(arena, inside=inside), WRONG[wrong]
    for right in (None, 3):
        if right:
            slot.serve(right, batch(right))
        before = contents(arena)
        with pytest.raises(BadBatch) as error:
            slot.packing.stage(3, {**batch(3), **sources})
        assert message in str(error.value)
        assert next(iter(sources)) == error.value.context["buffer"]
        slot.graph.replay()
        assert before == contents(arena)
    slot.serve(3, batch(3))
    assert [20, 21, 22, 1] == arena.tensors()["lens"].tolist()


@WAYS
@pytest.mark.parametrize("live", [5, -1, 2.5, "2", None])
def test_rows_that_do_not_fit_the_slot_are_refused(arena, live, inside):
    """More rows than the slot has, or what is no number of rows (rule R28)."""
    with pytest.raises(BadBatch, match="expected 0 to 4 live rows, got"):
        slot_of(arena, inside=inside).serve(live, batch(4))


def test_a_slot_larger_than_the_arena_is_refused(arena):
    """When it is made."""
    with pytest.raises(BadBatch, match="the static buffers hold 0 to 4 rows, not 5"):
        Packing(arena, stager_of(arena, None, "ring"), 5, inside=True)


@WAYS
def test_host_sources_may_be_changed_at_once(arena, inside):
    """What was packed is a copy: the graph, which runs later, reads it (fault D4)."""
    slot, sources = slot_of(arena, inside=inside), batch(2)
    slot.packing.stage(2, sources)
    sources["lens"].fill_(0)
    slot.graph.replay()
    assert [20, 21, 1, 1] == arena.tensors()["lens"].tolist()


def test_until_the_replay_buffers_are_as_they_were(arena, contents):
    """The graph brings them, and nothing else does."""
    slot, before = slot_of(arena), contents(arena)
    slot.packing.stage(2, batch(2))
    assert before == contents(arena)


def test_a_call_that_came_to_nothing_is_replaced_by_the_next(arena):
    """Staged, and never replayed: neither the next call nor a replay by hand after it sees those rows."""
    slot = slot_of(arena)
    slot.packing.stage(4, batch(4))
    slot.serve(2, batch(2))
    slot.graph.replay()
    assert [20, 21, 1, 1] == arena.tensors()["lens"].tolist()


def test_a_launch_voids_what_was_left_to_the_graph(arena):
    """Rows of the device are launched ahead: the graph must not bring those of a call before over them."""
    slot, sources = slot_of(arena), batch(2)
    slot.packing.stage(4, batch(4))
    arena.backend.adopt([sources["lens"]])
    slot.serve(2, sources)
    assert [20, 21, 1, 1] == arena.tensors()["lens"].tolist()


def test_a_replay_by_hand_brings_nothing(arena):
    """Of this slot or of another of the same ring: what the engine has written meanwhile stays."""
    stager = stager_of(arena, None, "ring")
    slots = [Slot(arena.backend, Packing(arena, stager, size, inside=True)) for size in (4, 2)]
    slots[0].serve(3, batch(3))
    arena.tensors()["lens"].fill_(7)
    for slot in (*slots, *slots):
        slot.graph.replay()
    assert [7, 7, 7, 7] == arena.tensors()["lens"].tolist()
    slots[1].packing.stage(2, batch(2))
    slots[0].graph.replay()  # not for it
    assert [7, 7, 7, 7] == arena.tensors()["lens"].tolist()


@WAYS
def test_a_step_without_rows_is_all_pads(arena, inside):
    """Sources may be left out, empty or None."""
    slot, empty = slot_of(arena, inside=inside), {"ids": torch.empty(0), "lens": None, "groups": {}}
    for sources in ({}, {}, {**empty, "table": torch.empty(0, 7)}, batch(0)):
        slot.serve(4, batch(4))
        slot.serve(0, sources)
        pads = {"ids": 1, "lens": 1, "table": -1, "groups[full]": -1, "groups[window]": -1, "cached": 9}
        assert all(tensor.eq(pads[label]).all() for label, tensor in arena.tensors().items())


@WAYS
def test_modes_may_change_between_calls(arena, inside):
    """Also where a call was first seen in another mode, and with sources made in it (fault R3)."""
    slot = slot_of(arena, inside=inside)
    for live, inference in ((2, True), (2, False), (3, False), (3, True), (3, True)):
        with torch.inference_mode(mode=inference):
            slot.serve(live, batch(live))
    assert [20, 21, 22, 1] == arena.tensors()["lens"].tolist()


def test_two_modes_in_turn_are_both_known(arena, monkeypatch):
    """The second time that torch is in a mode, nothing is looked at one by one."""
    slot, sources = slot_of(arena), batch(3)
    for again in range(3):
        for inference in (True, False):
            with torch.inference_mode(mode=inference):
                slot.serve(3, sources)
        if again:
            monkeypatch.setattr(pattern._Looks, "alike", None)
    assert [20, 21, 22, 1] == arena.tensors()["lens"].tolist()


def numbers(field, arena_of, dtype, **words):
    """A slot of four rows of one buffer, and the buffer."""
    arena = arena_of(field("x", dtype=dtype, **words), backend=EmulatedBackend())
    return slot_of(arena), arena.tensors()["x"]


def test_a_tensor_that_torch_negates_when_it_is_read_is_read(field, arena_of):
    """Its bytes are those of another: the imaginary part of a conjugate."""
    slot, held = numbers(field, arena_of, torch.float32)
    plain, lazy = torch.tensor([3.0, 4.0]), torch.tensor([1 + 3j, 2 + 4j]).conj().imag
    assert lazy.is_neg()
    for device in (False, True):
        for source in (plain, lazy, plain, lazy):
            if device:
                slot.backend.adopt([source])
            slot.serve(2, {"x": source})
            assert [*source.tolist(), 0, 0] == held.tolist()


def test_sources_with_gradients_do_not_make_buffers_part_of_a_graph(field, arena_of):
    """Neither dense ones nor those with strides."""
    slot, held = numbers(field, arena_of, torch.float32)
    leaf = torch.ones(4, requires_grad=True)
    for source in (leaf[:2], leaf[:2], leaf[::2], leaf[::2]):
        slot.serve(2, {"x": source})
        assert (False, [1, 1, 0, 0]) == (held.requires_grad, held.tolist())


class Wrapper(torch.Tensor):
    """A tensor without bytes of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(each.inner if isinstance(each, Wrapper) else each for each in args), **(kwargs or {}))


class Counted(torch.Tensor):
    """A tensor that counts what torch is asked about it."""

    asked = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counted.asked += 1
        return super().__torch_function__(func, types, args, kwargs)


def test_tensors_of_other_classes_are_staged_by_what_they_are(field, arena_of):
    """One that wraps another is read through it; one that answers for itself is asked at every call."""
    slot, held = numbers(field, arena_of, torch.float32)
    for value in (1.0, 2.0):
        slot.serve(2, {"x": Wrapper(torch.full((2,), value))})
        assert [value, value, 0, 0] == held.tolist()
    for value in (3.0, 4.0, 5.0):
        asked, source = Counted.asked, torch.full((2,), value).as_subclass(Counted)
        slot.serve(2, {"x": source})
        assert ([value, value, 0, 0], True) == (held.tolist(), Counted.asked > asked)


def test_one_tensor_may_be_the_source_of_two_buffers(field, arena_of):
    """Again and again."""
    arena = arena_of(field("x"), field("y", pad=1), backend=EmulatedBackend())
    slot = slot_of(arena)
    for start in (5, 6, 7):
        source = torch.arange(start, start + 2)
        slot.serve(2, {"x": source, "y": source})
        assert [start, start + 1, 1, 1] == arena.tensors()["y"].tolist()


# -- what a call costs ------------------------------------------------------------------------------------------------


class Moves(TorchDispatchMode):
    """Lists the operators that run."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@WAYS
@pytest.mark.parametrize("guards", [True, False])
def test_a_steady_call_calls_no_operator(arena, inside, guards, monkeypatch):
    """Dense sources, wide or narrow tables, on host and device; also where torch has no guards to lend."""
    if not guards:
        monkeypatch.setattr(pattern, "_guards", lambda sources, ragged: pattern._never)
    slot = slot_of(arena, inside=inside)
    on_device = batch(3)
    arena.backend.adopt([on_device["lens"], on_device["table"]])
    for sources in (batch(3), on_device, {**batch(3), "table": torch.full((3, 2), 5)}):
        slot.serve(3, sources)
        with Moves() as moves:
            slot.packing.stage(3, sources)
        assert [] == moves.seen
        slot.graph.replay()


@WAYS
def test_calls_of_several_kinds_in_turn_are_all_known(arena, inside, monkeypatch):
    """From the host, from the device, with strides: each was learnt once, and the rows of each are right."""
    slot, sources = slot_of(arena, inside=inside), [batch(3) for _ in range(3)]
    arena.backend.adopt([sources[1]["lens"]])
    sources[2]["lens"] = torch.stack([sources[2]["lens"]] * 2, 1)[:, 0]
    for turn in range(4):
        for kind, each in enumerate(sources):
            each["lens"].fill_(10 * turn + kind)
            slot.serve(3, each)
            assert [10 * turn + kind] * 3 + [1] == arena.tensors()["lens"].tolist()
            assert slot.packing._plans[3].habit.take(each)  # it is asked first at the next call
        monkeypatch.setattr(slot.packing, "_learn", None)


def test_of_kinds_that_change_only_the_last_are_known(arena):
    """So many, and no more, are kept for each number of rows."""
    slot, wide = slot_of(arena), torch.arange(3 * 12).view(3, 12)
    for stride in (*range(1, 7), 1):
        columns = wide[:, : 4 * stride : stride] if stride < 4 else wide[:, stride : stride + 4]
        slot.serve(3, {**batch(3), "table": columns, "lens": torch.arange(3 * stride, dtype=torch.int32)[::stride]})
        assert columns.tolist() == arena.tensors()["table"][:3].tolist()
    assert packing._OTHERS == len(slot.packing._plans[3].others)


def test_strided_sources_are_copied_to_the_same_views(arena):
    """One copy each, and nothing else, once each tray has its view."""
    slot = slot_of(arena)
    wide = torch.arange(24).view(3, 8)
    sources = {**batch(3), "table": wide[:, :4]}
    for _ in range(2 * TRAYS):
        slot.serve(3, sources)
    with Moves() as moves:
        slot.packing.stage(3, sources)
    assert ["aten.copy_.default"] == moves.seen
    slot.graph.replay()
    assert wide[:, :4].tolist() == arena.tensors()["table"][:3].tolist()


def test_tables_may_change_their_width_at_every_call(arena):
    """Narrower, wider, wider than there is room for."""
    slot = slot_of(arena)
    for width in (3, 4, 1, 4, 0, 2):
        table = torch.full((3, width), 5)
        slot.serve(3, {**batch(3), "table": table})
        assert [[5] * width + [-2] * (4 - width)] * 3 == arena.tensors()["table"][:3].tolist()
    with pytest.raises(BadBatch, match="expected at most 4 columns, got 5"):
        slot.serve(3, {**batch(3), "table": torch.full((3, 5), 5)})
    slot.serve(3, {**batch(3), "table": torch.full((3, 2), 6)})
    assert [[6, 6, -2, -2]] * 3 == arena.tensors()["table"][:3].tolist()
