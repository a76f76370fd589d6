"""Host functions in the steps of a runtime: which step their errors belong to, and that others go on."""

import pytest
import torch

from tsgraph.buffers.contract import Rows
from tsgraph.errors import HostFunctionFailed
from tsgraph.runtime import GraphRuntime

IDS = torch.tensor([1, 2, 3])


class Masked:
    """A step that adds a mask, which a host function builds; it raises while `broken`, and then allows nothing."""

    def __init__(self, backend):
        self.backend, self.broken = backend, False
        self.mask = backend.pin((4,), torch.int64)

    def __call__(self, ids):
        self.backend.host_function(self.build, on_error=lambda: self.mask.fill_(-100))
        return ids + self.mask.to(ids.device, non_blocking=True)[: ids.shape[0]]

    def build(self):
        self.mask.fill_(10)
        if self.broken:
            raise ValueError("planted")


@pytest.fixture
def step(backend):
    """Such a step."""
    return Masked(backend)


@pytest.fixture
def runtime(backend, step):
    """A captured runtime of one size."""
    runtime = GraphRuntime.for_step(
        step, inputs={"ids": Rows(torch.int64, pad=0)}, sizes=(4,), outputs="request", backend=backend
    )
    runtime.capture()
    return runtime


@pytest.mark.parametrize("enabled", [True, False])
def test_the_mark_of_a_step_tells_of_its_host_functions(runtime, step, enabled):
    """Replayed or eager: that step alone, which has failed closed. The steps around it are served."""
    runtime.enabled = enabled
    outputs, told = [], []
    for step.broken in (False, True, False):
        served = runtime.step(ids=IDS)
        try:
            served.ready.wait()
            told.append("")
        except HostFunctionFailed as error:
            told.append(error.context["function"])
        outputs.append(served.outputs.tolist())
    assert [[11, 12, 13], [-99, -98, -97], [11, 12, 13]] == outputs
    assert ["", "Masked.build", ""] == told
    runtime.backend.synchronize()


def test_a_step_in_flight_is_told_by_its_own_mark(runtime, step):
    """The next step is launched before anybody asked: it is served, and the mark of the first still tells."""
    step.broken = True
    first = runtime.step(ids=IDS)
    while not first.ready.done():
        pass
    step.broken = False
    second = runtime.step(ids=IDS)
    with pytest.raises(HostFunctionFailed, match="planted"):
        first.ready.wait()
    second.ready.wait()
    assert [11, 12, 13] == second.outputs.tolist()


def test_a_warm_up_that_fails_fails_its_slot(backend, step):
    """Warm-ups run them, and wait: the slot fails with their error, and can be captured when it is mended."""
    step.broken = True
    runtime = GraphRuntime.for_step(
        step, inputs={"ids": Rows(torch.int64, pad=0)}, sizes=(4,), outputs="request", backend=backend
    )
    heard = []
    runtime.observe(heard.append)
    runtime.capture()
    (failed,) = [event for event in heard if event.name == "slot.failed"]
    assert failed.fields["error"].startswith("HostFunctionFailed")
    step.broken = False
    runtime.wake()
    assert [11, 12, 13] == runtime(ids=IDS).tolist()
