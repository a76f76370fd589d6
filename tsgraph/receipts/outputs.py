"""What a step returned while it was recorded, as a receipt has it: of whose memory each tensor is."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from tsgraph.buffers.owners import Owners, storage_address
from tsgraph.protocols.backend import Pool
from tsgraph.receipts.outside import form
from tsgraph.receipts.receipt import Output
from tsgraph.receipts.remains import REMAINS


def outputs_of(
    returned: Any, slot: str, owners: Owners, pool: Pool, made: Container[int] = frozenset()
) -> Iterator[Output]:
    """The tensors in what the step of `slot` returned. What is the recording's own is known from then on as left by it.

    `made`: storage addresses of what a watch saw operators make; without one, what lies in the pool is its own.
    """
    names: dict[int, str] = {}
    for path, leaf in pytree.tree_flatten_with_path(returned)[0]:
        if isinstance(leaf, torch.Tensor):
            name, address = pytree.keystr(path), storage_address(leaf)
            own = not address or address in made
            alias = names.get(address, "") or ("" if own else _alias(owners, pool, leaf))
            yield Output(name=name, alias=alias, **form(leaf))
            names.setdefault(address, f"output{name}")
            if address and not alias:
                REMAINS.note(address, StorageWeakRef(leaf.untyped_storage()), f"output{name} of {slot}")


def _alias(owners: Owners, pool: Pool, leaf: torch.Tensor) -> str:
    owner = owners.locate(leaf)
    if owner is None and pool.holds(leaf.data_ptr()):
        return ""
    return str(owner or REMAINS.find(leaf) or "unknown")
