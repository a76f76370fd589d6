"""Leased outputs: each knows the replay that wrote it, and refuses to be used when a later one has overwritten it.

Outputs of a replay are views of the pool's memory, and every later replay of a graph of that pool may write there (R5,
R40, fault E1). Where a spec's policy says `outputs = "leased"`, they are handed out as `LeasedTensor`: any function of
torch on one, or on a view of one, asks its lease first. What got away as an address is not seen: a `data_ptr()`, an
array of NumPy or a storage that was taken in time is used unasked.

A step may read the outputs of the one before: what is staged is copied before its replay begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.overrides import resolve_name
from torch.utils import _pytree as pytree

from tsgraph.buffers.owners import storage_address
from tsgraph.errors import LeaseExpired
from tsgraph.protocols.backend import Graph
from tsgraph.slots.outputs import Outputs


@attrs.define(eq=False)
class Leases:
    """Which replay has written to the pool of a runtime last: it ends all leases before it.

    `number`: replays so far. `slot`: whose was the last.
    """

    number: int = 0
    slot: str = ""

    def replayed(self, slot: str) -> None:
        """The graph of `slot` was replayed."""
        self.number += 1
        self.slot = slot

    def counting(self, slot: str, graph: Graph) -> Counted:
        """`graph`, each of whose replays is counted as one of `slot`."""
        return Counted(slot, graph, self)

    def leasing(self, slot: str, outputs: Outputs) -> Callable[[int], Any]:
        """A cut of the `outputs` of `slot` whose tensors are leased from the last replay."""

        def cut(live: int) -> Any:
            return pytree.tree_map_with_path(lambda path, leaf: self._leased(slot, path, leaf), outputs.cut(live))

        return cut

    def _leased(self, slot: str, path: pytree.KeyPath, leaf: torch.Tensor | None) -> torch.Tensor | None:
        if leaf is None:
            return None
        name = f"output{pytree.keystr(path)} of slot {slot}"
        return on_lease(leaf, Lease(self, name, slot, self.number, storage_address(leaf)))


@attrs.frozen(eq=False)
class Counted:
    """A graph whose replays are counted. One that failed to begin has overwritten nothing."""

    slot: str
    graph: Graph
    leases: Leases

    def replay(self) -> None:
        """Replay it. Raises what the graph raises."""
        self.graph.replay()
        self.leases.replayed(self.slot)


@attrs.frozen(eq=False)
class Lease:
    """The right to use one output until the next replay. `memory`: the address of its storage."""

    leases: Leases
    name: str
    slot: str
    number: int
    memory: int

    def require(self, use: str) -> None:
        """Raises: LeaseExpired where a later replay has overwritten the memory."""
        leases = self.leases
        if leases.number == self.number:
            return
        raise LeaseExpired(
            f"{self.name} is used by {use}, but it was of replay {self.number}, which is overwritten: "
            f"slot {leases.slot} has been replayed since, as replay {leases.number}",
            hint="clone it before the next call, or have the call itself do so: runtime(…, clone=True)",
            slot=self.slot,
            output=self.name,
            replay=self.number,
            now=leases.number,
            use=use,
        )


class LeasedTensor(torch.Tensor):
    """An output of a replay, or a view of one. It lives in the memory of the pool; what is made from it does not.

    Results that share its memory are leased as it is, all others are ordinary tensors.
    """

    lease: Lease

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Ask the lease of every argument, then do `func` with ordinary tensors."""
        leases: dict[int, Lease] = {}

        def used(tensor: LeasedTensor) -> torch.Tensor:
            tensor.lease.require(resolve_name(func) or getattr(func, "__name__", repr(func)))
            leases[tensor.lease.memory] = tensor.lease
            return ordinary(tensor)

        args, kwargs = pytree.tree_map_only(LeasedTensor, used, (tuple(args), dict(kwargs or {})))
        result = func(*args, **kwargs)
        return pytree.tree_map_only(torch.Tensor, lambda tensor: _leased_on(tensor, leases), result)


def on_lease(tensor: torch.Tensor, lease: Lease) -> LeasedTensor:
    """Another tensor on the same memory, under `lease`."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - no public way past a subclass
        leased = tensor.as_subclass(LeasedTensor)
    leased.lease = lease
    return leased


def ordinary(tensor: LeasedTensor) -> torch.Tensor:
    """Another tensor on the same memory, without a lease."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - no public way past a subclass
        return tensor.as_subclass(torch.Tensor)


def unleased(sources: Mapping[str, Any]) -> dict[str, Any]:
    """The sources of a call, with ordinary tensors for leased ones. Raises: LeaseExpired for one that has expired."""

    def read(tensor: LeasedTensor) -> torch.Tensor:
        tensor.lease.require("a step that reads it")
        return ordinary(tensor)

    replaced: dict[str, Any] = pytree.tree_map_only(LeasedTensor, read, dict(sources))
    return replaced


def copied(outputs: Any) -> Any:
    """Copies of `outputs`, which nothing overwrites."""
    with torch.inference_mode():
        return pytree.tree_map_only(torch.Tensor, torch.clone, outputs)


def _leased_on(tensor: torch.Tensor, leases: Mapping[int, Lease]) -> torch.Tensor:
    lease = leases.get(storage_address(tensor))
    return tensor if lease is None else on_lease(tensor, lease)
