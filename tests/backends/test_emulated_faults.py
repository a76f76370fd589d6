"""Public faults of CUDA graphs, each as a manager without checks would have it: this backend hides none of them.

Were one of these to give the right answer here, a test of the library that guards against it would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.errors import CaptureUnsupported, ReplayFailed

Record = Callable[[Callable[[], object]], EmulatedGraph]
Put = Callable[..., torch.Tensor]


@pytest.fixture
def backend() -> EmulatedBackend:
    """A fresh one."""
    return EmulatedBackend()


@pytest.fixture
def put(backend: EmulatedBackend) -> Put:
    """Makes a device tensor of Python data."""

    def put(data: object, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        tensor = torch.tensor(data, dtype=dtype)
        backend.adopt([tensor])
        return tensor

    return put


@pytest.fixture
def record(backend: EmulatedBackend) -> Record:
    """Records a function into a pool of its own."""

    def record(step: Callable[[], object]) -> EmulatedGraph:
        with backend.record(backend.pool()) as graph:
            step()
        return graph

    return record


def test_a1_a_rebound_tensor_is_not_read(put: Put, record: Record) -> None:
    """A1: after `md.pt = new`, a replay reads the page table that was recorded."""
    cache, metadata, made = put([10, 11, 12, 13]), SimpleNamespace(table=put([0, 0], torch.int64)), []
    graph, old = record(lambda: made.append(cache[metadata.table])), metadata.table
    metadata.table = put([3, 2], torch.int64)
    graph.replay()
    assert ([10, 10], [0, 0]) == (made[0].tolist(), old.tolist())


def test_a7_a_builder_in_the_step_runs_once(put: Put, record: Record) -> None:
    """A7: what Python computed from host values while recording is what every replay reads."""
    lengths, out = [1, 1], put([0, 0])
    graph = record(lambda: (out[0].fill_(lengths[0]), out[1].fill_(lengths[1])))
    lengths[:] = [5, 9]
    graph.replay()
    assert [1, 1] == out.tolist()


def test_b2_pad_rows_keep_what_the_last_step_left(put: Put, record: Record) -> None:
    """B2: a smaller batch leaves old positions in the rows after it, and the graph acts on them."""
    table, positions, made = put(range(8)), put([0, 0, 0, 0], torch.int64), []
    graph = record(lambda: made.append(table[positions] * 10))
    positions[:4] = torch.tensor([1, 2, 3, 7])
    graph.replay()
    positions[:2] = torch.tensor([4, 5])
    graph.replay()
    assert [40, 50, 30, 70] == made[0].tolist()


def test_b3_garbage_in_pad_rows_is_used_as_an_index(put: Put, record: Record) -> None:
    """B3: indices that nobody wrote are gathered with; the emulated device says so."""
    table, index = put(range(4)), put([0, -4886055425978319163], torch.int64)
    graph = record(lambda: table[index])
    with pytest.raises(ReplayFailed, match="index -4886055425978319163 is out of bounds"):
        graph.replay()


def test_c3_a_python_number_is_frozen(put: Put, record: Record) -> None:
    """C3: a temperature held in Python is that of the recording."""
    sampler, made = SimpleNamespace(temperature=1.0), []
    logits = put([2, 4])
    graph = record(lambda: made.append(logits / sampler.temperature))
    sampler.temperature = 2.0
    graph.replay()
    assert [2, 4] == made[0].tolist()


def test_c7_a_python_bound_is_frozen(put: Put, record: Record) -> None:
    """C7: a length held in Python, and not in the key, masks later batches as it masked the dummy one."""
    x, longest, made = put([1, 2, 3, 4]), [2], []
    graph = record(lambda: made.append(x * (torch.arange(4, device=x.device) < longest[0])))
    longest[0] = 4
    graph.replay()
    assert [1, 2, 0, 0] == made[0].tolist()


def test_d1_a_mask_is_refused_where_it_is_used(put: Put, record: Record) -> None:
    """D1: boolean-mask indexing fails at its own line, though plain CPU tensors would let it pass."""
    x, mask = put([1, 2]), put([1, 0], torch.bool)
    with pytest.raises(CaptureUnsupported, match=r"aten\.index\.Tensor .*test_emulated_faults\.py"):
        record(lambda: x[mask])


def test_d2_a_list_index_is_refused(put: Put, record: Record) -> None:
    """D2: a Python list as an index is a hidden copy to the device, though plain CPU tensors would let it pass."""
    logits, suppress = put([[1, 2, 3, 4]]), [1, 3]
    with pytest.raises(CaptureUnsupported, match="hidden copy from the host to the device"):
        record(lambda: logits.__setitem__((slice(None), suppress), float("-inf")))


def test_e1_a_replay_overwrites_earlier_results(put: Put, record: Record) -> None:
    """E1: a slice of an earlier result holds the values of the last replay."""
    x, made = put([1, 2]), []
    graph = record(lambda: made.append(x + 1))
    graph.replay()
    earlier = made[0][:1].detach()
    x.copy_(torch.tensor([7.0, 8.0]))
    graph.replay()
    assert [8] == earlier.tolist()


def test_e7_a_tensor_kept_from_a_recording_is_not_computed_by_another(put: Put, record: Record) -> None:
    """E7: what a module keeps of recording A is written by A's replays alone; B finds poison before."""
    module, x, made = SimpleNamespace(kept=None), put([1, 2]), []

    def step() -> None:
        if module.kept is None:
            module.kept = torch.ones(2, device=x.device)
        made.append(x + module.kept)

    first, second = record(step), record(step)
    second.replay()
    assert made[1].isnan().all()
    first.replay()
    second.replay()
    assert [2, 3] == made[1].tolist()


@pytest.mark.parametrize("move", ["rebind", "data", "set_"])
def test_f1_f2_a_moved_weight_is_not_read(put: Put, record: Record, move: str) -> None:
    """F1, F2: a weight that was moved to other memory is read where it was, while somebody keeps that (else: K2)."""
    module, x, made = SimpleNamespace(weight=put([20])), put([1]), []
    graph, old = record(lambda: made.append(x * module.weight)), module.weight.detach()
    fresh = put([30])
    if move == "rebind":
        module.weight = fresh
    elif move == "data":
        module.weight.data = fresh
    else:
        module.weight.set_(fresh)
    assert [30] == module.weight.tolist()
    graph.replay()
    assert [20] == old.tolist() == made[0].tolist()


def test_j1_warm_ups_advance_live_state(put: Put, record: Record) -> None:
    """J1: eager warm-ups are real runs; recording is none."""
    state = put([1])
    for _ in range(2):
        state.mul_(2)
    graph = record(lambda: state.mul_(2))
    assert [4] == state.tolist()
    graph.replay()
    assert [8] == state.tolist()


@pytest.mark.parametrize("checked", [True, False])
def test_k2_a_dropped_input_is_not_what_it_was(checked: bool) -> None:
    """K2: a graph does not own its inputs. Checked, a replay names the one that was dropped; else it reads poison."""
    backend, made = EmulatedBackend(checked=checked), []
    x = backend.allocate((1,), torch.float32, 1)
    with backend.record(backend.pool()) as graph:
        made.append(x + 1)
    graph.replay()
    assert [2] == made[0].tolist()
    del x
    named = r"the tensor \(1,\) float32 that aten\.add\.Tensor at .*test_emulated_faults\.py:\d+ captured was freed"
    with pytest.raises(ReplayFailed, match=named) if checked else nullcontext():
        graph.replay()
    assert checked or made[0].isnan().all()


def test_q5_rows_that_a_kernel_skips_stay_poisoned(put: Put, record: Record) -> None:
    """Q5: an output of `empty` of which only live rows are written spoils what reads all rows."""
    x, made = put([1, 2]), []

    def step() -> None:
        out = torch.empty(2, device=x.device)
        out[:1] = x[:1]
        made.append(out.sum())

    record(step).replay()
    assert made[0].isnan()
