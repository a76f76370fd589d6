"""Whose memory an address is: what a refusal and a receipt call a tensor that they find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
import torch

from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import State


@attrs.frozen
class Owner:
    """What a range of addresses belongs to: `kind` and dotted `name`, and whether a warm-up may write there."""

    kind: str
    name: str
    start: int
    stop: int
    writable: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Owners:
    """Storage address → owner: static buffers, states, tensors by name, and what modules hold.

    `written`: memory of collaborators that steps write, on device or host.

    Memory is known by its storage: a view of a declared tensor's storage is declared with it. It holds no tensor of a
    module; `refresh` reads addresses again, since modules make and move tensors.
    """

    def __init__(
        self,
        arena: Arena,
        states: Mapping[str, State],
        modules: Sequence[torch.nn.Module] = (),
        fixed: Mapping[str, torch.Tensor] | None = None,
        written: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self._arena, self._states, self._modules, self._fixed = arena, states, modules, fixed or {}
        self._written = written or {}
        self._by_storage: dict[int, list[Owner]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read every address anew."""
        self._by_storage = {}
        for name, tensor in self._arena.tensors().items():
            self._add("buffer", name, tensor, writable=True)
        for name, state in self._states.items():
            self._add("state", name, state.tensor, writable=True)
        for name, tensor in self._fixed.items():
            self._add("fixed", name, tensor, writable=False)
        for name, tensor in self._written.items():
            self._add("memory", name, tensor, writable=True)
        for kind, name, tensor in _module_tensors(self._modules):
            self._add(kind, name, tensor, writable=False)

    def _add(self, kind: str, name: str, tensor: torch.Tensor, *, writable: bool) -> None:
        storage = storage_address(tensor)
        if storage:
            start = tensor.data_ptr()
            owner = Owner(kind, name, start, start + tensor.numel() * tensor.element_size(), writable)
            self._by_storage.setdefault(storage, []).append(owner)

    def find(self, tensor: torch.Tensor) -> Owner | None:
        """The owner of the memory that `tensor` starts in, or of its storage; None where nobody declared it."""
        owners = self._by_storage.get(storage_address(tensor), [])
        at = tensor.data_ptr() if owners else 0
        return next((owner for owner in owners if owner.start <= at < owner.stop), owners[0] if owners else None)

    def may_write(self, tensor: torch.Tensor) -> bool:
        """Whether the storage of `tensor` is a declared buffer's or state's."""
        return any(owner.writable for owner in self._by_storage.get(storage_address(tensor), ()))


def storage_address(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage; 0 for one without memory (empty, sparse, meta, fake)."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return 0


def _module_tensors(modules: Sequence[torch.nn.Module]) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Parameters, buffers and plain tensor attributes, by dotted path; with several modules, after `modules[i]`."""
    for index, module in enumerate(modules):
        prefix = f"modules[{index}]." if len(modules) > 1 else ""
        yield from (("parameter", prefix + name, tensor) for name, tensor in module.named_parameters())
        yield from (("module buffer", prefix + name, tensor) for name, tensor in module.named_buffers())
        for path, part in module.named_modules():
            inner = f"{prefix}{path}." if path else prefix
            held = {name: value for name, value in vars(part).items() if isinstance(value, torch.Tensor)}
            yield from (("attribute", inner + name, tensor) for name, tensor in held.items())
