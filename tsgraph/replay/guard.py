"""Whether graphs still find what they recorded where they recorded it: looked at before each replay, told by name.

A graph has addresses baked in. A weight that is rebound (`.data =`, `set_()`, another `Parameter`), a workspace that
has grown, a metadata object that was replaced: the replay reads what was there before (R21, faults A1, E6, F1 to F3),
and no hook of torch tells. So the places where recorded memory is held are looked at: those of collaborators at each
replay, all others in turn, a few at a time (the policy's words `staleness` and `sweep`). Receipts hold what graphs
recorded, so nobody else gets it meanwhile (fault K2): another address is other memory.

A look is a loop over flat tuples. What is unusual is settled afterwards, slowly and by name, by `changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, cycle
from typing import Any, final

import attrs
import torch

from tsgraph.buffers.holders import Find, one_look_up, unguarded
from tsgraph.buffers.owners import Owner, Owners
from tsgraph.errors import StaleSlot
from tsgraph.keys import Batch, SlotKey
from tsgraph.lifecycle import Cause
from tsgraph.receipts.receipt import CaptureReceipt
from tsgraph.replay.places import COLLABORATOR, DECLARED, Change, Place, places_of
from tsgraph.slots.slot import REMADE, Slot
from tsgraph.spec.model import Policy

REFRESHED = ("attention", "drafter")
"""Collaborators whose memory is looked at after their refresh: before it, an eager step's may be there instead."""


Held = tuple[tuple[dict[str, Any], str, int], ...]
"""Tensors in dicts, each with its key and the address where it should lie."""


@final
@attrs.frozen(eq=False)
class Turn:
    """What one look goes through: what is `held`, and `others`: what gives a tensor, with its address."""

    held: Held = ()
    others: tuple[tuple[Find, int], ...] = ()

    @classmethod
    def over(cls, places: Iterable[Place]) -> Turn:
        """A turn that goes through `places`."""
        found = [(one_look_up(place.find), place) for place in places]
        held = tuple((*look_up, place.address) for look_up, place in found if look_up is not None)
        return cls(held, tuple((unguarded(place.find), place.address) for look_up, place in found if look_up is None))

    def look(self) -> bool:
        """Whether anything is not where it should be, or cannot be found."""
        try:
            for holder, name, address in self.held:
                if holder[name].data_ptr() != address:
                    return True
            for find, address in self.others:
                if find().data_ptr() != address:  # type: ignore[union-attr]  # None is unusual, too
                    return True
        except Exception:  # noqa: BLE001 - whatever a property of somebody else's raises
            return True
        return False


@attrs.define(eq=False)
class Guard:
    """Looks after the recordings of one runtime. `parts`: its collaborators, by name."""

    policy: Policy
    owners: Owners
    parts: Mapping[str, Any]
    _watched: dict[SlotKey, tuple[Slot, CaptureReceipt]] = attrs.field(factory=dict, init=False)
    _places: dict[tuple[str, int], Place] = attrs.field(factory=dict, init=False)
    _generations: tuple[tuple[Any, int], ...] = attrs.field(default=(), init=False)
    _next: Callable[[], Turn | Held] = attrs.field(factory=lambda: cycle([()]).__next__, init=False)
    _found: list[Change] = attrs.field(factory=list, init=False)

    # -- the hot path -------------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Whether anything looked at this time is unusual. `changes` says what, if it is anything.

        A turn that goes through tensors in dicts alone is no object, and is gone through here: each call and each name
        that is looked up takes as long as a place.
        """
        turn = self._next()
        if type(turn) is Turn:
            return self._has_raised() or turn.look()
        try:
            for holder, name, address in turn:
                if holder[name].data_ptr() != address:
                    return True
        except Exception:  # noqa: BLE001 - as in a turn
            return True
        return False

    def _has_raised(self) -> bool:
        for part, told in self._generations:  # noqa: SIM110 - a generator takes longer than what it goes through
            if part.generation != told:
                return True
        return False

    @property
    def looks(self) -> bool:
        """Whether the policy wants any look before a replay."""
        return self.policy.staleness != "off"

    # -- what is looked at --------------------------------------------------------------------------------------------

    def watch(self, slots: Iterable[Slot]) -> None:
        """Look at what `slots` recorded from now on, and at nothing else. The next look is at all of it.

        What other slots recorded is given back: they have to be recorded anew.
        """
        now = {slot.key: (slot, slot.receipt) for slot in slots if slot.receipt is not None}
        if now.keys() == self._watched.keys() and all(now[key][1] is self._watched[key][1] for key in now):
            return
        for key, (slot, receipt) in self._watched.items():
            if key not in now and slot.receipt is receipt:
                slot.let_go()
        new = [key for key, (_, receipt) in now.items() if self._watched.get(key, (None, None))[1] is not receipt]
        self._forget(self._watched.keys() - now.keys() | set(new))
        self._watched = now
        if new:
            self.owners.refresh()
        for keys, receipt in _alike({key: now[key][1] for key in new}):
            self._add(keys, receipt)
        self.arrange()

    def _forget(self, keys: Iterable[SlotKey]) -> None:
        for key in keys:
            for place in self._places.values():
                if key in place.slots:
                    place.slots.remove(key)
        self._places = {at: place for at, place in self._places.items() if place.slots}

    def _add(self, keys: Sequence[SlotKey], receipt: CaptureReceipt) -> None:
        for found in places_of(receipt, self.owners):
            place = self._places.setdefault((found.path, found.address), found)
            place.slots.extend(key for key in keys if key not in place.slots)

    def arrange(self) -> None:
        """Make anew what a look goes through: first all of it at once, then as the policy says."""
        places = self._looked_at()
        often = [place for place in places if place.part and self.policy.staleness == "always"]
        swept = [place for place in places if place not in often]
        step = len(places) if self.policy.staleness == "full" else self.policy.sweep
        turns = [Turn.over((*often, *swept[at : at + step])) for at in range(0, len(swept), step or 1)]
        told = {pair for slot, _ in self._watched.values() for pair in slot.generations.items()}
        self._generations = tuple((self.parts[name], generation) for name, generation in sorted(told))
        first, *rest = map(self._short, (Turn.over(places), *(turns or [Turn.over(often)])))
        self._next = chain([first], cycle(rest)).__next__

    def _short(self, turn: Turn) -> Turn | Held:
        """`turn` as a look takes it."""
        return turn if turn.others or self._generations else turn.held

    @property
    def _rechecks(self) -> bool:
        return self.policy.staleness in ("always", "full")

    # -- after a refresh ----------------------------------------------------------------------------------------------

    def metadata_of(self, key: SlotKey, batch: Batch, refreshes: Sequence[Refresh]) -> Metadata | None:
        """The metadata that a slot recorded, to be looked at when `refreshes` have run; None where there are none."""
        places = [place for place in self._places.values() if key in place.slots and place.part in REFRESHED]
        return Metadata(self, key, places, batch, refreshes) if places and self._rechecks else None

    def settle(self, metadata: Metadata, live: int) -> None:
        """Metadata are not where they were recorded. Raises: StaleSlot where that is what it seems.

        It is not where an eager step's are still there and the memory that was recorded is held elsewhere: that place
        is looked at from then on. To tell this from a refresh that makes new memory, they are refreshed once more.
        """
        self.owners.refresh()
        for place in metadata.unusual():
            found, home = place.now(), self._home(place)
            metadata.again(live)
            now = place.now()
            if found is None or now is None or now.data_ptr() != found.data_ptr():
                what = "is made anew by each refresh, while the graph reads what was bound"
                self._found.append(Change(place.path, REMADE, what, place.address, 0, tuple(place.slots)))
            elif home is None:
                self._found.append(place.change(now))
            else:
                place.find, place.address = home.find, home.start
        if self._found:
            raise StaleSlot(f"slot {metadata.slot}: {self._found[0]}", hint="refresh metadata in place")
        metadata.arrange()

    def _home(self, place: Place) -> Owner | None:
        """Where else the memory of `place` is held: by a collaborator, or by what is declared."""
        holders = self.owners.holders(place.storage) if place.storage else ()
        return next((owner for owner in holders if owner.kind in (COLLABORATOR, *DECLARED)), None)

    # -- what has changed ---------------------------------------------------------------------------------------------

    def changes(self) -> tuple[Change, ...]:
        """Everything that is not any more as graphs recorded it. Not for the hot path: everybody is asked by name."""
        self.owners.refresh()
        changes, self._found = [*self._found, *self._raised()], []
        changes += [change for place in self._looked_at() if (change := self._change(place)) is not None]
        self.arrange()
        return tuple(changes)

    def _looked_at(self) -> list[Place]:
        """The places that are looked at before a replay, whether that reads metadata or not."""
        return [each for each in self._places.values() if not (self._rechecks and each.part in REFRESHED)]

    def _raised(self) -> Iterator[Change]:
        by_part: dict[tuple[str, int], list[SlotKey]] = {}
        for key, (slot, _) in self._watched.items():
            for pair in slot.generations.items():
                by_part.setdefault(pair, []).append(key)
        for (name, before), keys in by_part.items():
            now = getattr(self.parts[name], "generation", 0)
            if now != before:
                what = f"has replaced memory, as its generation says: {before} when recorded, now {now}"
                yield Change(f"{COLLABORATOR} {name}", "generation", what, before, now, tuple(keys))

    def _change(self, place: Place) -> Change | None:
        now = self._held_now(place)
        if now is not None and now.data_ptr() == place.address:
            return None
        home = self._home(place) if place.part else None
        if home is None:
            return place.change(now)
        place.find, place.address = home.find, home.start
        return None

    def _held_now(self, place: Place) -> torch.Tensor | None:
        """What is held at the path of `place`, also where a whole module was replaced on the way."""
        owner_find = self.owners.resolve(place.path)
        if owner_find is not None and not place.part:
            place.find = owner_find
        return place.now()


def _alike(receipts: Mapping[SlotKey, CaptureReceipt]) -> Iterator[tuple[list[SlotKey], CaptureReceipt]]:
    """Slots whose receipts tell of the very same memory, as those do that took it over, with one of the receipts."""
    groups: dict[tuple[int, ...], list[SlotKey]] = {}
    for key, receipt in receipts.items():
        groups.setdefault(tuple(map(id, (receipt.externals, receipt.kept, receipt.opaque))), []).append(key)
    return ((keys, receipts[keys[0]]) for keys in groups.values())


Refresh = Callable[[Batch, int], None]


@attrs.define(eq=False)
class Metadata:
    """The metadata that one slot recorded, looked at between their refresh and the replay."""

    guard: Guard
    slot: SlotKey
    places: Sequence[Place]
    batch: Batch
    refreshes: Sequence[Refresh]
    turn: Turn = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.arrange()

    def arrange(self) -> None:
        """Make anew what a look goes through."""
        self.turn = Turn.over(self.places)

    def settle(self, live: int) -> None:
        """Not all is where it was recorded. Raises: StaleSlot where the graph would read other memory."""
        self.guard.settle(self, live)

    def again(self, live: int) -> None:
        """Refresh them once more."""
        for refresh in self.refreshes:
            refresh(self.batch, live)

    def unusual(self) -> list[Place]:
        """The places where something else is held than was recorded."""
        return [place for place in self.places if (now := place.now()) is None or now.data_ptr() != place.address]


def causes_of(changes: Iterable[Change]) -> dict[SlotKey, Cause]:
    """Why each slot is stale that recorded what has changed: the first change is named, all are told in detail."""
    by_slot: dict[SlotKey, list[Change]] = {}
    for change in changes:
        for key in change.slots:
            by_slot.setdefault(key, []).append(change)
    return {key: _cause(mine) for key, mine in by_slot.items()}


def _cause(changes: Sequence[Change]) -> Cause:
    first, more = changes[0], len(changes) - 1
    summary = f"{first}{f', and {more} more' if more else ''}"
    return Cause(first.kind, summary, "\n".join(map(str, changes)))
