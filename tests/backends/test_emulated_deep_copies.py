"""`copy.deepcopy` in a recording: a copy of the storage, recorded like any other."""

from __future__ import annotations

import copy

import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend


@pytest.fixture
def x(backend: EmulatedBackend) -> torch.Tensor:
    """Numbers on the device."""
    x = backend.allocate((2, 3), torch.float32, 0)
    x.copy_(torch.arange(6.0).reshape(2, 3))
    return x


def test_a_replay_copies_anew(backend: EmulatedBackend, x: torch.Tensor) -> None:
    """The copy is memory of the device that each replay fills from the original; what is done with it stays there."""
    with torch.no_grad(), backend.record(backend.pool()) as graph:
        made = copy.deepcopy(x)
        made.add_(1)
    x.fill_(5)
    graph.replay()

    assert (True, [[6.0] * 3] * 2, [[5.0] * 3] * 2) == (backend.holds(made), made.tolist(), x.tolist())


def test_views_share_the_copy(backend: EmulatedBackend, x: torch.Tensor) -> None:
    """Two tensors on one storage stay on one storage, with their strides, dtypes and attributes."""
    x.note = "kept"  # type: ignore[attr-defined]  # of the test
    with torch.no_grad(), backend.record(backend.pool()) as graph:
        whole, column = copy.deepcopy((x, x[:, 1]))
        column.mul_(10)
    graph.replay()

    assert [[0.0, 10.0, 2.0], [3.0, 40.0, 5.0]] == whole.tolist()
    assert ("kept", (3,), x.dtype) == (vars(whole)["note"], column.stride(), column.dtype)
    assert 1 == sum(node.operator == "aten.clone.default" for node in graph.nodes)


def test_host_tensors_are_copied_at_once(backend: EmulatedBackend) -> None:
    """They are none of the recording's business."""
    host = torch.ones(2)
    with backend.record(backend.pool()) as graph:
        made = copy.deepcopy(host)

    assert ([1.0, 1.0], 0) == (made.tolist(), len(graph.nodes))
