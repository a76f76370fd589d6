"""The memory from outside that a recording touches: whose it is, who touched it, and a hold on it (fault K2)."""

from __future__ import annotations

from typing import Any, Protocol

import attrs
import torch

from tsgraph.backends.emulated.dispatcher import unseen_by_functions, unseen_by_operators
from tsgraph.buffers.owners import Owner, Owners, nearest
from tsgraph.protocols.backend import Backend, Pool
from tsgraph.receipts.receipt import External, Place
from tsgraph.receipts.remains import REMAINS

_NEW: Any = object()


class Named(Protocol):
    """What touches memory: an operator's call, or a part that nobody looks into."""

    @property
    def name(self) -> str:
        """What a receipt calls it."""

    @property
    def line(self) -> str:
        """Where it was."""


@attrs.define(eq=False)
class Touched:
    """One external tensor: its facts, and what happened to it so far."""

    facts: dict[str, Any]
    line: str
    read: bool = False
    written: bool = False
    operators: dict[str, None] = attrs.field(factory=dict)

    def told(self) -> External:
        """As a receipt has it."""
        access: dict[str, Any] = {"read": self.read, "written": self.written, "operators": tuple(self.operators)}
        return External(**self.facts, **access, line=self.line)


@attrs.define(eq=False)
class Outside:
    """Which memory is from outside, entry by entry. `kept`: a tensor on each, whatever becomes of the user's own."""

    owners: Owners
    backend: Backend
    pool: Pool
    kept: dict[int, torch.Tensor] = attrs.field(factory=dict, init=False)
    _by_region: dict[tuple[int, int], Touched | None] = attrs.field(factory=dict, init=False)
    _by_path: dict[object, Touched] = attrs.field(factory=dict, init=False)

    def touch(
        self, tensor: torch.Tensor, address: int, call: Named, *, read: bool, written: bool, place: Place
    ) -> None:
        """`call` reads or writes `tensor`, whose storage is at `address` and is not the recording's own.

        Memory of the pool that nobody left there is the recording's own all the same: an opaque part made it.
        """
        region = (address, tensor.data_ptr())
        touched = self._by_region.get(region, _NEW)
        if touched is _NEW:
            touched = self._by_region[region] = self._open(tensor, address, call, place)
        if touched is not None:
            touched.read |= read
            touched.written |= written
            touched.operators[call.name] = None

    def _open(self, tensor: torch.Tensor, address: int, call: Named, place: Place) -> Touched | None:
        declared, origin = self.owners.at(address), REMAINS.at(address)
        owner = nearest(declared, tensor)
        if owner is None and not origin and self.pool.holds(tensor.data_ptr()):
            return None
        owner = owner or self.owners.locate(tensor)
        path = address if owner is None else str(owner)
        touched = self._by_path.get(path)
        if touched is None:
            facts = {**_facts(tensor, owner, origin, place), "writable": any(each.writable for each in declared)}
            touched = self._by_path[path] = Touched(facts, call.line)
            if address not in self.kept:
                self.kept[address] = on_same_memory(tensor)
        return touched

    def temporary(self, tensor: torch.Tensor, address: int, call: Named) -> None:
        """`call` reads host memory that was made while recording: replays read it again, so it must not die."""
        touched = self._by_path.get(address)
        if touched is None:
            facts = {**form(tensor), "kind": "temporary", "name": "", "declared": False, "writable": False}
            touched = self._by_path[address] = Touched({**facts, "place": "host", "origin": ""}, call.line, read=True)
            self.kept[address] = on_same_memory(tensor)
        touched.operators[call.name] = None

    def told(self) -> tuple[External, ...]:
        """All of it, in the order in which it was first touched."""
        return tuple(touched.told() for touched in self._by_path.values())


def _facts(tensor: torch.Tensor, owner: Owner | None, origin: str, place: Place) -> dict[str, Any]:
    kind, name, whole = ("recording", origin, tensor) if origin else ("unknown", "", tensor)
    if owner is not None:
        kind, name, found = owner.kind, owner.name, owner.find()
        whole = found if found is not None and found.data_ptr() == owner.start else tensor
    declared = owner is not None and owner.declared
    return {**form(whole), "kind": kind, "name": name, "declared": declared, "place": place, "origin": origin}


def form(tensor: torch.Tensor) -> dict[str, Any]:
    """What a receipt says of any tensor."""
    return {
        "shape": tuple(tensor.shape),
        "stride": tensor.stride(),
        "dtype": dtype_of(tensor.dtype),
        "address": tensor.data_ptr(),
        "bytes": tensor.numel() * tensor.element_size(),
    }


def dtype_of(dtype: torch.dtype) -> str:
    """What torch calls it, without `torch.`."""
    return str(dtype).removeprefix("torch.")


def on_same_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor on the same memory: it stays there when `tensor` is moved or dropped."""
    with unseen_by_operators(), unseen_by_functions():
        return tensor.detach()
