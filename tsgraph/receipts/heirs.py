"""Receipts of recordings that nobody watched: what the model of them read, and what they themselves returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import attrs
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from tsgraph.buffers.owners import Owners, storage_address
from tsgraph.keys import SlotKey
from tsgraph.protocols.backend import Graph, Pool
from tsgraph.receipts.outside import form
from tsgraph.receipts.receipt import CaptureReceipt, HostFunction, Output
from tsgraph.receipts.remains import REMAINS


@attrs.frozen(eq=False)
class Heir:
    """A recording of slot `key` into `graph`, made without a watch in `seconds`, that `returned` this.

    What it touches is taken to be what `model`, the receipt of a recording of the same step, says.
    """

    key: SlotKey
    graph: Graph
    returned: Any
    seconds: float
    model: CaptureReceipt

    def receipt(self, owners: Owners, pool: Pool) -> CaptureReceipt:
        """Its receipt. Kernels are counted, like all nodes, but not named: how often they ran, the model says."""
        nodes = None if self.graph.listing is None else dict(Counter(node.kind for node in self.graph.listing))
        return attrs.evolve(
            self.model,
            slot=str(self.key),
            model=self.model.slot,
            outputs=tuple(self._outputs(owners, pool)),
            functions=tuple(HostFunction(name=each.name, line=each.line) for each in self.graph.functions),
            nodes=nodes,
            pool_bytes=self.graph.bytes,
            seconds=self.seconds,
        )

    def _outputs(self, owners: Owners, pool: Pool) -> Iterator[Output]:
        names: dict[int, str] = {}
        slot = f"slot {self.key} of {self.model.spec}"
        for path, leaf in pytree.tree_flatten_with_path(self.returned)[0]:
            if isinstance(leaf, torch.Tensor):
                name, address = f"output{pytree.keystr(path)}", storage_address(leaf)
                alias = names.get(address, "") or _alias(owners, pool, leaf, address)
                yield Output(name=pytree.keystr(path), alias=alias, **form(leaf))
                if not alias and address:
                    REMAINS.note(address, StorageWeakRef(leaf.untyped_storage()), f"{name} of {slot}")
                names.setdefault(address, name)


def _alias(owners: Owners, pool: Pool, leaf: torch.Tensor, address: int) -> str:
    if not address:
        return ""
    owner = owners.locate(leaf)
    if owner is None and pool.holds(leaf.data_ptr()):
        return ""
    return str(owner or REMAINS.find(leaf) or "unknown")
