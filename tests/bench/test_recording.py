"""One recording, replayed with nothing around it."""

from __future__ import annotations

import torch

from tsgraph.backends.choice import choose_backend
from tsgraph.bench.host_only import HostOnlyBackend
from tsgraph.bench.recording import record_step
from tsgraph.testing import emulate


def test_replays_what_was_recorded(backend):
    """On the same memory, again and again."""
    x = backend.allocate((2,), torch.float32, 1)
    recorded = record_step(lambda: x * 2, backend)
    for value in (3.0, 4.0):
        x.fill_(value)
        recorded.replay()
        backend.synchronize()
        assert [2 * value] * 2 == recorded.returned.tolist()


def test_a_bare_replay_is_torch_s_own_on_cuda(monkeypatch):
    """Nothing of the backend's is between the caller and `CUDAGraph.replay`."""
    with emulate():
        monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda *_: [])
        backend = choose_backend("cuda", [], "cuda")
        x = backend.allocate((2,), torch.float32, 1)
        recorded = record_step(lambda: x + 1, backend)

        assert recorded.graph.graph.replay == recorded.replay
        monkeypatch.undo()


def test_a_graph_of_the_host_alone_does_nothing():
    """It is replayed as a CUDA graph is, and leaves memory as it was; its pool gets its memory back."""
    backend = HostOnlyBackend()
    x, pool = backend.allocate((2,), torch.float32, 1), backend.pool()
    recorded = record_step(lambda: x.add_(1), backend, pool)
    x.fill_(5)
    recorded.replay()
    recorded.graph.replay()

    assert [5, 5] == x.tolist()
    recorded.graph.release()
    assert 0 == recorded.graph.graph.recorded.bytes
