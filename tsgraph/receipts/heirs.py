"""Receipts of recordings that nobody watched: what the model of them read, and what they themselves returned."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

from tsgraph.buffers.owners import Owners
from tsgraph.keys import SlotKey
from tsgraph.protocols.backend import Graph, Pool
from tsgraph.receipts.outputs import outputs_of
from tsgraph.receipts.receipt import CaptureReceipt, HostFunction


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
        slot = f"slot {self.key} of {self.model.spec}"
        nodes = None if self.graph.listing is None else dict(Counter(node.kind for node in self.graph.listing))
        return attrs.evolve(
            self.model,
            slot=str(self.key),
            model=self.model.slot,
            outputs=tuple(outputs_of(self.returned, slot, owners, pool)),
            functions=tuple(HostFunction(name=each.name, line=each.line) for each in self.graph.functions),
            nodes=nodes,
            pool_bytes=self.graph.bytes,
            seconds=self.seconds,
        )
