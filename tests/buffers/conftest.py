"""A device of plain CPU tensors, and short ways to the parts under test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import pytest
import torch

from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import Field
from tsgraph.protocols.backend import Backend, Memory


class FakeBackend:
    """What buffers need of a backend. Every tensor is on the device but those named in `hosts`, by address."""

    name = "fake"
    device = torch.device("cpu")

    def __init__(self, free: int = 1 << 40) -> None:
        self.free, self.hosts, self.synchronized = free, set[int](), 0

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, fill: float) -> torch.Tensor:
        return torch.full(tuple(shape), fill, dtype=dtype)

    def pin(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        """All live there already."""

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() not in self.hosts

    def synchronize(self) -> None:
        self.synchronized += 1

    def memory(self) -> Memory:
        return Memory(free=self.free, total=self.free, allocated=0, pooled=0)


# Session-wide and stateless, so that hypothesis may use them for every example.


@pytest.fixture(scope="session")
def fake_backend() -> type[FakeBackend]:
    """The class of fake devices."""
    return FakeBackend


@pytest.fixture(scope="session")
def field() -> Callable[..., Field]:
    """Makes a field: one int64 number per request with pad 0, unless told otherwise."""

    def make(name: str, **rest: Any) -> Field:
        return Field(**{"name": name, "dtype": torch.int64, "per": "request", "pad": 0, **rest})

    return make


@pytest.fixture(scope="session")
def arena_of() -> Callable[..., Arena]:
    """Makes an arena of some fields, for 4 rows on a fake device unless told otherwise."""

    def make(*fields: Field, rows: int = 4, backend: Any = None, memory: Any = None) -> Arena:
        return Arena(fields, rows, backend or cast("Backend", FakeBackend()), memory)

    return make


@pytest.fixture(scope="session")
def contents() -> Callable[[Arena], dict[str, bytes]]:
    """Reads all bytes of an arena, by label: NaN equals itself so."""

    def read(arena: Arena) -> dict[str, bytes]:
        return {label: bytes_of(tensor) for label, tensor in arena.tensors().items()}

    return read


def bytes_of(tensor: torch.Tensor) -> bytes:
    """All of a tensor's bytes."""
    return bytes(tensor.detach().clone().untyped_storage())
