"""Where memory is held that graphs recorded, and what it means that something else is held there now."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import attrs
import torch

from tsgraph.buffers.holders import Find
from tsgraph.buffers.owners import Owner, Owners, storage_address
from tsgraph.keys import SlotKey
from tsgraph.receipts.receipt import CaptureReceipt, External

COLLABORATOR = "collaborator"
MODULES = ("parameter", "module buffer", "attribute")
DECLARED = (*MODULES, "state", "fixed", "memory")
"""Kinds of holders of the engine's. Static buffers and staging are tsgraph's own: nobody moves them."""


@attrs.frozen
class Change:
    """Something that is not any more what graphs recorded. `path`: where it is held, `what` became of it.

    `old`, `new`: addresses (0: no memory), or generations. `slots`: whose graphs recorded the old.
    """

    path: str
    kind: str
    what: str
    old: int
    new: int
    slots: tuple[SlotKey, ...]

    def __str__(self) -> str:
        return f"{self.path} {self.what}"


@attrs.define(eq=False)
class Place:
    """One place where recorded memory is held. `find` gives the tensor there, `address` is where that should lie.

    `bytes`: how large it was. `storage`: the address of its storage (0: not known). `tensor`: the tensor itself, while
    it lives. `slots`: whose graphs recorded it.
    """

    path: str
    find: Find
    address: int
    bytes: int
    storage: int = 0
    tensor: Callable[[], torch.Tensor | None] = lambda: None
    slots: list[SlotKey] = attrs.field(factory=list)

    @property
    def part(self) -> str:
        """The name of the collaborator that holds it; empty where none does."""
        kind, _, name = self.path.partition(" ")
        return name.partition(".")[0].partition("[")[0] if kind == COLLABORATOR else ""

    def now(self) -> torch.Tensor | None:
        """What is held there now."""
        try:
            return self.find()
        except Exception:  # noqa: BLE001 - whatever a property of somebody else's raises
            return None

    def change(self, now: torch.Tensor | None) -> Change:
        """That `now` is held there instead."""
        kind, what = self._told(now)
        new = 0 if now is None else now.data_ptr()
        where = f"recorded at {self.address:#x}, now at {new:#x}" if new else f"recorded at {self.address:#x}"
        return Change(self.path, kind, f"{what} ({where})", self.address, new, tuple(self.slots))

    def _told(self, now: torch.Tensor | None) -> tuple[str, str]:
        if now is None:
            return "released", "is gone: no tensor is held there any more"
        if not storage_address(now):
            return "released", "was released: it has no memory any more"
        if now.nbytes > self.bytes:
            return "grown", f"has grown from {self.bytes} to {now.nbytes} bytes, into other memory"
        if now is self.tensor():
            return "moved", "was moved: `.data =` or `set_()` gave the tensor other memory"
        return "rebound", "was rebound: another tensor is held there"


def places_of(receipt: CaptureReceipt, owners: Owners) -> Iterator[Place]:
    """Every place where something is held that a recording touched; an unseen part may have touched all declared ones.

    A collaborator's memory has one place. All other memory has each that leads to it, since it may be replaced in one
    alone: tied weights, a state that the step holds under a name of its own. How the step comes by a module or a part
    is no such place: what is in it is looked at there.
    """
    for external in receipt.externals:
        if external.kind in (*DECLARED, COLLABORATOR) or _is_steps(external):
            find = owners.resolve(external.path) or (lambda: None)
            yield _known(Place(external.path, find, external.address, external.bytes))
    for kept in receipt.kept:
        holders = owners.holders(storage_address(kept))
        kinds = {owner.kind for owner in holders}
        if "buffer" not in kinds:
            held = not kinds.isdisjoint((*MODULES, COLLABORATOR))
            yield from (_of(each) for each in holders if each.kind in DECLARED or (_is_steps(each) and not held))
    if receipt.opaque:
        yield from (_of(owner) for owner in owners if owner.kind in DECLARED)


def _is_steps(holder: External | Owner) -> bool:
    return holder.kind.startswith("step")


def _of(owner: Owner) -> Place:
    return _known(Place(str(owner), owner.find, owner.start, owner.stop - owner.start))


def _known(place: Place) -> Place:
    """`place` with the tensor and the storage that are there, if these are what was recorded."""
    now = place.now()
    if now is not None and now.data_ptr() == place.address:
        place.tensor, place.storage = weakref.ref(now), storage_address(now)
    return place
