"""The memory of a recording's own: what made it, and what of it lives on.

None of it is held, so that the pool can use it again: only weakly, by references that are counted by hand. An object
for each, with its finalizer, costs more than all else that is noted of an operator's result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import torch
from torch.multiprocessing.reductions import StorageWeakRef

Facts = tuple[int, str, str, torch.Size, torch.dtype, bool]


@attrs.frozen(eq=False)
class Made:
    """Memory that was made while recording, and lives: by which operator, at which line, and what it was at first."""

    reference: StorageWeakRef
    operator: str
    line: str
    shape: torch.Size
    dtype: torch.dtype
    on_device: bool


class Inside:
    """What operators of a recording made, by storage address: of all that lay at one, the last.

    `facts` are those of a `Made` in its order, so the last one is whether it is on the device; the weak reference is a
    bare one.
    """

    def __init__(self) -> None:
        self.facts: dict[int, Facts] = {}
        self._free: Any = torch.UntypedStorage._free_weak_ref  # noqa: SLF001 - as StorageWeakRef does

    def add(self, tensor: torch.Tensor, address: int, operator: str, line: str, *, on_device: bool) -> None:
        """`operator` at `line` made the memory of `tensor`, whose storage is at `address`."""
        before = self.facts.get(address)
        if before is not None:
            self._free(before[0])
        weak: Any = tensor.untyped_storage()._weak_ref()  # noqa: SLF001 - likewise
        self.facts[address] = (weak, operator, line, tensor.shape, tensor.dtype, on_device)

    def get(self, address: int) -> Made | None:
        """What was made at `address`; None for memory from outside, and for what is no more."""
        if address not in self.facts:
            return None
        weak, operator, line, shape, dtype, on_device = self.facts[address]
        storage = torch.UntypedStorage._new_with_weak_ptr(weak)  # noqa: SLF001 - likewise
        return None if storage is None else Made(StorageWeakRef(storage), operator, line, shape, dtype, on_device)

    def living(self) -> Iterator[tuple[int, Made]]:
        """All that somebody still holds, with its address, in the order in which these were first used."""
        for address in self.facts:
            made = self.get(address)
            if made is not None:
                yield address, made

    def __del__(self) -> None:
        for weak, *_ in self.facts.values():
            self._free(weak)
