"""The tensors that launches hold: on the user's memory, but not counted as the user's.

A CUDA graph knows addresses. So that a launch keeps no block of a pool from being freed, its alias of one lies in a
storage of its own. Other memory belongs to torch, so there an alias is one more owner, and is counted: once there are
no more owners than aliases, the user has dropped it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

import attrs
import torch

from tsgraph.backends.blame import user_line
from tsgraph.backends.emulated.dispatcher import (
    makes_tensor,
    owners_of,
    storage_key,
    unseen_by_functions,
    unseen_by_operators,
)
from tsgraph.backends.emulated.memory import Lease, alias, lease_of, poison
from tsgraph.backends.emulated.operation import Operation
from tsgraph.backends.emulated.trees import describe
from tsgraph.errors import ReplayFailed

_OUTSIDE: WeakValueDictionary[int, Outside] = WeakValueDictionary()


@attrs.define(eq=False)
class Outside:
    """Memory of no pool that recordings use. `ours` of its owners are this object and the aliases."""

    storage: torch.UntypedStorage = attrs.field(repr=False)
    key: int
    ours: int = 1
    spoiled: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Outside:
        """That of `tensor`: one for all recordings."""
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        known = _OUTSIDE.get(key)
        if known is None:
            known = _OUTSIDE[key] = cls(storage, key)
        return known

    def gone(self) -> bool:
        """Whether the user has dropped it."""
        return owners_of(self.key) <= self.ours

    def spoil(self, dtype: torch.dtype) -> None:
        """Poison it, once."""
        if self.spoiled:
            return
        self.spoiled = True
        with unseen_by_functions(), unseen_by_operators():
            flat = torch.empty(0, dtype=dtype, device="cpu")
            poison(flat.set_(self.storage, 0, (self.storage.nbytes() // dtype.itemsize,), (1,)))


def is_dropped(key: int) -> bool:
    """Whether nothing but aliases is left of the storage of this key."""
    outside = _OUTSIDE.get(key)
    return outside is not None and outside.gone()


@attrs.frozen
class Input:
    """A tensor of `memory` that is not the recording's own, and the operation that used it first.

    `address` and `bytes` are of the memory; `on_device`: it is the device's, not the host's.
    """

    memory: Outside | Lease
    tensor: str
    dtype: torch.dtype
    operator: str
    line: str
    address: int
    bytes: int
    on_device: bool

    def refuse(self) -> ReplayFailed:
        """The error for a replay after it was dropped."""
        what = f"the tensor {self.tensor} that {self.operator} at {self.line} captured was freed"
        hint = "keep what a step works on as long as its graph; bring new values into it with copy_"
        return ReplayFailed(f"{what}: its memory may be anybody's", hint=hint, operation=self.operator, line=self.line)

    def spoil(self) -> None:
        """Let the memory hold what no result may be mistaken for; that of a pool holds what became of it."""
        if isinstance(self.memory, Outside):
            self.memory.spoil(self.dtype)


@attrs.define(eq=False)
class Holdings:
    """What a graph uses of the world outside of its own recording: its inputs, and how many aliases of which memory."""

    inputs: tuple[Input, ...] = ()
    counts: Counter[Outside] = attrs.field(factory=Counter)

    def check(self, *, checked: bool) -> None:
        """Raises: ReplayFailed (checked) for an input that the user dropped. Unchecked, it is poisoned."""
        for each in self.inputs:
            if each.memory.gone():
                if checked:
                    raise each.refuse()
                each.spoil()

    def drop(self) -> None:
        """Note that the aliases are no more."""
        for outside, count in self.counts.items():
            outside.ours -= count
        self.inputs, self.counts = (), Counter()


class Aliases:
    """Makes the aliases of one recording. `holds`: whether a tensor lives on the device, if anybody wants to know."""

    def __init__(self, holds: Callable[[torch.Tensor], bool] = lambda _: False) -> None:
        self._holds = holds
        self._own: set[Lease] = set()
        self._inputs: dict[Outside | Lease, Input] = {}
        self._counts: Counter[Outside] = Counter()

    @property
    def own(self) -> Iterable[Lease]:
        """The blocks that the recording took."""
        return self._own

    def take(self, tensor: torch.Tensor) -> None:
        """Note that the recording made `tensor`: it is no input."""
        lease = lease_of(tensor)
        if lease is not None:
            self._own.add(lease)

    def of(self, tensor: torch.Tensor, operation: Operation) -> torch.Tensor:
        """The same view of the same memory as `tensor`, wherever that is moved later, and without gradients."""
        lease = lease_of(tensor)
        memory = Outside.of(tensor) if lease is None else lease
        if memory not in self._own and memory not in self._inputs and _uses(operation, tensor):
            self._inputs[memory] = self._input(memory, tensor, operation)
        if isinstance(memory, Lease):
            return alias(tensor, memory)
        self._counts[memory] += 1
        memory.ours += 1
        return tensor.detach()

    def _input(self, memory: Outside | Lease, tensor: torch.Tensor, operation: Operation) -> Input:
        storage = tensor.untyped_storage()
        return Input(
            memory=memory,
            tensor=describe(tensor),
            dtype=tensor.dtype,
            operator=str(operation.operator),
            line=user_line(),
            address=storage.data_ptr(),
            bytes=storage.nbytes(),
            on_device=self._holds(tensor),
        )

    def end(self) -> Holdings:
        """What the recording used."""
        holdings = Holdings(tuple(self._inputs.values()), self._counts)
        self._own, self._inputs, self._counts = set(), {}, Counter()
        return holdings


def _uses(operation: Operation, tensor: torch.Tensor) -> bool:
    """A factory asks its operands for their shapes alone, and there is nothing to use in no bytes."""
    return not makes_tensor(operation.operator) and tensor.numel() > 0
