"""Which slots give way for others. Use is told by integers that programs move anyway: nothing is added to a replay.

A slot that has no room displaces others only if it has earned it: it was wanted more often than they were replayed
meanwhile, by so much that a capture pays. So two slots of which only one has room do not take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from tsgraph.capture.budget import Budget
from tsgraph.dispatch.peers import Peers
from tsgraph.errors import OutOfBudget
from tsgraph.keys import SlotKey
from tsgraph.slots.registry import Slots
from tsgraph.slots.slot import Slot
from tsgraph.spec.model import Policy

EVICTED = "evicted"
"""The kind of cause that an evicted slot has."""

EARNED = 32
"""How much more often a slot is wanted than others are replayed that it displaces: a capture costs what these save."""


@attrs.define(eq=False)
class Contest:
    """A slot without room against those that would have to go. `lead`: how much more often it was wanted."""

    against: Sequence[Slot]
    lead: int = 0
    replays: int = attrs.field(default=attrs.Factory(lambda self: self.used(), takes_self=True))

    def used(self) -> int:
        """Replays of those that would have to go."""
        return sum(slot.counts.replays for slot in self.against)

    def open(self) -> bool:
        """Count one want, and what was replayed since the last: whether neither side has won by now."""
        replays = self.used()
        self.lead, self.replays = self.lead + 1 - (replays - self.replays), replays
        return abs(self.lead) < EARNED


@attrs.define(eq=False)
class Eviction:
    """Judges the slots of one runtime by how much they are used.

    Each process judges by its own memory, so with several ranks nothing is evicted unasked.
    """

    policy: Policy
    peers: Peers
    slots: Slots
    budget: Budget
    _contests: dict[SlotKey, Contest] = attrs.field(factory=dict, init=False)
    _seen: Mapping[SlotKey, int] = attrs.field(factory=dict, init=False)

    @property
    def unasked(self) -> bool:
        """Whether a lazy capture that has no room may displace slots."""
        return self.policy.over_budget == "evict" and self.budget.limit is not None and self.peers.count == 1

    def look(self) -> None:
        """Slots have come or gone: what is used most is judged by what comes from now on."""
        self._contests.clear()
        self._seen = self._replays()

    def staying(self, holders: Iterable[Slot], room: int, first: Slot | None = None) -> list[Slot]:
        """Those of `holders`, `first` and then the most used ones before others, that a new pool of `room` bytes holds.

        In the order of their capture. By a forecast: see `Budget.kept`.
        """
        ranked = sorted(holders, key=self._use, reverse=True)
        keys = [slot.key for slot in ([first] if first else []) + ranked]
        kept = self.budget.kept(keys, room, {slot.key: _stays(slot) for slot in ranked})
        return [slot for slot in self.slots.values() if slot in ranked and slot.key in kept]

    def _use(self, slot: Slot) -> tuple[int, int]:
        """Replays since slots came or went last, then those since its capture."""
        return slot.counts.replays - self._seen.get(slot.key, 0), slot.counts.since_capture

    def retries(self, slot: Slot) -> bool:
        """Whether a slot that was refused for the budget may have room, others displaced."""
        refused = slot.cause is not None and slot.cause.kind == OutOfBudget.__name__
        return refused and self.unasked and self._can_fit(slot.key)

    def _can_fit(self, key: SlotKey) -> bool:
        base, limit = self.budget.base(key.size), self.budget.limit
        return base is not None and limit is not None and base <= limit

    def make_room(self, slot: Slot, held: Callable[[], int]) -> list[Slot] | None:
        """What must go, so that `slot`, which a step wants, has room; None where it has not earned that yet.

        The whole pool goes then, and what still fits comes back when a step wants it. `held`: bytes of the pool.
        """
        contest = self._contests.get(slot.key)
        if contest is not None and contest.open():
            return None
        if not self.unasked or self.budget.fits(slot.key, held()) or not self._can_fit(slot.key):
            return []  # where it cannot fit, its capture is refused, and says so
        holders = [other for other in self.slots.values() if other.graph is not None]
        staying = self.staying(holders, self.budget.limit or 0, slot)
        leaving = [other for other in holders if other not in staying]
        if leaving and not (contest is not None and contest.against == leaving and contest.lead > 0):
            self._contests[slot.key] = Contest(leaving)
            return None
        return holders

    def _replays(self) -> dict[SlotKey, int]:
        return {slot.key: slot.counts.replays for slot in self.slots.values()}


def is_evicted(slot: Slot) -> bool:
    """Whether `slot` was evicted, or something that came after it says so."""
    return slot.cause is not None and slot.cause.kind == EVICTED


def _stays(slot: Slot) -> int:
    """Bytes that its outputs hold of the pool."""
    leaves = slot.outputs.leaves if slot.outputs is not None else ()
    return sum(leaf.nbytes for leaf in leaves if leaf is not None)
