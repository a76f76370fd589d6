"""What a real CUDA graph is handed: exactly the tensors that its kernels, copies and fills were given."""

import pytest
import torch

from tsgraph import GraphRuntime, Rows
from tsgraph.backends.choice import choose_backend
from tsgraph.capture.pipeline import Pipeline
from tsgraph.errors import CaptureFailed
from tsgraph.spec.load import parse_spec

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda():
    """A CUDA backend."""
    return choose_backend("cuda", [], "cuda")


def recorded(backend, pool, work):
    """The graph of `work`, which ran twice before, and what it returned."""
    with backend.side_stream():
        work()
        work()
    backend.synchronize()
    with backend.record(pool, reach=True) as graph:
        returned = work()
    assert graph.reach is not None, "the driver does not tell what nodes are handed"
    return graph, returned


def starts(**tensors):
    """Where the storage of each begins, with its name."""
    return {tensor.untyped_storage().data_ptr(): name for name, tensor in tensors.items()}


def named(reach, known):
    """What is reached, by name; with all that is told of it where nobody knows it."""
    return {known.get(address, f"{each} at {address:#x}") for address, each in reach.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_graph_reaches_exactly_what_it_was_handed(cuda, dtype):
    """Read by a kernel, changed in place, multiplied, copied, filled; nothing beside, nothing of its own.

    But for a workspace that cuBLAS may have for its stream, and hands to its own kernel.
    """
    names = ("source", "changed", "left", "right", "copied", "filled", "beside")
    tensors = {name: cuda.allocate((256, 256), dtype, at) for at, name in enumerate(names)}
    tensors |= {"view": cuda.allocate((4, 256, 256), dtype, 1)}
    pinned = cuda.pin((256, 256), dtype)

    def work():
        sine = tensors["source"].sin()
        tensors["changed"].add_(sine)
        product = tensors["left"] @ tensors["right"]
        tensors["copied"].copy_(product)
        tensors["copied"].copy_(pinned, non_blocking=True)
        tensors["filled"].zero_()
        return product + tensors["view"][2, 1:2, 8:9]

    graph, product = recorded(cuda, cuda.pool(), work)
    expected = {*names, "view"} - {"beside"}
    known = starts(**tensors, product=product)
    told = {address: each for address, each in graph.reach.items() if address in known or "gemm" not in each.node}
    assert expected == named(told, known), graph.listing
    assert all(each.node and each.bytes >= 256 * 256 * dtype.itemsize for each in graph.reach.values()), graph.reach
    assert not any(each.own for each in graph.reach.values()), graph.reach


def test_memory_that_was_dropped_since_is_told(cuda):
    """It was there when the recording began, and a replay reads what is there then."""
    pool, kept = cuda.pool(), [cuda.allocate((1 << 20,), torch.float32, 1)]
    address = kept[0].data_ptr()
    with cuda.record(pool, reach=True) as graph:
        kept[0].mul(2)
    kept.clear()
    assert [address] == list(graph.reach)


def test_random_numbers_make_no_later_recording_differ(cuda):
    """Torch has memory for the seed and the offset: one for all graphs, or one for each that is its own."""
    pool, x = cuda.pool(), cuda.allocate((64,), torch.float32, 1)

    def draws():
        return torch.rand_like(x) + torch.nn.functional.dropout(x, 0.5)

    first, kept = recorded(cuda, pool, draws)
    later = [recorded(cuda, pool, draws) for _ in range(2)]
    for graph, _ in later:
        new = {address for address, each in graph.reach.items() if not each.own} - first.reach.keys()
        assert not new, (first.reach, graph.reach)
        assert x.data_ptr() in graph.reach
    assert kept is not None


def runtime_of(step, **words):
    """A runtime of sizes 2 and 4 whose smaller slot nobody watches."""
    policy = {"on_capture_failure": "raise", "undeclared_reads": "allow", "receipts": "warmed"}
    told = {"extends": "decode", "name": "decode", "version": 1, "warmup": {"per": "variant"}, "policy": policy}
    inputs = {"x": Rows(torch.float32, shape=(64,), pad=0)}
    return GraphRuntime.for_step(
        step, inputs=inputs, sizes=(2, 4), outputs="request", spec=parse_spec(told), backend="cuda", **words
    )


def test_a_step_without_lazy_work_is_watched_once():
    """With staging nodes and random numbers in its graphs; replays are right."""
    weight = torch.randn(64, 64, device="cuda")

    def step(x):
        return x @ weight + torch.rand_like(x) * 0

    runtime = runtime_of(step, device="cuda")
    runtime.capture()
    assert {4: "", 2: "default/4"} == {key.size: slot.receipt.model for key, slot in runtime.slots.items()}
    x = torch.randn(2, 64)
    torch.testing.assert_close(runtime(x=x), x.cuda() @ weight, rtol=1e-3, atol=1e-3)


def test_memory_that_only_a_smaller_size_reads_is_refused(monkeypatch):
    """By operator and line, once it is watched; where it cannot be made again, by address and kernel."""
    elsewhere = torch.ones(64, device="cuda")
    told = {
        True: "it touches step closure elsewhere",
        False: f"at {elsewhere.data_ptr():#x} that no operator of ",
    }
    for repeatable, words in told.items():
        monkeypatch.setattr(Pipeline, "_repeatable", repeatable)
        runtime = runtime_of(lambda x: x + elsewhere if len(x) < 4 else x + 1, device="cuda")
        with pytest.raises(CaptureFailed, match=words):
            runtime.capture()
