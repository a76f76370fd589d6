"""What tests of the emulated backend share: a backend, a static input, and a way to record a step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.graph import EmulatedGraph

Record = Callable[[Callable[[], object]], EmulatedGraph]


@pytest.fixture
def backend() -> EmulatedBackend:
    """A fresh one."""
    return EmulatedBackend()


@pytest.fixture
def x(backend: EmulatedBackend) -> torch.Tensor:
    """A static input of four ones."""
    return backend.allocate((4,), torch.float32, 1)


@pytest.fixture
def record(backend: EmulatedBackend) -> Record:
    """Records a function into a pool of its own."""

    def record(step: Callable[[], object]) -> EmulatedGraph:
        with backend.record(backend.pool()) as graph:
            step()
        return graph

    return record
