"""Buffers on every device: a recording reads what was staged, and warm-ups before it leave nothing behind."""

import pytest
import torch

from tsgraph.buffers.arena import Arena
from tsgraph.buffers.audit import WriteAudit
from tsgraph.buffers.contract import Rows, State, as_buffers, resolve_fields
from tsgraph.buffers.owners import Owners
from tsgraph.buffers.staging import Staging, eager_inputs
from tsgraph.buffers.state import StateGuard
from tsgraph.errors import ContractViolation
from tsgraph.keys import Geometry

INPUTS = {
    "ids": Rows(torch.int64, pad=0, per="token"),
    "table": Rows(torch.int64, pad=0, shape=(4,), column_pad=0),
}


@pytest.fixture
def arena(backend):
    """Static buffers of four rows of two tokens on the device."""
    fields = resolve_fields(as_buffers(INPUTS), Geometry(rows=4, tokens_per_request=2))
    return Arena(fields, 4, backend)


@pytest.fixture
def device_tensor(backend):
    """Makes a tensor that lives on the device."""

    def make(*numbers):
        tensor = torch.tensor(numbers, device=backend.device)
        backend.adopt([tensor])
        return tensor

    return make


def test_buffers_live_on_the_device(backend, arena):
    """Every static tensor and every view is device memory."""
    views = [view for size in (1, 4) for view in arena.views(size).values()]
    assert all(backend.holds(tensor) for tensor in (*arena.tensors().values(), *views))


def test_a_replay_reads_what_was_staged(backend, arena, device_tensor):
    """Batches that shrink and narrow leave nothing of the one before in what the graph reads (faults A5, B2, B4)."""
    pages, views = device_tensor(*range(10)), arena.views(4)
    with backend.record(backend.pool()) as graph:
        read, ids = pages[views["table"]].sum(1), views["ids"] + 1
    stage = Staging(arena, 4).stage
    stage(3, {"ids": torch.arange(6), "table": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]])})
    graph.replay()
    assert ([10, 26, 36, 0], [1, 2, 3, 4, 5, 6, 1, 1]) == (read.tolist(), ids.tolist())
    stage(2, {"ids": torch.tensor([8, 8, 8, 8]), "table": torch.tensor([[4], [5]])})
    graph.replay()
    assert ([4, 5, 0, 0], [9, 9, 9, 9, 1, 1, 1, 1]) == (read.tolist(), ids.tolist())


def test_sources_may_be_anywhere(backend, arena, device_tensor):
    """Device, pinned and ordinary host memory are all staged, dense or not."""
    pinned = backend.pin((4,), torch.int64)
    pinned.fill_(5)
    for ids in (pinned, device_tensor(5, 5, 5, 5), torch.tensor([[5, 0]] * 4)[:, 0]):
        arena.tensors()["ids"].zero_()
        Staging(arena, 4).stage(2, {"ids": ids, "table": torch.ones(2, 4, dtype=torch.int64)})
        assert [5, 5, 5, 5, 0, 0, 0, 0] == arena.tensors()["ids"].tolist()


def test_eager_inputs_are_on_the_device(backend, arena):
    """Host sources are copied there, of whatever width; device sources are passed on."""
    table = backend.allocate((3, 4), torch.int64, 1)
    inputs, tokens = eager_inputs(arena, 3, {"ids": torch.arange(6), "table": table})
    assert backend.holds(inputs["ids"])
    assert inputs["table"] is table
    assert (6, list(range(6))) == (tokens, inputs["ids"].tolist())
    narrow, _ = eager_inputs(arena, 3, {"ids": torch.arange(6), "table": torch.ones(3, 1, dtype=torch.int64)})
    assert backend.holds(narrow["table"])
    assert [[1, 0, 0, 0]] * 3 == narrow["table"].tolist()


def test_warm_up_then_recording_advances_live_state_once(backend, arena, device_tensor):
    """Two warm-ups and a replay advance a restored state by one step, as one eager step would (fault J1)."""
    state, views = device_tensor(1.0), arena.views(4)
    states = {"s": State(state, restore=True)}
    guard, audit = StateGuard(states, backend), WriteAudit(Owners(arena, states))

    def step():
        state.mul_(2)
        return views["ids"] + 1

    for _ in range(2):
        with backend.side_stream(), guard.protected(), audit, torch.inference_mode():
            step()
    with torch.inference_mode(), backend.record(backend.pool()) as graph:
        step()
    assert 1 == state.item()
    graph.replay()
    assert 2 == state.item()


@pytest.mark.parametrize("share", [1, 1 << 60], ids=["copied", "summed"])
def test_a_late_warm_up_finds_a_write_to_a_live_page(backend, arena, device_tensor, monkeypatch, share):
    """A step that writes where its pad rows point is fine on a sink, and refused elsewhere (fault J4)."""
    monkeypatch.setattr("tsgraph.buffers.state.COPY_SHARE", share)
    kv, views = device_tensor([0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]), arena.views(4)
    states = {"kv": State(kv, sink=0)}
    guard, audit = StateGuard(states, backend), WriteAudit(Owners(arena, states))

    def step():
        kv.index_fill_(0, views["table"][:, 0], 7)

    with backend.side_stream(), guard.protected(), audit, torch.inference_mode():
        step()
    assert [0, 1, 2, 3] == kv[:, 0].tolist()
    arena.tensors()["table"].fill_(3)
    refusal = pytest.raises(ContractViolation, match=r"State\.kv: .* rows 3; they")
    with refusal, backend.side_stream(), guard.protected(), audit:
        step()
    assert [0, 1, 2, 3 if share == 1 else 7] == kv[:, 0].tolist()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's, when it loads Inductor
@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda"], indirect=True)
def test_inductor_code_on_a_gpu_is_opaque_and_its_outputs_are_own(backend, arena, device_tensor):
    """Triton kernels, external products and outputs of a compiled step are no older than the warm-up."""
    weight, count = torch.eye(16, device=backend.device).bfloat16(), device_tensor(0.0)
    step = torch.compile(lambda x: torch.mm(torch.mm(x, weight).relu() * 2, weight))
    audit = WriteAudit(Owners(arena, {}))
    for _ in range(2):
        with backend.side_stream(), torch.inference_mode(), audit:
            step(torch.ones_like(weight)).add_(1)
    with pytest.raises(ContractViolation, match="an undeclared tensor"), torch.inference_mode(), audit:
        count.add_(step(torch.ones_like(weight))[0, 0])
    assert 0 == count.item()
