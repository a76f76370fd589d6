"""What stands between calls on a real device: memory of recordings in flight, and recordings that others make."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from tsgraph.buffers.contract import Rows
from tsgraph.errors import CaptureUnsupported, LeaseExpired
from tsgraph.runtime import GraphRuntime

pytestmark = pytest.mark.gpu

ROWS, WIDTH = 8, 1 << 20


def build(step, modules=(), **rest):
    """A captured runtime of one size over rows of one number."""
    runtime = GraphRuntime.for_step(
        step,
        inputs={"x": Rows(torch.float32, pad=0)},
        sizes=(ROWS,),
        outputs="request",
        modules=modules,
        device="cuda",
        observers=(),
        **rest,
    )
    assert () == runtime.capture().failed, [str(slot.cause) for slot in runtime.slots.values()]
    return runtime


class Weighted(nn.Module):
    """A step that reads a large weight, after the device has slept."""

    def __init__(self, cycles=0):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, device="cuda"), requires_grad=False)
        self.cycles = cycles

    def forward(self, x):
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        return x + self.weight.mean()


def test_a_replay_in_flight_reads_what_was_given_back():
    """What stale slots recorded is nobody else's before the replays of the current stream have read it."""
    model = Weighted(cycles=200_000_000)
    runtime, side = build(model, [model], policy={"staleness": "full"}), torch.cuda.Stream()
    x = torch.zeros(ROWS, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        runtime(x=x)
        torch.cuda.synchronize()
        began = time.perf_counter()
        out = runtime(x=x)  # sleeps on the side stream, then reads the old weight
        model.weight.data = torch.full((WIDTH,), 3.0, device="cuda")
        (change,) = runtime.check_addresses()
        launched = time.perf_counter() - began
    noise = [torch.full((WIDTH,), 100.0, device="cuda") for _ in range(4)]  # of the stream that made the weight
    torch.cuda.synchronize()
    assert "parameter weight" == change.path
    assert [1.0] * ROWS == out.tolist(), f"launched after {launched * 1e3:.1f} ms, with {len(noise)} blocks beside it"


def test_old_weights_are_given_back_when_they_are_found():
    """There are two of a weight that was rebound until the guard finds it; then there is one."""
    model = Weighted()
    runtime = build(model, [model], policy={"staleness": "full"})
    x = torch.zeros(ROWS, device="cuda")
    runtime(x=x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    model.weight.data = torch.full((WIDTH,), 3.0, device="cuda")
    assert before + 4 * WIDTH <= torch.cuda.memory_allocated()
    done = runtime.step(x=x)
    torch.cuda.synchronize()
    assert (True, [3.0] * ROWS) == (done.decision.eager, done.outputs.tolist())
    assert before + WIDTH > torch.cuda.memory_allocated()


@pytest.mark.parametrize("staging", ["auto", "launch", "copies"])
def test_a_step_inside_somebodys_capture_is_refused(staging):
    """Fault R1: nothing of it gets into the capture, which ends well and replays; the next step is served."""
    runtime = build(lambda x: x + 1, policy={"staging": staging})
    x, other = torch.arange(ROWS, dtype=torch.float32), torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        other.add_(1)
        with pytest.raises(CaptureUnsupported, match="while the current stream is being recorded"):
            runtime(x=x)
    graph.replay()
    assert [1.0] * 4 == other.tolist()
    assert (x + 1).tolist() == runtime(x=x).tolist()


def test_leases_on_the_device():
    """Outputs of a replay on the device expire with the next one; a copy to the host was in time, or is refused."""
    runtime = build(lambda x: x + 1, policy={"outputs": "leased"})
    x = torch.arange(ROWS, dtype=torch.float32, device="cuda")
    out = runtime(x=x)
    host = out.cpu()
    kept = runtime(x=out, clone=True)
    assert torch.Tensor is type(host)
    assert (host + 1).tolist() == kept.tolist()
    with pytest.raises(LeaseExpired):
        out.cpu()
