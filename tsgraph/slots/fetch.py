"""Outputs on their way to the host: copied without waiting, and handed out only once they are there (fault D5).

A copy that nobody waited for leaves what an earlier step wrote in host memory, or half of each. So the memory is not
shown: there is a handle, and asking it for the result waits.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch.utils import _pytree as pytree

from tsgraph.protocols.backend import Backend, Ready


@attrs.frozen(eq=False)
class Fetched:
    """Tensors that are being copied to pinned host memory of their own, in the structure that they were given in."""

    _copies: Any
    _ready: Ready

    def done(self) -> bool:
        """Whether they are there, without waiting."""
        return self._ready.done()

    def result(self) -> Any:
        """The host tensors. Waits for them. Raises: what the step raised, HostFunctionFailed say."""
        self._ready.wait()
        return self._copies


def fetch(outputs: Any, backend: Backend) -> Fetched:
    """Begin to copy every tensor of `outputs` to the host, behind all work of the caller's current stream so far.

    What is on the host already is copied, too; leaves that are no tensors stay.
    """

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return backend.pin(leaf.shape, leaf.dtype).copy_(leaf.detach(), non_blocking=True)

    with torch.no_grad():
        copies = pytree.tree_map(copied, outputs)
    return Fetched(copies, backend.ready())
