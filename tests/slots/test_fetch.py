"""Outputs on their way to the host: a handle that waits (fault D5)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from tsgraph.backends.choice import choose_backend
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.buffers.contract import Rows
from tsgraph.errors import HostFunctionFailed
from tsgraph.runtime import GraphRuntime
from tsgraph.slots.fetch import fetch


@attrs.define
class Late:
    """A mark of a device that does its work, `copies`, only when somebody waits."""

    copies: list[tuple[torch.Tensor, torch.Tensor]]

    def wait(self) -> None:
        for there, value in self.copies:
            there.copy_(value)

    def done(self) -> bool:
        return False


class Lagging(EmulatedBackend):
    """Pinned memory holds what an earlier step left there until somebody waits for the copy."""

    pinned: torch.Tensor

    def pin(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        self.pinned = super().pin(shape, dtype)
        return self.pinned

    def ready(self) -> Any:
        arrived = self.pinned.clone()
        self.pinned.fill_(-1)
        return Late([(self.pinned, arrived)])


def test_the_result_is_there_once_it_is_asked_for():
    """D5: read at once, host memory would hold the count of the step before; the handle waits."""
    fetched = fetch({"accepted": torch.tensor([3, 1])}, Lagging())
    assert not fetched.done()
    assert [3, 1] == fetched.result()["accepted"].tolist()


def test_it_keeps_structure_and_leaves_that_are_no_tensors():
    """Any pytree; copies are the caller's own, in pinned memory."""
    backend, given = EmulatedBackend(), torch.tensor([1.0], requires_grad=True)
    fetched = fetch([{"a": given}, None, 7], backend)
    (copies, nothing, number) = fetched.result()
    assert (None, 7) == (nothing, number)
    with torch.no_grad():
        given.fill_(5)
    assert ([1.0], False) == (copies["a"].tolist(), copies["a"].requires_grad)


def test_a_failed_step_is_told_before_its_results():
    """What the step's host functions raised comes out of `result`, not out of whoever reads the numbers."""
    runtime: Any = None

    def step(ids: torch.Tensor) -> torch.Tensor:
        runtime.backend.host_function(fails)
        return ids + 1

    def fails() -> None:
        raise ValueError("planted")

    inputs = {"ids": Rows(torch.int64, pad=0)}
    runtime = GraphRuntime.for_step(step, inputs=inputs, sizes=(2,), outputs="request", backend="emulated")
    fetched = runtime.fetch(runtime.eager(ids=torch.tensor([1, 2])))
    with pytest.raises(HostFunctionFailed, match="planted"):
        fetched.result()


@pytest.mark.gpu
def test_the_copy_is_waited_for_on_a_device():
    """Behind work that takes a while, the host has nothing yet; the result has it."""
    backend = choose_backend("cuda", [], "cuda")
    x = backend.allocate((4,), torch.int64, 1)
    torch.cuda._sleep(200_000_000)
    x.fill_(7)
    fetched = fetch(x, backend)
    assert not fetched.done()
    assert [7] * 4 == fetched.result().tolist()
