"""What a call costs beside time."""

from __future__ import annotations

import torch

from tsgraph.bench import costs


def test_counts_only_what_puts_work_on_a_stream():
    """Kernels, copies, fills and graphs count; waits and questions do not, nor do operators."""
    events = [("cudaLaunchKernel", 40), ("cudaGraphLaunch", 20), ("cuLaunchKernelEx", 20), ("cudaMemcpyAsync", 60)]
    others = [("cudaDeviceSynchronize", 1), ("cudaStreamIsCapturing", 9), ("aten::copy_", 80), ("cudaEventRecord", 3)]

    expected = {"cudaLaunchKernel": 2, "cudaGraphLaunch": 1, "cuLaunchKernelEx": 1, "cudaMemcpyAsync": 3}
    assert expected == costs.count_launches([*events, *others], calls=20)


def test_counts_operators_that_make_tensors_views_included():
    """A view and a result are made; what is written in place was there; what an operator makes inside is its own."""
    x = torch.zeros(4)

    assert 0 == costs.tensors_made(lambda: x.fill_(1))
    assert 0 == costs.tensors_made(lambda: x.copy_(x))
    assert 1 == costs.tensors_made(lambda: x[:2])
    assert 2 == costs.tensors_made(lambda: x[:2] + 1)
    assert 1 == costs.tensors_made(lambda: torch.nn.functional.pad(x, (0, 3)))
    assert 1 == costs.tensors_made(lambda: x.split([1, 1, 2])[0].add_(1))


def test_counts_python_memory_that_is_kept():
    """A call that keeps an object keeps its blocks; one that drops what it makes keeps none."""
    kept: list[object] = []

    assert costs.blocks_kept(lambda: kept.append([1, 2, 3])) >= 1
    assert costs.blocks_kept(lambda: [1, 2, 3]) < 0.1


def test_says_nothing_of_launches_without_a_device(monkeypatch):
    """There is no number rather than a wrong one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert (None, None) == (costs.launches(print), costs.device_allocations(print))
