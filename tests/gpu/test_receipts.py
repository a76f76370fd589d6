"""Receipts of real CUDA graphs: everything is declared, the driver tells the nodes, compiled steps stay compiled."""

import gc
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from tsgraph import Fixed, GraphRuntime, Rows, State
from tsgraph.backends.choice import choose_backend
from tsgraph.backends.driver import list_nodes
from tsgraph.backends.opaque import compiled_regions
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.owners import Owners
from tsgraph.capture.probing import probe_constants
from tsgraph.receipts.receipt import CaptureReceipt
from tsgraph.receipts.watch import Watch
from tsgraph.reference.config import EngineConfig
from tsgraph.reference.engine import graph_runtime
from tsgraph.reference.model import DecoderConfig
from tsgraph.reference.parts import Parts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's and Triton's, when they compile
    pytest.mark.filterwarnings("ignore:.*TensorFloat32.*:UserWarning"),  # Inductor's advice
]


@pytest.fixture
def cuda():
    """A CUDA backend."""
    return choose_backend("cuda", [], "cuda")


def captured(step, **rest):
    """The runtime of a step over rows `x`, float32 [2, 64], and the receipt of its slot."""
    options = {"inputs": {"x": Rows(torch.float32, shape=(64,), pad=0)}, "outputs": "request", **rest}
    runtime = GraphRuntime.for_step(step, sizes=(2,), backend="cuda", device="cuda", **options)
    runtime.capture()
    slot = runtime.slots["default", 2]
    assert slot.receipt is not None, slot.cause
    return runtime, slot.receipt


KINDS = {
    "plain": {},
    "speculative": {"tokens_per_request": 4, "variants": True},
    "recurrent": {"decoder": DecoderConfig(recurrent=(1, 3)), "variants": True},
    "constrained": {"constrained": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_engine_reads_nothing_undeclared(kind):
    """Of each kind of engine and in every slot: no unknown memory, no opaque part, kernels with names and grids."""
    parts = Parts.build(EngineConfig(rows=4, device="cuda", **KINDS[kind]))
    runtime = graph_runtime(parts, backend="cuda", sizes=(2, 4))
    for slot in runtime.slots.values():
        receipt = slot.receipt
        assert receipt is not None, f"{slot}: {slot.cause}"
        told = receipt.table(160)
        assert [] == [external.label for external in receipt.undeclared()], told
        assert ((), ()) == (receipt.opaque, receipt.escapes), told
        assert receipt.nodes is not None, "the driver told no nodes"
        assert receipt.nodes["kernel"] > 20, told
        assert all(each.name and each.grid for each in receipt.kernels), told
        assert receipt == CaptureReceipt.from_json(receipt.to_json())


def test_the_driver_tells_nothing_of_a_stream_that_records_nothing(cuda):
    """None, and no error is left behind for torch to find."""
    assert list_nodes(cuda.stream.cuda_stream) is None
    assert [2.0] == (torch.ones(1, device="cuda") * 2).tolist()


def test_nodes_are_told_by_kind(cuda):
    """A kernel with its grid, a copy from pinned memory, a host function."""
    x, pinned = cuda.allocate((1 << 16,), torch.float32, 1), cuda.pin((1 << 16,), torch.float32)
    with cuda.record(cuda.pool()) as graph:
        x.copy_(pinned, non_blocking=True)
        x.sin_()
        cuda.host_function(gc.isenabled)
    assert graph.listing is not None, "the driver told no nodes"
    assert ["host", "kernel", "memcpy"] == sorted(node.kind for node in graph.listing), graph.listing
    (kernel,) = [node for node in graph.listing if node.kind == "kernel"]
    assert "sin" in kernel.name, kernel
    assert kernel.grid is not None
    assert kernel.grid[0] > 1, kernel


def test_a_watch_does_not_make_the_pool_larger(cuda):
    """Blocks that a step frees serve its later operators, watched or not."""
    x = cuda.allocate((1 << 20,), torch.float32, 1)

    def bytes_of_recording(watched):
        pool = cuda.pool()
        with cuda.record(pool) as graph:
            if watched:
                with Watch(Owners(Arena([], 1, cuda), {}), cuda, pool):
                    for _ in range(16):
                        x.mul(2).add(1).sum()
            else:
                for _ in range(16):
                    x.mul(2).add(1).sum()
        return graph.bytes

    assert bytes_of_recording(watched=False) == bytes_of_recording(watched=True)


def test_a_pool_holds_what_recordings_take_from_it(cuda):
    """Also what a later recording takes, after the pool has grown."""
    x, pool = cuda.allocate((1 << 20,), torch.float32, 1), cuda.pool()
    kept = []
    for grown in (1, 4, 64):
        with cuda.record(pool) as graph:
            kept.append((graph, x.repeat(grown)))
    assert [True] * 3 == [pool.holds(made.data_ptr()) for _, made in kept]
    assert not pool.holds(x.data_ptr())


def test_undeclared_memory_is_named_and_outlives_its_name():
    """A tensor that the step closes over: told with its path, and a replay reads it after it was dropped (fault K2)."""
    held = SimpleNamespace(bias=torch.full((64,), 3.0, device="cuda"))
    runtime, receipt = captured(lambda x: x + held.bias, policy={"staleness": "off"})
    assert ["step closure held.bias"] == [external.path for external in receipt.undeclared()]
    del held.bias
    gc.collect()
    for _ in range(8):
        torch.full((64,), 9.0, device="cuda")
    assert [3.0] * 64 == runtime(x=torch.zeros(1, 64))[0].tolist()


def test_a_compiled_step_is_opaque_and_stays_compiled():
    """Compiled by Inductor: told as opaque with the weight that it is handed; it runs in the capture and after."""
    weight = torch.randn(64, 64, device="cuda")
    compiled = torch.compile(lambda x: torch.relu(x @ weight) + 1)
    runtime, receipt = captured(lambda x, weight: compiled(x), inputs=compiled_inputs(weight))
    assert ["compiled region"] == [each.kind for each in receipt.opaque], receipt.table(160)
    paths = {external.path for external in receipt.externals}
    assert {"buffer x", "fixed weight"} <= paths, receipt.table(160)
    assert [] == list(receipt.undeclared()), receipt.table(160)
    x, runs = torch.randn(2, 64, device="cuda"), []
    with torch.inference_mode(), compiled_regions(lambda _, call, __: (runs.append(1), call())[1]):
        expected = compiled(x)
    assert [1] == runs, "the step is no longer compiled"
    torch.testing.assert_close(runtime(x=x), expected)


def compiled_inputs(weight):
    """Rows, and a weight that the compiled region takes from its closure."""
    return {"x": Rows(torch.float32, shape=(64,), pad=0), "weight": Fixed(weight)}


def test_a_triton_kernel_is_opaque_with_what_it_was_handed():
    """Launched by hand: its state by name, its number as baked, its kernel among the graph's."""
    pytest.importorskip("triton")
    from tests.gpu.triton_kernels import add_number

    total = torch.zeros(64, device="cuda")

    def step(x):
        add_number[(1,)](total, 64, 2.5, block=64)
        return x + total

    _, receipt = captured(step, state={"total": State(total, restore=True)})
    told = receipt.table(160)
    assert [("Triton kernel", "add_number")] == [(each.kind, each.name) for each in receipt.opaque], told
    handed = {each.argument: str(each) for each in receipt.baked if each.operator == "Triton kernel add_number"}
    assert ("2.5", "64") == (handed.get("number"), handed.get("block")), told
    assert "state total" in {external.path for external in receipt.externals}, told
    assert any("add_number" in kernel.name for kernel in receipt.kernels), told
    assert [] == list(receipt.undeclared()), told


def test_a_probe_finds_a_grid_that_no_argument_shows(cuda):
    """Python that launches otherwise under another context: the kernels' grids differ (fault C10)."""
    plan = SimpleNamespace(splits=1)

    def step(x):
        return x + torch.ones(plan.splits * 4096, device=x.device).sum() * 0

    def with_splits(splits):
        @contextmanager
        def planned():
            before, plan.splits = plan.splits, splits
            yield
            plan.splits = before

        return planned

    runtime, _ = captured(step)
    slot = runtime.slots["default", 2]
    before = runtime.snapshot()["memory"]["pooled"]
    probe = probe_constants(runtime._parts.capturer, slot.batch, (with_splits(1), with_splits(64)))
    assert [("[4096]", "[262144]")] == [(each.first, each.second) for each in probe.constants], probe.table(160)
    assert "kernels" in {each.part for each in probe.others}, probe.table(160)
    assert before == runtime.snapshot()["memory"]["pooled"]
    assert probe_constants(runtime._parts.capturer, slot.batch).clean
