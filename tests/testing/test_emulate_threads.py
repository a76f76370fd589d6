"""What other threads may do during a capture: none may wait for the device, unless the capture's mode lets it."""

# ruff: noqa: PLW0108 - a lambda is a line of this file, to be blamed

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tsgraph.errors import CaptureUnsupported

pytestmark = pytest.mark.usefixtures("emulated")

WAITS = {
    "item": lambda x: x.sum().item(),
    "if": lambda x: 1 if x[0] > 0 else 2,
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "tolist": lambda x: x.tolist(),
    "repr": lambda x: repr(x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "copy": lambda x: x.copy_(torch.ones(4)),
    "copy back": lambda x: torch.ones(4).copy_(x),
    "upload": lambda x: torch.ones(4).to("cuda"),
    "data": lambda x: torch.tensor([1.0], device="cuda"),
    "inverse": lambda x: torch.linalg.inv(x.expand(4, 4) + torch.eye(4, device="cuda")),
}
GOES_ON = {
    "work": lambda x: x * 2 + 1,
    "in place": lambda x: x.add_(1),
    "factory": lambda x: torch.zeros(3, device="cuda"),
    "random": lambda x: torch.rand(3, device="cuda"),
    "view": lambda x: x.view(2, 2).t(),
    "facts": lambda x: (x.shape, x.is_cuda, x.element_size()),
    "host work": lambda x: torch.ones(3).sum().item(),
    "index": lambda x: x[torch.arange(2, device="cuda")],
    "product": lambda x: x.view(2, 2) @ x.view(2, 2),
}


@pytest.fixture
def source():
    """A tensor of the device."""
    return torch.ones(4, device="cuda")


def _beside(call, source, mode):
    """The graph that one thread captures while another makes the call."""
    graph = torch.cuda.CUDAGraph()
    with ThreadPoolExecutor(1) as pool, torch.cuda.graph(graph, capture_error_mode=mode):
        source * 2
        pool.submit(call, source).result()
    return graph


@pytest.mark.parametrize("call", WAITS.values(), ids=WAITS)
def test_a_global_capture_lets_no_thread_wait(source, call):
    """The call is refused where it is made, and the capture is invalid."""
    with pytest.raises(CaptureUnsupported, match="this recording is invalid") as caught:
        _beside(call, source, "global")

    assert "cudaErrorStreamCaptureUnsupported" == caught.value.__cause__.context["cuda"]
    assert "test_emulate_threads.py" in str(caught.value.__cause__)


@pytest.mark.parametrize("call", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_other_captures_let_threads_wait(source, call, mode):
    """They forbid other threads nothing."""
    _beside(call, source, mode).replay()


@pytest.mark.parametrize("call", GOES_ON.values(), ids=GOES_ON)
def test_what_does_not_wait_goes_on(source, call):
    """Other work is done at once, on the device, and none of it is recorded."""
    graph = _beside(call, source, "global")

    assert ["aten.mul.Tensor"] == [node.operator for node in graph.emulated.nodes]


def test_a_pinned_copy_does_not_wait(source):
    """Without blocking, from pinned memory, into it, or to a tensor of its own."""
    page = torch.full((4,), 3.0).pin_memory()
    _beside(lambda x: x.copy_(page, non_blocking=True), source, "global")
    assert [3.0] * 4 == source.tolist()
    source.fill_(4)
    _beside(lambda x: page.copy_(x, non_blocking=True), source, "global")
    assert [4.0] * 4 == page.tolist()
    made = []
    _beside(lambda x: made.append(page.to("cuda", non_blocking=True)), source, "global")
    assert (True, [4.0] * 4) == (made[0].is_cuda, made[0].tolist())
