"""What shows that lazy work is over where a slot is recorded without warm-ups of its own (`warmup.per = "variant"`).

The forwards of a variant's first slot did all that is done at first use, or so the spec says. Each later recording has
to prove it: beside the rows, it reads what the warmed-up one read, and leaves no memory behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import torch
from torch.utils import _pytree as pytree

from tsgraph.buffers.owners import storage_address
from tsgraph.errors import ContractViolation
from tsgraph.receipts.receipt import CaptureReceipt
from tsgraph.slots.slot import Slot

SMALL_CHANGE = 1 << 20
"""Bytes that a recording may keep beside its outputs: what torch itself has for each graph, and what rounding adds."""


@attrs.define(eq=False)
class Laziness:
    """The receipts of slots that were warmed up themselves, by variant: what later recordings are held against."""

    _first: dict[str, CaptureReceipt] = attrs.field(factory=dict, init=False)

    def check(self, slot: Slot, returned: Any, grown: int) -> None:
        """Hold the recording of `slot`, which `returned` this and left `grown` bytes allocated, against the first.

        Raises: ContractViolation naming all lazy work in it. Nothing is asked of a slot with warm-ups of its own.
        """
        receipt = slot.receipt
        if receipt is None:
            return
        if slot.warmed:
            self._first[slot.key.variant] = attrs.evolve(receipt, kept=())
            return
        first = self._first.get(slot.key.variant)
        found = [*lazy_work(first, receipt), *new_workspace(receipt, returned, grown)]
        if found:
            raise _violation(first, found)


def lazy_work(first: CaptureReceipt | None, later: CaptureReceipt) -> Iterator[str]:
    """What `later` did that `first`, after all warm-ups, did not, in words. Shapes differ with sizes, and do not count.

    Without a first one to compare with, only what is never right is told: memory that is kept, and work that no replay
    does again.
    """
    for words, tell in _PARTS if first is not None else _NEVER:
        known = set() if first is None else set(tell(first))
        yield from (f"{words} {each}" for each in dict.fromkeys(tell(later)) if each not in known)


def _externals(receipt: CaptureReceipt) -> Iterable[str]:
    return (each.path if each.name else f"{each.kind} at {each.line}" for each in receipt.externals)


def _opaque(receipt: CaptureReceipt) -> Iterable[str]:
    return (f"{each.kind} {each.name} at {each.line}" for each in receipt.opaque)


def _once(receipt: CaptureReceipt) -> Iterable[str]:
    return (f"{each.operator} at {each.line}" for each in receipt.once)


def _escapes(receipt: CaptureReceipt) -> Iterable[str]:
    return (f"of {each.operator} at {each.line}" for each in receipt.escapes)


_Tell = Callable[[CaptureReceipt], Iterable[str]]
_NEVER: tuple[tuple[str, _Tell], ...] = (("it does once", _once), ("it keeps memory", _escapes))
_PARTS: tuple[tuple[str, _Tell], ...] = (("it touches", _externals), ("it runs", _opaque), *_NEVER)


def new_workspace(receipt: CaptureReceipt, returned: Any, grown: int) -> Iterator[str]:
    """Memory that a recording left allocated beside what it returned and what its receipt knows of, in words."""
    outside = {each.address for each in receipt.externals}
    storages = {
        storage_address(leaf): leaf.untyped_storage().nbytes()
        for leaf in pytree.tree_leaves(returned)
        if isinstance(leaf, torch.Tensor)
    }
    known = sum(size for address, size in storages.items() if address not in outside)
    left = grown - known - sum(each.bytes for each in receipt.escapes)
    if left > SMALL_CHANGE:
        yield f"it leaves {left} bytes allocated that are no output: a workspace that grew, or was made at first use"


def _violation(first: CaptureReceipt | None, found: list[str]) -> ContractViolation:
    held = "a recording without lazy work" if first is None else f"a recording that does what that of {first.slot} did"
    return ContractViolation(
        "step",
        "warm-up",
        f"{held}, which was warmed up for all of its variant",
        "; ".join(found),
        hint='warm every slot up: per = "slot" in [warmup]; or do at construction what is done at first use',
    )
