"""A run of captures: each slot along the spec's route, with whatever it switches on switched off again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs
import torch

from tsgraph import events
from tsgraph.capture.agreement import settle_plan
from tsgraph.capture.budget import Budget
from tsgraph.capture.pipeline import Engine, Pipeline, SessionWork
from tsgraph.capture.progress import track_capture
from tsgraph.errors import CallerError, CaptureFailed
from tsgraph.events import Observers
from tsgraph.keys import SlotKey
from tsgraph.lifecycle import Cause, Lifecycle, Perform
from tsgraph.slots.slot import Slot
from tsgraph.spec.model import Spec, Step


@attrs.frozen
class CaptureSummary:
    """What a run of captures did: keys captured and failed, host seconds, bytes by which the pool grew.

    `forecast`: what `bytes` was expected to be when two slots were captured; None where nothing told.
    """

    captured: tuple[SlotKey, ...]
    failed: tuple[SlotKey, ...]
    seconds: float
    bytes: int
    forecast: int | None = None


@attrs.define(eq=False)
class Capturer:
    """Walks slots along the spec."""

    spec: Spec
    lifecycle: Lifecycle
    engine: Engine
    observers: Observers
    budget: Budget = attrs.field(factory=Budget)

    def capture(self, slots: Sequence[Slot], *, begin: Callable[[Slot], None] = lambda _: None) -> CaptureSummary:
        """Take every slot to where it can be replayed. `begin` is called for each just before its turn.

        Raises: CaptureFailed for the first slot that fails, where the spec's policy says "raise"; RankDisagreement,
        with nothing changed, where the ranks plan different captures.
        """
        settle_plan(self.engine.ranks, [slot.key for slot in slots])
        began = time.perf_counter()
        self.observers.emit(events.CAPTURE_STARTED, spec=self.spec.name, slots=[str(slot.key) for slot in slots])
        self.budget.told = None
        work = SessionWork(collect=self.spec.policy.collect)
        with self.lifecycle.session(work.perform), self.engine.laziness.run():
            for done, slot in enumerate(track_capture(slots, self.engine.backend)):
                self._foretell(slots[:done], slots[done:])
                begin(slot)
                self._capture_one(slot)
        summary = self.summary(slots, time.perf_counter() - began)
        self._tell(summary)
        return summary

    def _capture_one(self, slot: Slot) -> None:
        began = time.perf_counter()
        try:
            with self._undisturbed():
                for trigger in self._remaining_route(slot):
                    self.fire(slot, trigger)
        except CaptureFailed:
            self.engine.backend.trim()  # what it took may be more than the next ones have room for
            if self.spec.policy.on_capture_failure == "raise":
                raise
        else:
            slot.counts.captured_at = slot.counts.replays
        finally:
            slot.seconds = time.perf_counter() - began

    def _foretell(self, done: Sequence[Slot], rest: Sequence[Slot]) -> None:
        """Tell what the run will take, as soon as what is captured tells it and while something is to come."""
        to_come = self.budget.forecast(slot.key for slot in rest) if self.budget.told is None else None
        if to_come is not None:
            self.budget.told = to_come + sum(slot.bytes for slot in done)
            if self.budget.limit is not None:
                facts = {"bytes": self.budget.told, "held": self.held, "budget": self.budget.limit}
                self.observers.emit(events.MEMORY_FORECAST, **facts)

    @property
    def held(self) -> int:
        """Bytes that the pool holds now. Not for the hot path."""
        return 0 if self.engine.pool is None else self.engine.pool.bytes

    def _remaining_route(self, slot: Slot) -> Sequence[str]:
        """The triggers that are left from the slot's state to a replayable one."""
        route = self.lifecycle.route
        for done, trigger in enumerate(route):
            if slot.state in self.spec.lifecycle.transition(trigger).source:
                return route[done:]
        return ()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Leave random generators and what the engine wrote into buffers as they were, early or late."""
        device = self.engine.backend.device
        devices = [device.index] if device.type == "cuda" else []
        with self.engine.arena.saved(), torch.random.fork_rng(devices=devices):
            yield

    def fire(self, slot: Slot, trigger: str, cause: Cause | None = None) -> None:
        """Fire one trigger: its declared steps, then the change of state.

        Raises: IllegalTransition or RuleViolation before any effect; CaptureFailed where a step failed (the slot is
        then in the spec's failure state, cleaned up).
        """
        before = slot.state
        try:
            slot.life.fire(trigger, self._work(slot, trigger), cause=cause)
        except Exception as error:
            if slot.state == before and isinstance(error, CallerError):
                self.observers.emit(events.SLOT_REFUSED, "warning", slot=str(slot.key), trigger=trigger, why=str(error))
                raise
            raise self._failed(slot, trigger, error) from error
        self._tell_state(slot, trigger)

    def _work(self, slot: Slot, trigger: str) -> Perform:
        """Does the steps of `slot`, and holds it against the budget: before the first one, and when it is recorded."""
        perform = Pipeline(engine=self.engine, slot=slot).perform
        asks = [slot.key] if self.budget.limit is not None and trigger in self.lifecycle.route[:1] else []

        def charged(step: Step) -> str | None:
            if asks:
                self.budget.admit(asks.pop(), self.held)
            empty = slot.graph is None
            outcome = perform(step)
            if empty and slot.graph is not None:
                self.budget.charge(slot.key, slot.bytes, self.held)
            return outcome

        return charged

    def _failed(self, slot: Slot, trigger: str, error: Exception) -> CaptureFailed:
        failure = slot.life.last_failure
        step = failure.step if failure else None
        facts = {"slot": str(slot.key), "state": slot.state, "trigger": trigger, "step": step}
        self.observers.emit(f"slot.{slot.state}", "error", **facts, error=repr(error))
        where = f"at step {step}" if step else "at its rules"
        what = f"slot {slot.key} could not be captured: {trigger} failed {where}: {error}"
        hint = f"mend the cause, then reset and capture again; the slot is {slot.state}, the others are as before"
        return CaptureFailed(what, hint=hint, **facts)

    def _tell_state(self, slot: Slot, trigger: str) -> None:
        cause = slot.cause.summary if slot.cause else None
        severity: events.Severity = "info" if cause is None else "warning"
        self.observers.emit(f"slot.{slot.state}", severity, slot=str(slot.key), trigger=trigger, cause=cause)

    def summary(self, slots: Sequence[Slot], seconds: float) -> CaptureSummary:
        """What a run of captures over `slots`, which took so long, has come to by now."""
        ready = self.spec.lifecycle.replays_in
        captured = tuple(slot.key for slot in slots if slot.state in ready)
        failed = tuple(slot.key for slot in slots if slot.state not in ready)
        grown = sum(slot.bytes for slot in slots)
        return CaptureSummary(captured, failed, seconds, grown, self.budget.told)

    def _tell(self, summary: CaptureSummary) -> None:
        self.observers.emit(
            events.CAPTURE_FINISHED,
            captured=len(summary.captured),
            failed=[str(key) for key in summary.failed],
            seconds=round(summary.seconds, 3),
            bytes=summary.bytes,
            forecast=summary.forecast,
        )
