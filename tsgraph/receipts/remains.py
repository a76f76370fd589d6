"""What recordings left behind: outputs and escaped memory, by address, as long as somebody holds it.

One for the process: a step may read what another runtime's graph wrote (fault R2), and a slot what another slot's
recording made and somebody kept (faults E4, E7). References are weak.
"""

from __future__ import annotations

import attrs
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tsgraph.buffers.owners import storage_address

_FIRST_SWEEP = 256


@attrs.define(eq=False)
class Remains:
    """Storage address → what a recording left there."""

    _known: dict[int, tuple[StorageWeakRef, str]] = attrs.field(factory=dict, init=False)
    _sweep_at: int = attrs.field(default=_FIRST_SWEEP, init=False)

    def note(self, address: int, reference: StorageWeakRef, what: str) -> None:
        """The storage at `address` is `what`, as long as it lives."""
        self._known[address] = (reference, what)
        if len(self._known) > self._sweep_at:
            self._sweep()

    def find(self, tensor: torch.Tensor) -> str:
        """What left the memory that `tensor` lies in; empty where no recording did."""
        return self.at(storage_address(tensor))

    def at(self, address: int) -> str:
        """What left the memory at this address of a storage; empty where no recording did."""
        reference, what = self._known.get(address, (None, ""))
        return what if reference is not None and not reference.expired() else ""

    def _sweep(self) -> None:
        for address in [each for each, (reference, _) in list(self._known.items()) if reference.expired()]:
            self._known.pop(address, None)
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._known))


REMAINS = Remains()
