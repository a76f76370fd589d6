"""Random numbers of the device: its default generator, and `torch.Generator(device="cuda")`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch

from tsgraph.backends.emulated.dispatcher import unseen_by_functions, unseen_by_operators
from tsgraph.backends.emulated.refusal import refuse
from tsgraph.backends.emulated.streams import is_current_stream_capturing
from tsgraph.testing.cuda.places import DEVICE, place_of
from tsgraph.testing.cuda.refusals import not_emulated

_CPU_GENERATOR = torch.Generator
_RECORDED = "the device's numbers are being recorded"
_ANOTHER = f"{_RECORDED}, and no other seed may be set than the generator has"
_BEFORE = "seed before the recording, or before a replay"
_APART = 0x5DEECE66D  # any number: it keeps the device's numbers from being the host's


class _AnyGenerator(type(_CPU_GENERATOR)):  # type: ignore[misc]  # the class of torch's own class
    """Makes every generator of torch an instance, as it was before the emulation."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _CPU_GENERATOR)


class Generator(_CPU_GENERATOR, metaclass=_AnyGenerator):
    """`torch.Generator`, which may be the device's. The numbers are those of a CPU generator in either case."""

    _on_device: bool
    _seed: int

    def __new__(cls, device: Any = "cpu") -> Self:
        """A generator of the device or of the host."""
        on_device = place_of(device) == "device"
        generator = super().__new__(cls, "cpu" if on_device else device)  # type: ignore[call-arg]  # not in the stubs
        generator._on_device, generator._seed = on_device, super().initial_seed(generator)
        return generator

    def __init__(self, device: Any = "cpu") -> None:
        """Made by `__new__`, as torch's are."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's is a plain attribute to its stubs
        """cuda:0 for a generator of the device."""
        return DEVICE if self._on_device else super().device

    def manual_seed(self, seed: int) -> Generator:
        """Begin anew from `seed`. On the device it leads to other numbers than on the host, as with CUDA.

        In a capture it may only be the seed that it has, and nothing begins anew.

        Raises: CaptureUnsupported for another one in a capture.
        """
        if self._is_captured:
            if seed != self._seed and _raw(seed) != super().initial_seed():
                raise refuse("torch.Generator.manual_seed", _ANOTHER, _BEFORE)
            return self
        super().manual_seed(_raw(seed) if self._on_device else seed)
        self._seed = seed
        return self

    def seed(self) -> int:
        """Begin anew from a number that nobody knows, and return it. Raises: CaptureUnsupported in a capture."""
        if self._is_captured:
            raise refuse("torch.Generator.seed", _RECORDED, _BEFORE)
        self._seed = super().seed()
        return self._seed

    def initial_seed(self) -> int:
        """The number that it was last seeded with."""
        return self._seed

    def set_state(self, new_state: torch.Tensor) -> Generator:
        """Go on from `new_state`. Raises: CaptureUnsupported in a capture for one of another seed."""
        if self._is_captured:
            given = _CPU_GENERATOR()
            given.set_state(new_state)
            if given.initial_seed() != super().initial_seed():
                raise refuse("torch.Generator.set_state", _ANOTHER, _BEFORE)
        super().set_state(new_state)
        return self

    @property
    def _is_captured(self) -> bool:
        return self._on_device and is_current_stream_capturing()

    def clone_state(self) -> Generator:
        """Another generator that goes on as this one would."""
        clone = type(self)(self.device)
        clone.set_state(self.get_state())
        clone._seed = self._seed  # noqa: SLF001 - of the same class
        return clone

    def graphsafe_get_state(self) -> Generator:
        """Raises: NotEmulated."""
        raise not_emulated("torch.Generator.graphsafe_get_state", "the state of a CPU generator has no handle")

    def graphsafe_set_state(self, state: Any) -> Generator:
        """Raises: NotEmulated."""
        raise not_emulated("torch.Generator.graphsafe_set_state", "the state of a CPU generator has no handle")


def _raw(seed: int) -> int:
    """The seed of the CPU generator whose numbers are those of the device's with `seed`."""
    return (seed ^ _APART) % 2**63


def is_on_device(generator: object) -> bool:
    """Whether it is a generator of the device."""
    return type(generator) is Generator and generator.device == DEVICE


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """What the block draws from torch's default generator is drawn from `generator` instead."""
    default = torch.default_generator
    with unseen_by_functions(), unseen_by_operators():
        host = default.get_state()
        default.set_state(generator.get_state())
    try:
        yield
    finally:
        with unseen_by_functions(), unseen_by_operators():
            generator.set_state(default.get_state())
            default.set_state(host)
