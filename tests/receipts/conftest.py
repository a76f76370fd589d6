"""Runtimes of one small step on the emulated device, quick to capture, and what they told their observers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import pytest
import torch

from tests.buffers.conftest import FakeBackend
from tsgraph import GraphRuntime, Rows
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import Field, State
from tsgraph.buffers.owners import Owners
from tsgraph.events import Event
from tsgraph.receipts.receipt import CaptureReceipt
from tsgraph.receipts.watch import Watch
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import Spec

QUICK = 'extends = "decode"\nname = "quick"\n[warmup]\nforwards = 1\n[policy]\nfreeze_gc = false\n'


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Everything alive is frozen once, so that collections have little to walk."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    """The decode contract with one warm-up, and no collection around captures."""
    file = tmp_path_factory.mktemp("specs") / "quick.toml"
    file.write_text(QUICK, encoding="utf-8")
    return load_spec(str(file))


@attrs.define(eq=False)
class Scene:
    """A backend, a runtime over it, and the warnings that were told."""

    backend: EmulatedBackend
    runtime: GraphRuntime
    events: list[Event]

    def receipt(self, size: int = 2) -> CaptureReceipt:
        """That of the slot of `size` rows."""
        receipt = self.runtime.slots["default", size].receipt
        assert receipt is not None, self.runtime.slots["default", size].cause
        return receipt

    @property
    def warnings(self) -> list[tuple[str, Any]]:
        """The warnings: name, and the tensor or the operator that it is about."""
        told = [event for event in self.events if event.severity == "warning"]
        return [(event.name, event.fields.get("tensor", event.fields.get("operator"))) for event in told]


@pytest.fixture
def backend() -> EmulatedBackend:
    """A fresh emulated device."""
    return EmulatedBackend()


@pytest.fixture
def on_device(backend: EmulatedBackend) -> Callable[..., torch.Tensor]:
    """Puts a tensor on the device."""

    def put(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        tensor = torch.tensor(values, dtype=dtype)
        backend.adopt([tensor])
        return tensor

    return put


@pytest.fixture
def scene(backend: EmulatedBackend, quick: Spec) -> Callable[..., Scene]:
    """Makes a runtime of a step over rows `x`, float32, and captures it unless told otherwise."""

    def make(
        step: Callable[..., Any], *, sizes: Sequence[int] = (2,), capture: bool = True, policy: Any = None, **rest: Any
    ) -> Scene:
        events: list[Event] = []
        options = {"inputs": {"x": Rows(torch.float32, pad=0)}, "outputs": "request", "spec": quick, **rest}
        words = {"policy": policy} if policy else {}
        runtime = GraphRuntime.for_step(
            step, sizes=sizes, backend=backend, observers=[events.append], **options, **words
        )
        if capture:
            runtime.capture()
        return Scene(backend, runtime, events)

    return make


class FakePool:
    """A pool that holds the memory of some tensors, and no bytes."""

    bytes = 0

    def __init__(self, *held: torch.Tensor) -> None:
        self.addresses = {tensor.data_ptr() for tensor in held}

    def holds(self, address: int) -> bool:
        return address in self.addresses


@pytest.fixture
def pool_of() -> type[FakePool]:
    """The class of fake pools."""
    return FakePool


@pytest.fixture
def watch() -> Callable[..., Watch]:
    """Makes a watch on plain tensors, all of them on the device but `hosts`; states by name, and one buffer `ids`."""

    def make(
        *modules: torch.nn.Module,
        hosts: Sequence[torch.Tensor] = (),
        pool: Any = None,
        step: Any = None,
        **states: State,
    ) -> Watch:
        backend: Any = FakeBackend()
        backend.hosts = {tensor.data_ptr() for tensor in hosts}
        arena = Arena([Field(name="ids", dtype=torch.int64, per="request", pad=0)], 4, backend)
        return Watch(Owners(arena, states, modules, step=step), backend, pool or FakePool())

    return make
