"""What shows that lazy work is over where a slot is recorded without warm-ups of its own (`warmup.per = "variant"`).

The forwards of a variant's first slot did all that is done at first use, or so the spec says. Each later recording has
to prove it: beside the rows, it reads what the warmed-up one read, and leaves no memory behind. Under the policy
`receipts = "warmed"` nobody watches what a later recording reads, since a watch looks at each operator: its receipt is
the first one's. Its graph is asked instead what memory it is handed, which must be what the first one's is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import attrs
import torch
from torch.utils import _pytree as pytree

from tsgraph.buffers.owners import Owners, storage_address
from tsgraph.errors import ContractViolation
from tsgraph.protocols.backend import Graph, Reached
from tsgraph.receipts.receipt import CaptureReceipt
from tsgraph.slots.slot import Slot

SMALL_CHANGE = 1 << 20
"""Bytes that a recording may keep beside its outputs: what torch itself has for each graph, and what rounding adds."""


@attrs.frozen(eq=False)
class Model:
    """A recording of a warmed-up slot whose receipt others may take over: that, and where what it is handed starts."""

    receipt: CaptureReceipt
    handed: frozenset[int]


@attrs.define(eq=False)
class Laziness:
    """The receipts of slots that were warmed up themselves, by variant: what later recordings are held against.

    `receipts`: the policy's word. Only receipts of the same run of captures are taken over: an older one may tell of
    memory that something has replaced since. None is where the device does not tell what a graph is handed. `owners`
    say whose memory is.
    """

    receipts: Literal["each", "warmed"] = "each"
    owners: Owners | None = None
    _first: dict[str, CaptureReceipt] = attrs.field(factory=dict, init=False)
    _of_this_run: dict[str, Model] | None = attrs.field(default=None, init=False)

    @property
    def asks(self) -> bool:
        """Whether graphs are to tell what they reach."""
        return self.receipts == "warmed" and self._of_this_run is not None

    @contextmanager
    def run(self) -> Iterator[None]:
        """A run of captures around a block."""
        self._of_this_run = {}
        try:
            yield
        finally:
            self._of_this_run = None

    def model(self, slot: Slot) -> CaptureReceipt | None:
        """The receipt that `slot` is to take over; None where its recording is to be watched."""
        model = None if slot.warmed else self._model(slot.key.variant)
        return None if model is None else model.receipt

    def _model(self, variant: str) -> Model | None:
        return None if self._of_this_run is None else self._of_this_run.get(variant)

    def doubts(self, slot: Slot) -> bool:
        """Whether the recording of `slot`, that nobody watched, seems to be handed what that of its model was not."""
        model = self._model(slot.key.variant)
        return model is not None and slot.graph is not None and any(new_memory(model, slot.graph, None))

    def check(self, slot: Slot, returned: Any, grown: int) -> None:
        """Hold the recording of `slot`, which `returned` this and left `grown` bytes allocated, against the first.

        Raises: ContractViolation naming all lazy work in it. Nothing is asked of a slot with warm-ups of its own.
        """
        receipt, graph = slot.receipt, slot.graph
        if receipt is None:
            return
        if slot.warmed:
            self._first[slot.key.variant] = attrs.evolve(receipt, kept=())
            self._note_model(slot.key.variant, receipt, graph)
            return
        first, model = self._first.get(slot.key.variant), self._model(slot.key.variant)
        found = [*lazy_work(first, receipt), *new_workspace(receipt, returned, grown)]
        if receipt.model and model is not None and graph is not None:
            found += new_memory(model, graph, self.owners)
        if found:
            raise _violation(first, found, watched=not receipt.model)

    def _note_model(self, variant: str, receipt: CaptureReceipt, graph: Graph | None) -> None:
        reach = graph.reach if self.asks and graph is not None else None
        if reach is not None and self._of_this_run is not None:
            self._of_this_run[variant] = Model(receipt, frozenset(reach))


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


def new_memory(model: Model, graph: Graph, owners: Owners | None) -> Iterator[str]:
    """Memory that a `graph` is handed and that of its model is not, in words.

    What was made outside of the pool while `graph` was recorded is its own: random generators have memory for each.
    """
    reach = graph.reach
    if reach is None:
        yield "the device does not tell what memory it is handed"
        return
    new = {address: each for address, each in reach.items() if not each.own and address not in model.handed}
    if new and owners is not None:
        owners.refresh()
    for address, reached in new.items():
        owner = None if owners is None else owners.holder(address)
        yield _handed(address, reached, "" if owner is None else f"{owner}, ", model.receipt.slot)


def _handed(address: int, reached: Reached, owner: str, first: str) -> str:
    what = f"it is handed {owner}memory of {reached.bytes} bytes at {address:#x}"
    return f"{what} that no operator of {first} touched, first by {reached.node}"


def _violation(first: CaptureReceipt | None, found: list[str], *, watched: bool) -> ContractViolation:
    held = "a recording without lazy work" if first is None else f"a recording that does what that of {first.slot} did"
    look = "" if watched else '. For operators and lines have it watched: receipts = "each" in [policy]'
    return ContractViolation(
        "step",
        "warm-up",
        f"{held}, which was warmed up for all of its variant",
        "; ".join(found),
        hint=f'warm every slot up: per = "slot" in [warmup]; or do at construction what is done at first use{look}',
    )
