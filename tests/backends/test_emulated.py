"""The emulated backend as a `Backend`: memory, residence, pools, graphs and the state that it leaves behind."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.errors import BadBatch, CaptureUnsupported, ReplayFailed
from tsgraph.protocols.backend import Backend


@pytest.fixture
def backend() -> EmulatedBackend:
    """A fresh one."""
    return EmulatedBackend()


def test_is_a_backend(backend: EmulatedBackend) -> None:
    """It has every member of the protocol, and says which device its buffers live on."""
    protocol: Backend = backend
    members = {name for name in vars(Backend) if not name.startswith("_")}
    assert members <= set(dir(protocol))
    assert ("emulated", torch.device("cpu")) == (protocol.name, protocol.device)


class TestMemory:
    def test_allocates_filled_device_tensors(self, backend: EmulatedBackend) -> None:
        """An allocated tensor holds its fill everywhere and lives on the device."""
        tensor = backend.allocate((2, 3), torch.int32, -1)
        assert torch.equal(torch.full((2, 3), -1, dtype=torch.int32), tensor)
        assert backend.holds(tensor)

    def test_buffers_are_normal_tensors_under_inference_mode(self, backend: EmulatedBackend) -> None:
        """A buffer made under inference mode may be written outside it (fault R3)."""
        with torch.inference_mode():
            tensors = [backend.allocate((2,), torch.float32, 0), backend.pin((2,), torch.float32)]
        assert [False, False] == [tensor.is_inference() for tensor in tensors]

    def test_pinned_memory_is_zeroed_host_memory(self, backend: EmulatedBackend) -> None:
        """A pinned tensor is zeroed, and not on the device."""
        tensor = backend.pin((3,), torch.float32)
        assert [0, 0, 0] == tensor.tolist()
        assert not backend.holds(tensor)

    def test_views_live_where_their_memory_does(self, backend: EmulatedBackend) -> None:
        """Slices, transposes and detached tensors share residence; copies do not, nor do host tensors."""
        tensor, host = backend.allocate((2, 3), torch.float32, 0), torch.zeros(2, 3)
        assert all(backend.holds(view) for view in (tensor[1:], tensor.t(), tensor.detach(), tensor.view(-1)))
        assert not any(backend.holds(other) for other in (tensor.clone(), host, host[0]))

    def test_residence_follows_the_memory_not_the_object(self, backend: EmulatedBackend) -> None:
        """A tensor that is moved to other memory takes the residence of that memory (fault F2)."""
        tensor, host = backend.allocate((2,), torch.float32, 0), torch.zeros(2)
        tensor.data = host
        assert not backend.holds(tensor)

    def test_adopts_parameters_and_their_views(self, backend: EmulatedBackend) -> None:
        """An adopted parameter and its views live on the device."""
        weight = torch.nn.Linear(2, 3).weight
        backend.adopt([weight])
        assert backend.holds(weight)
        assert backend.holds(weight.data[0])

    def test_adopting_keeps_nothing_alive(self, backend: EmulatedBackend) -> None:
        """Adopted memory is freed with its last tensor, and counts no more."""
        before = backend.memory().allocated
        tensor = torch.zeros(1000)
        backend.adopt([tensor])
        assert before + 4000 == backend.memory().allocated
        gone = weakref.ref(tensor)
        del tensor
        assert gone() is None
        assert before == backend.memory().allocated

    def test_is_not_fooled_by_reused_addresses(self, backend: EmulatedBackend) -> None:
        """Memory that takes the place of dead device memory is host memory."""
        for _ in range(2000):
            backend.adopt([torch.empty(16)])
            assert not backend.holds(torch.empty(16))

    @pytest.mark.parametrize(
        "tensor", [torch.eye(2).to_sparse(), torch.empty(2, device="meta")], ids=["sparse", "another device"]
    )
    def test_refuses_to_adopt_what_cannot_live_there(self, backend: EmulatedBackend, tensor: torch.Tensor) -> None:
        """Sparse and foreign tensors are refused by their place in the list, and nothing is adopted."""
        plain = torch.zeros(2)
        with pytest.raises(BadBatch, match="tensor 1, a Tensor"):
            backend.adopt([plain, tensor])
        assert not backend.holds(plain)

    def test_tells_the_bytes_of_machine_device_and_pools(self, backend: EmulatedBackend) -> None:
        """Free and total are of the machine; allocated counts what the user has, pooled the segments of the pools."""
        held = backend.allocate((256,), torch.float32, 0)
        pool = backend.pool()
        with backend.record(pool) as graph:
            out = held.add(1).mul(2)
        memory = backend.memory()
        assert 0 < memory.free <= memory.total
        assert (2048, 2 << 20) == (memory.allocated, memory.pooled)
        graph.release()
        assert (2048, 2 << 20) == (backend.memory().allocated, backend.memory().pooled)
        del out
        assert (1024, 0) == (backend.memory().allocated, backend.memory().pooled)


class TestPoolsAndGraphs:
    def test_a_recording_grows_its_pool_by_what_is_not_there_yet(self, backend: EmulatedBackend) -> None:
        """The first recording brings a segment, which the next shares, and the last to be released gives back."""
        x, pool = backend.allocate((8,), torch.float32, 0), backend.pool()
        graphs = []
        y = x
        for terms in (1, 3):
            with backend.record(pool) as graph:
                for _ in range(terms):
                    y = y + 1
            graphs.append(graph)
        assert [2 << 20, 0] == [graph.bytes for graph in graphs]
        assert 2 << 20 == pool.bytes
        del y
        graphs[0].release()
        graphs[0].release()
        assert (2 << 20, 0) == (pool.bytes, graphs[0].bytes)
        graphs[1].release()
        assert 0 == pool.bytes

    def test_a_dropped_graph_gives_its_share_back(self, backend: EmulatedBackend) -> None:
        """A graph that nobody holds any more counts no longer."""
        x, pool = backend.allocate((8,), torch.float32, 0), backend.pool()
        with backend.record(pool) as graph:
            x.add(1)
        del graph
        assert 0 == pool.bytes

    def test_release_frees_memory_at_once(self, backend: EmulatedBackend) -> None:
        """Nothing of a released recording waits for the garbage collector."""
        x, pool = backend.allocate((8,), torch.float32, 0), backend.pool()
        gc.disable()
        try:
            with backend.record(pool) as graph:
                out = x + 1
            (segment,) = pool._allocator._segments.values()
            gone = weakref.ref(segment.memory.base)
            del out, segment
            assert gone() is not None
            graph.release()
            assert gone() is None
        finally:
            gc.enable()

    def test_a_released_graph_does_not_replay(self, backend: EmulatedBackend) -> None:
        """The error says which state the graph is in."""
        x = backend.allocate((2,), torch.float32, 0)
        with backend.record(backend.pool()) as graph:
            x.add_(1)
        graph.release()
        with pytest.raises(ReplayFailed, match="released"):
            graph.replay()
        assert [0, 0] == x.tolist()

    def test_refuses_the_pool_of_another_backend(self, backend: EmulatedBackend) -> None:
        """A stranger's pool is refused before anything is recorded."""
        with pytest.raises(BadBatch, match="another backend"):
            backend.record(object())  # type: ignore[arg-type]

    def test_nodes_tell_operator_line_and_shapes(self, backend: EmulatedBackend) -> None:
        """What was recorded can be read: each operation, the line that made it, its outputs."""
        x = backend.allocate((2, 3), torch.float32, 0)
        with backend.record(backend.pool()) as graph:
            x.t().matmul(x)
            x.topk(2)
        assert ["aten.mm.default", "aten.topk.default"] == [node.operator for node in graph.nodes]
        assert [((3, 3),), ((2, 2), (2, 2))] == [node.shapes for node in graph.nodes]
        assert all(__file__ in node.line for node in graph.nodes)


class TestStreams:
    def test_nothing_is_ever_queued(self, backend: EmulatedBackend) -> None:
        """A side stream runs its block at once; marks are done; there is nothing to wait for or to trim."""
        ran = []
        with backend.side_stream():
            ran.append(1)
        ready = backend.ready()
        ready.wait()
        backend.synchronize()
        backend.trim()
        assert ready.done()
        assert [1] == ran

    def test_other_threads_are_not_recorded(self, backend: EmulatedBackend) -> None:
        """A thread computes as ever while another records, also on device tensors (fault N1)."""
        x, results = backend.allocate((2,), torch.float32, 1), []
        with backend.record(backend.pool()) as graph:
            thread = threading.Thread(target=lambda: results.append((x + 1).tolist()))
            thread.start()
            thread.join()
        assert [[2, 2]] == results
        assert () == graph.nodes


class TestInsideARecording:
    @pytest.mark.parametrize(
        "forbidden",
        ["record", "replay", "release", "synchronize", "allocate", "pin"],
    )
    def test_refuses_what_a_capturing_stream_refuses(self, backend: EmulatedBackend, forbidden: str) -> None:
        """Recordings do not nest (fault R1), and nothing else of the device's life happens inside one."""
        x, pool = backend.allocate((2,), torch.float32, 0), backend.pool()
        with backend.record(pool) as inner:
            x.add_(1)

        def nest() -> None:
            with backend.record(pool):
                pass

        actions = {
            "record": nest,
            "replay": inner.replay,
            "release": inner.release,
            "synchronize": backend.synchronize,
            "allocate": lambda: backend.allocate((2,), torch.float32, 0),
            "pin": lambda: backend.pin((2,), torch.float32),
        }
        refused = pytest.raises(CaptureUnsupported, match=r"test_emulated\.py:\d+: not inside a recording")
        with refused, backend.record(pool):
            actions[forbidden]()
        assert 0 == pool.bytes
        inner.replay()
        assert [1, 1] == x.tolist()

    def test_a_graph_is_not_replayable_before_its_recording_ends(self, backend: EmulatedBackend) -> None:
        """Its own replay inside the block is refused too."""
        with pytest.raises(CaptureUnsupported, match="a replay"), backend.record(backend.pool()) as graph:
            graph.replay()
        with pytest.raises(ReplayFailed, match="failed"):
            graph.replay()


class TestFailures:
    def test_leaves_everything_as_it_was(self, backend: EmulatedBackend) -> None:
        """After a failure: random numbers, modes, pool and registry are as before (faults L2, L3, L4)."""
        x, pool = backend.allocate((1000,), torch.float32, 0), backend.pool()
        numbers, allocated = torch.get_rng_state(), backend.memory().allocated
        leaked = []

        def step() -> None:
            leaked.append(x + torch.rand(1000, device=x.device) * torch.rand(()))
            raise ZeroDivisionError

        for _ in range(3):
            with pytest.raises(ZeroDivisionError), torch.no_grad(), backend.record(pool):
                step()
        assert torch.equal(numbers, torch.get_rng_state())
        assert allocated == backend.memory().allocated
        assert (0, 0) == (pool.bytes, torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack())
        assert not any(map(backend.holds, leaked))

    def test_the_next_recording_works(self, backend: EmulatedBackend) -> None:
        """A failure disables nothing: eager work and a fresh recording go on as ever."""
        x, pool = backend.allocate((2,), torch.float32, 1), backend.pool()
        with pytest.raises(CaptureUnsupported), backend.record(pool):
            x.sum().item()
        assert 2.0 == x.sum().item()
        with backend.record(pool) as graph:
            out = x + 1
        graph.replay()
        assert [2, 2] == out.tolist()

    def test_the_memory_of_a_failed_recording_is_freed(self, backend: EmulatedBackend) -> None:
        """Nothing holds the poisoned outputs once the error is handled."""
        x, outputs = backend.allocate((8,), torch.float32, 0), []

        def step() -> None:
            outputs.append(weakref.ref((x + 1).untyped_storage()))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), backend.record(backend.pool()):
            step()
        gc.collect()
        assert outputs[0]() is None

    def test_an_error_of_shapes_is_torchs_own(self, backend: EmulatedBackend) -> None:
        """A step that would fail eagerly fails alike while it is recorded."""
        x = backend.allocate((2, 3), torch.float32, 0)
        with pytest.raises(RuntimeError, match="broadcast") as caught, backend.record(backend.pool()):
            x + x.t()
        assert not isinstance(caught.value, CaptureUnsupported)

    def test_a_failing_replay_names_the_operation_and_its_line(self, backend: EmulatedBackend) -> None:
        """An index out of range is found at replay, as on a GPU (fault B3), and blamed on the step's line."""
        table, index = backend.allocate((4,), torch.float32, 0), backend.allocate((2,), torch.int64, 0)
        with backend.record(backend.pool()) as graph:
            table * 2
            table[index]
        index.fill_(-4886055425978319163)
        with pytest.raises(ReplayFailed, match=r"aten\.index\.Tensor at .*test_emulated\.py:\d+: index .* bounds"):
            graph.replay()
        index.fill_(1)
        graph.replay()
