"""What a runtime does with its slots and their memory: captures, releases and wakes them, early or when a step asks.

The pool is the unit of release. Graphs of one pool live in each other's memory, so a slot's own bytes are what it
added, and they serve the pool's next recordings; the device gets memory back when the last graph of the pool is gone.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain

import attrs
import torch

from tsgraph import events
from tsgraph.buffers.owners import storage_address
from tsgraph.capture.agreement import all_fit, settle_plan
from tsgraph.capture.budget import Budget
from tsgraph.capture.eviction import EVICTED, Eviction, is_evicted
from tsgraph.capture.session import Capturer, CaptureSummary
from tsgraph.errors import BadBatch, CaptureFailed
from tsgraph.keys import SlotKey
from tsgraph.lifecycle import Cause
from tsgraph.slots.registry import Slots
from tsgraph.slots.slot import REMADE, Slot
from tsgraph.spec.model import Spec

PACKED = "packed"
"""The kind of cause that a slot has while it waits to be captured anew in a smaller pool; a wake brings it back."""

Named = Iterable[tuple[str, torch.Tensor]]


@attrs.define(eq=False, kw_only=True)
class Keeper:
    """Keeps the slots of one runtime.

    `publish` renews what calls read, from the slots' states. `memory`: the engine's tensors, by name, that recordings
    use and that live on the device; `written`: those of its parts, wherever they live. `asleep`: everything was
    released, so that no step has a slot captured until somebody wakes the runtime, or captures.
    """

    spec: Spec
    slots: Slots
    capturer: Capturer
    publish: Callable[[], None]
    memory: Callable[[], Named]
    written: Callable[[], Named]
    asleep: bool = attrs.field(default=False, init=False)
    eviction: Eviction = attrs.field(init=False)

    @eviction.default
    def _eviction(self) -> Eviction:
        return Eviction(self.spec.policy, self.capturer.engine.peers, self.slots, self.capturer.budget)

    @property
    def budget(self) -> Budget:
        """What graphs may take, and are forecast to."""
        return self.capturer.budget

    @property
    def held(self) -> int:
        """Bytes that the pool holds now. Not for the hot path."""
        return self.capturer.held

    # -- triggers -----------------------------------------------------------------------------------------------------

    def fire(self, slot: Slot, trigger: str, cause: Cause | None = None) -> None:
        """Fire one trigger of one slot. Raises what `Capturer.fire` does."""
        try:
            self.capturer.fire(slot, trigger, cause)
        finally:
            self.tidy()

    def fire_all(self, trigger: str, slots: Iterable[Slot], cause: Cause | None = None) -> None:
        """Fire one trigger of all `slots`, or of none. Raises: IllegalTransition or RuleViolation before any effect."""
        slots = tuple(slots)
        for slot in slots:
            slot.life.require(trigger)
        try:
            for slot in slots:
                self.capturer.fire(slot, trigger, cause)
        finally:
            self.tidy()

    def invalidate(self, causes: Mapping[SlotKey, Cause]) -> None:
        """Something has changed that these slots recorded."""
        try:
            for key, cause in causes.items():
                self.capturer.fire(self.slots[key], self.spec.lifecycle.on_change, cause)
        finally:
            self.tidy()

    def tidy(self) -> None:
        """Renew what calls read; where no slot holds a graph of it any more, give the pool back to the system."""
        self.publish()  # programs that are gone let go of their outputs
        engine = self.capturer.engine
        if engine.pool is None or self.holders():
            return
        self.budget.begin_again()
        engine.backend.trim()
        if engine.pool.bytes:  # a cycle, or somebody's outputs
            gc.collect()
            engine.backend.trim()
        if not engine.pool.bytes:
            engine.pool = None

    def holders(self) -> list[Slot]:
        """The slots that hold a graph."""
        return [slot for slot in self.slots.values() if slot.graph is not None]

    # -- captures -----------------------------------------------------------------------------------------------------

    def capture(self, slots: Iterable[Slot]) -> CaptureSummary:
        """Capture those of `slots` that are not replayable: what has begun goes on, what is stale begins again."""
        roles = self.spec.lifecycle
        stale = roles.transition(roles.on_change).to
        chosen = [slot for slot in slots if slot.state not in roles.replays_in]
        summary = self._captured(chosen, [slot for slot in chosen if slot.state == stale])
        self._awake()
        return summary

    def wake(self) -> CaptureSummary:
        """Capture what has lost its recording, and once more what failed: see `GraphRuntime.wake`."""
        lost = [slot for slot in self.slots.values() if self._lost(slot)]
        summary = self._captured(lost, lost)
        self._awake()
        return summary

    def _awake(self) -> None:
        if self.asleep:
            self.asleep = False
            self.publish()

    def _lost(self, slot: Slot) -> bool:
        roles = self.spec.lifecycle
        if slot.state == roles.transition(roles.on_release).to:
            return slot.was_recorded and not is_evicted(slot)
        return slot.state in (roles.transition(roles.on_change).to, roles.transition(roles.on_failure).to)

    def _captured(self, slots: Sequence[Slot], again: Collection[Slot]) -> CaptureSummary:
        """Capture `slots`, those of `again` from the beginning, within the budget."""
        self._require_memory()
        try:
            summary = self._run(slots, again)
        except CaptureFailed:
            self._fit()
            raise
        return self.capturer.summary(slots, summary.seconds) if self._fit() else summary

    def _run(self, slots: Sequence[Slot], again: Collection[Slot]) -> CaptureSummary:
        """Capture `slots`, those of `again` from the beginning.

        What these still hold goes first, all of it: no old graph is there when new ones are recorded (fault M2). Each
        is reset when its turn comes and has its cause until then, so a run that ends early is taken up by the next.
        """
        roles = self.spec.lifecycle
        old = [slot for slot in again if slot.graph is not None]

        def begin(slot: Slot) -> None:
            if old:
                self.fire_all(roles.on_release, old)
                old.clear()
            if slot in again and roles.on_reset in roles.triggers(slot.state):
                self.capturer.fire(slot, roles.on_reset)

        try:
            return self.capturer.capture(slots, begin=begin)
        finally:
            self.eviction.look()
            self.tidy()

    def _require_memory(self) -> None:
        """Refuse to capture while something is away: a graph would have its address of now (faults F3, F5).

        Raises: BadBatch naming what has no memory, or is not on the device.
        """
        for name, tensor in chain(self.memory(), self.written()):
            if tensor.numel() and not storage_address(tensor):
                raise BadBatch(f"{name} has no memory now", hint="bring it back before slots are captured")
        for name, tensor in self.memory():
            try:
                self.capturer.engine.backend.adopt([tensor])
            except BadBatch as error:
                raise BadBatch(f"{name}: {error.what}", hint="bring it back before slots are captured") from error

    # -- captures that a step asks for --------------------------------------------------------------------------------

    def awaits(self, slot: Slot) -> bool:
        """Whether the next step that wants `slot` is to have it captured.

        Of several ranks only what all do alike counts: a slot may be stale on one of them alone.
        """
        if self.spec.policy.capture != "lazy" or self.asleep:
            return False
        roles, alone = self.spec.lifecycle, self.capturer.engine.peers.count == 1
        if slot.state in (roles.initial, roles.transition(roles.on_release).to):
            return slot.state == roles.initial or is_evicted(slot)
        if slot.state == roles.transition(roles.on_change).to:
            return alone and (slot.cause is None or slot.cause.kind != REMADE)
        return alone and self.eviction.retries(slot)

    def want(self, key: SlotKey) -> None:
        """A step wants this slot: capture it, unless it has to wait for room.

        Raises: CaptureFailed where the policy says so; what work of earlier steps raised, with nothing changed.
        """
        slot, engine = self.slots[key], self.capturer.engine
        displaced = self.eviction.make_room(slot, lambda: self.held)
        if displaced is None:
            return
        engine.backend.synchronize()
        self._require_memory()
        began = time.perf_counter()
        try:
            self.fire_all(self.spec.lifecycle.on_release, displaced, Cause(EVICTED, f"it made room for slot {key}"))
            self._captured([slot], [slot])
        finally:
            stalled = round((time.perf_counter() - began) * 1e3, 3)
            facts = {"slot": str(key), "state": slot.state, "milliseconds": stalled}
            self.capturer.observers.emit(events.CAPTURE_STALLED, "warning", **facts)

    # -- memory -------------------------------------------------------------------------------------------------------

    def release(self, slots: Sequence[Slot], why: str, *, everything: bool) -> int:
        """Give back the graphs of `slots`; returns by how many bytes the pool shrank. `everything`: fall asleep."""
        held = self.held
        self.fire_all(self.spec.lifecycle.on_release, slots, Cause("asked", why))
        if everything:
            self.asleep = True
            self.publish()
        return self._released(held, why)

    def evict(self, count: int) -> int:
        """Give back `count` bytes or more of the pool, if so many are there: see `GraphRuntime.evict`."""
        held, holders = self.held, self.holders()
        if count <= 0 or not holders:
            return 0
        staying = self.eviction.staying(holders, held - count)
        settle_plan(self.capturer.engine.ranks, [slot.key for slot in staying])
        self._pack(holders, staying, f"{count} bytes were wanted back")
        return self._released(held, f"{len(holders) - len(staying)} slots were evicted")

    def _released(self, before: int, why: str) -> int:
        freed = before - self.held
        self.capturer.observers.emit(events.MEMORY_RELEASED, bytes=freed, held=self.held, why=why)
        return freed

    def _pack(self, holders: Sequence[Slot], staying: Sequence[Slot], why: str) -> None:
        """Give the pool back and capture anew what stays, now or when a step wants it."""
        release, lazy = self.spec.lifecycle.on_release, self.spec.policy.capture == "lazy"
        self.fire_all(release, [slot for slot in holders if slot not in staying], Cause(EVICTED, why))
        self.fire_all(release, staying, Cause(EVICTED if lazy else PACKED, why))
        if staying and not lazy:
            self._run(staying, staying)

    def _fit(self) -> bool:
        """Pack the pool anew while it exceeds the budget; whether that was needed.

        What a refused recording took stays with the pool as long as that has another graph.
        """
        limit, ranks = self.budget.limit, self.capturer.engine.ranks
        packed = False
        while limit is not None and not all_fit(ranks, self.held <= limit) and (holders := self.holders()):
            self._pack(holders, holders, f"graphs held more than the budget of {limit} bytes")
            packed = True
            if len(self.holders()) == len(holders):
                break  # nothing was refused: it is as small as it gets
        return packed
