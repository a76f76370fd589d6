"""What verification keeps an eye on: everything can be put back, and what changed is told by rows."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import Rows, State, as_buffers, resolve_fields
from tsgraph.errors import OutOfBudget
from tsgraph.keys import Geometry
from tsgraph.protocols.backend import Memory as Bytes
from tsgraph.replay.verification import memory
from tsgraph.replay.verification.memory import PUT_BACK, Holdings, Kept, Memory, survey

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)


@attrs.define(eq=False)
class Part:
    """A collaborator with memory of its own, that may know another one."""

    own: torch.Tensor
    known: Any = None


class Small(EmulatedBackend):
    """A device with so many bytes left."""

    left = 0

    def memory(self) -> Bytes:
        return Bytes(free=self.left, total=self.left, allocated=0, pooled=0)


def looked_at(
    backend: EmulatedBackend | None = None, *, states: dict[str, State] | None = None, **holdings: Any
) -> Memory:
    """What a survey of an engine with one buffer finds."""
    backend = backend or EmulatedBackend()
    fields = resolve_fields(as_buffers({"ids": Rows(torch.int64, pad=0)}), Geometry(rows=4))
    return survey(backend, Arena(fields, 4, backend), states or {}, Holdings(**holdings))


def kept(found: Memory, path: str) -> Kept:
    """What is kept of one tensor."""
    (one,) = (each for each in found.kept if each.path == path)
    return one


def stirred(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of small numbers."""
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


@pytest.mark.parametrize("host", [False, True], ids=["beside", "on the host"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (5, 3), (5, 2, 4)])
def test_what_changed_is_told_and_undone(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, shape: tuple[int, ...], host: bool
):
    """For every dtype and shape, with a copy beside the tensor or with sums and a copy on the host."""
    tensor = stirred(shape, dtype)
    before, changed = tensor.clone(), [1, 3] if shape else [0]
    monkeypatch.setattr(memory, "machine_bytes", lambda: (1 << 30, 1 << 30))
    found = looked_at(Small() if host else EmulatedBackend(), states={"s": State(tensor, restore=True)})
    state = kept(found, "state s")
    assert (host, []) == (state.sums is not None, state.changed())
    rows = tensor if shape else tensor.reshape(1)
    rows[changed] = ~rows[changed] if dtype is torch.bool else rows[changed] + 77
    assert changed == state.changed()
    found.restore()
    assert torch.equal(before, tensor)


@pytest.mark.parametrize("host", [False, True], ids=["beside", "on the host"])
def test_runs_may_begin_with_what_was_prepared(host: bool):
    """A new base is what is put back from then on; in the end everything is as it was in the beginning."""
    tensor = torch.zeros(4)
    found = looked_at(Small() if host else EmulatedBackend(), states={"s": State(tensor, sink=0)})
    for row in (1, 2, 1):
        tensor[row] += 1
        found.rebase()
    tensor[3] = 9
    found.restore()
    assert [0, 2, 1, 0] == tensor.tolist()
    found.undo()
    assert [0, 0, 0, 0] == tensor.tolist()


def test_runs_are_compared_by_what_they_left():
    """Rows that one of them did not touch hold what was there before; sinks may hold anything."""
    tensor = torch.zeros(5, 2)
    found = looked_at(states={"s": State(tensor, sink=0)})
    state = kept(found, "state s")

    def left(**rows: float) -> Any:
        for row, value in rows.items():
            tensor[int(row[1:])] = value
        ended = state.left()
        found.restore()
        return ended

    assert state.mismatch(left(r1=1.0, r0=3.0), left(r1=1.0), None) is None
    mismatch = state.mismatch(left(r1=1.0, r2=2.0), left(r1=1.5), None)
    assert mismatch is not None
    assert ((1, 2), 4, 4, 2.0) == (mismatch.rows, mismatch.elements, mismatch.of, mismatch.largest)
    assert state.mismatch(left(r1=1.0), left(r1=1.001), 0.1) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_a_nudge_changes_every_float_but_sinks_and_twice_is_never(dtype: torch.dtype):
    """So that whatever writes there is seen, also if it writes what was there."""
    tensor, scratch, lengths = torch.ones(4, 4, dtype=dtype), torch.ones(4), torch.ones(4, dtype=torch.int64)
    states = {"s": State(tensor, sink=1), "t": State(scratch, restore=True), "n": State(lengths, sink=0)}
    found = looked_at(states=states)
    found.nudge()
    assert [True, False, True, True] == tensor.ne(1).all(1).tolist()
    assert torch.allclose(tensor, torch.ones_like(tensor), rtol=2e-3)
    assert (1.0, 1) == (scratch.amax().item(), lengths.amax().item())
    tensor[2] = 1.0
    assert [2] == kept(found, "state s").changed()
    found.restore()
    found.nudge()
    assert [] == tensor.ne(1).nonzero().tolist()


def test_everything_has_its_role():
    """Weights are watched, recurrent state is kept, metadata are left alone, and what only the step holds is found."""
    module = torch.nn.Linear(2, 2)
    metadata, state, hidden = torch.zeros(3), torch.zeros(4), torch.zeros(2)
    attention, recurrent = Part(metadata), Part(state)
    recurrent.known = attention

    def step() -> Any:
        return hidden, module, metadata

    parts = {"attention": attention, "recurrent": recurrent, "sampler": Part(torch.zeros(1))}
    found = looked_at(modules=[module], parts=parts, step=step, fixed={"f": torch.zeros(2), "m": metadata})
    assert {
        "buffer ids": "buffer",
        "parameter weight": "constant",
        "parameter bias": "constant",
        "collaborator recurrent.own": "recurrent",
        "collaborator sampler.own": "sampler",
        "fixed f": "constant",
        "step closure hidden": "step",
    } == {each.path: each.role for each in found.kept}


def test_a_state_that_is_metadata_is_not_compared():
    """A replay leaves it as refreshes make it, an eager step has its own; it is not put back between replays."""
    lengths = torch.zeros(3)
    found = looked_at(states={"lengths": State(lengths, restore=True)}, parts={"drafter": Part(lengths)})
    lengths.fill_(2)
    assert {} == found.left()
    found.restore(*PUT_BACK)
    assert [2, 2, 2] == lengths.tolist()
    found.restore()
    assert [0, 0, 0] == lengths.tolist()


def test_the_largest_view_of_a_storage_is_watched():
    """A collaborator may hold its memory and a part of it."""
    whole = torch.zeros(6)
    recurrent = Part(whole[:2], known=whole)
    assert 6 == len(kept(looked_at(parts={"recurrent": recurrent}), "collaborator recurrent.known").now)


def test_weights_are_told_and_then_taken_for_right():
    """There is no copy of them: what has changed is told once."""
    module = torch.nn.Linear(2, 3)
    weight = kept(looked_at(modules=[module]), "parameter weight")
    with torch.no_grad():
        module.weight[1] += 1
    assert [1] == weight.changed()
    weight.accept()
    assert [] == weight.changed()


def test_memory_that_fits_nowhere(monkeypatch: pytest.MonkeyPatch):
    """A state could not be put back, so it is refused by name; of what the step holds it is only said."""
    monkeypatch.setattr(memory, "machine_bytes", lambda: (100, 100))
    tensor = torch.zeros(100)
    with pytest.raises(OutOfBudget, match="state s of 400 bytes"):
        looked_at(Small(), states={"s": State(tensor, restore=True)})
    found = looked_at(Small(), step=lambda: tensor)
    assert ("step closure tensor is too large to copy: writes to it are not undone",) == found.left_out
    tensor[7] = 1
    assert [7] == kept(found, "step closure tensor").changed()


def test_what_has_no_bits_of_its_own_is_said():
    """Elements in one place cannot be put back, nor memory of another layout."""
    states = {"s": State(torch.zeros(1).expand(3), restore=True)}
    found = looked_at(states=states)
    assert ["buffer ids"] == [each.path for each in found.kept]
    assert "state s cannot be read bit by bit" in found.left_out[0]
