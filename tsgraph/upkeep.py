"""The half of a runtime's front door that tends its slots: captures, sleep and wake, staleness, memory, the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Self

from tsgraph.buffers.contract import Fixed, State
from tsgraph.capture.probing import Context, probe_constants
from tsgraph.dispatch.decision import Dispatch
from tsgraph.errors import BadBatch
from tsgraph.keys import Reason, SlotKey
from tsgraph.lifecycle import Cause
from tsgraph.replay.turnstile import CLOSED, Turnstile

if TYPE_CHECKING:
    from tsgraph.assembly import Parts
    from tsgraph.capture.keeper import Keeper
    from tsgraph.capture.session import CaptureSummary
    from tsgraph.receipts.probe import Probe
    from tsgraph.receipts.receipt import CaptureReceipt
    from tsgraph.replay.places import Change
    from tsgraph.replay.server import Server
    from tsgraph.slots.registry import Slots
    from tsgraph.slots.slot import Slot
    from tsgraph.spec.model import Spec


class Upkeep:
    """What `GraphRuntime` does with its slots between steps. Only one thread at a time is let in."""

    spec: Spec
    slots: Slots
    _parts: Parts
    _server: Server
    _turnstile: Turnstile
    _keeper: Keeper
    _enabled: bool

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    def capture(self, *keys: tuple[str, int]) -> CaptureSummary:
        """Capture the slots of `keys` (none: all) that are not replayable yet, largest first; stale ones again.

        A slot that fails, also for want of room in the memory budget, is served eagerly, or raises CaptureFailed, as
        the spec's policy says; the others, global state and memory are as before either way. What stale slots hold is
        given back first, all of it: no old graph is there any more when new ones are recorded (fault M2).

        Raises: BadBatch, with nothing changed, where a module's or a state's memory is not there.
        """
        with self._turnstile.passing("capture"):
            return self._keeper.capture([self.slots[key] for key in keys] or self.slots.values())

    def fire(self, key: tuple[str, int], trigger: str, why: str | None = None) -> None:
        """Fire one trigger of one slot by hand; `why` is kept as its cause.

        Raises: IllegalTransition or RuleViolation before any effect; CaptureFailed where a step failed.
        """
        with self._turnstile.passing(f"`{trigger}`"):
            self._keeper.fire(self.slots[key], trigger, None if why is None else Cause("asked", why))

    def invalidate(self, why: str, *keys: tuple[str, int]) -> None:
        """Say that something the slots of `keys` (none: all that are replayable) recorded has changed."""
        with self._turnstile.passing("invalidate"):
            trigger = self.spec.lifecycle.on_change
            self._keeper.fire_all(trigger, self._chosen(trigger, keys), Cause("asked", why))

    def release(self, *keys: tuple[str, int], why: str = "released by the caller") -> int:
        """Give back the graphs of the slots of `keys` (none: all that hold one); returns by how much the pool shrank.

        The pool is the unit: the device gets its bytes back with the last graph, but for what holds outputs that the
        caller still has; until then, what a slot held serves the pool's next recordings. Weights and states may be
        moved or brought away meanwhile, and steps run eagerly where they can. After a release of everything no step
        has a slot captured, whatever the policy says, until `wake` or `capture`.
        """
        with self._turnstile.passing("release"):
            chosen = [self.slots[key] for key in dict.fromkeys(keys)] or self._keeper.holders()
            return self._keeper.release(chosen, why, everything=not keys)

    def check_addresses(self) -> tuple[Change, ...]:
        """Look at all that graphs recorded, now; slots of which something has changed become stale. What has changed.

        Replays look by themselves, at all of it in so many replays as the spec's policy says: call this where engine
        code has just replaced memory, above all where the old is gone for good.
        """
        with self._turnstile.passing("check_addresses"):
            return self._server.settle()

    def reset(self, *keys: tuple[str, int]) -> None:
        """Take the slots of `keys` (none: all that are stale, failed or released) back to where capture begins."""
        with self._turnstile.passing("reset"):
            trigger = self.spec.lifecycle.on_reset
            self._keeper.fire_all(trigger, self._chosen(trigger, keys))

    def wake(
        self, *, state: Mapping[str, State] | None = None, fixed: Mapping[str, Fixed] | None = None
    ) -> CaptureSummary:
        """Capture again, with the addresses of now, what has lost its recording: what was released, and what is stale.

        What had no recording when it was released is not captured, nor is what was evicted; what failed is tried once
        more. `state`, `fixed`: tensors that were made anew in between, by name. A wake that fails half-way leaves each
        slot replayable, failed or still released, with its cause; the next one goes on.

        Raises: BadBatch, with no slot changed, where memory is not back yet; CaptureFailed as `capture` does.
        """
        with self._turnstile.passing("wake"):
            tensors = {name: declared.tensor for name, declared in (fixed or {}).items()}
            self._parts.declared.replace(state or {}, tensors)
            return self._keeper.wake()

    def evict(self, count: int) -> int:
        """Give back `count` bytes of graphs, or more; returns by how many the pool shrank, which may be fewer.

        The least used slots go, by their replays since slots came or went last; those that are forecast to fit stay.
        The pool is the unit, so all of it is given back and what stays is captured anew: at once, or where captures are
        lazy when a step wants it. Evicted slots run eagerly then, or until a step wants them; else reset and capture.

        Raises: BadBatch for what is no number of bytes; RankDisagreement, with nothing changed, where other ranks would
        let other slots stay.
        """
        if type(count) is not int or count < 0:
            raise BadBatch(f"bytes to give back are a whole number, 0 or more, not {count!r}")
        with self._turnstile.passing("evict"):
            return self._keeper.evict(count)

    def graph_memory(self) -> dict[str, int | None]:
        """Bytes that graphs hold now, the budget, and what the newest run of captures was forecast to add, if told."""
        budget = self._keeper.budget
        return {"bytes": self._keeper.held, "budget": budget.limit, "forecast": budget.told}

    @property
    def memory_budget(self) -> int | None:
        """The most bytes that graphs may hold (None: any number). Captures from now on keep a new one."""
        return self._keeper.budget.limit

    @memory_budget.setter
    def memory_budget(self, limit: int | None) -> None:
        with self._turnstile.passing("memory_budget", recorded=True):
            self._keeper.budget.limit = limit

    def close(self) -> None:
        """End every slot and give back graphs and memory; every later call says that it is closed. Twice is once."""
        if self._turnstile.inside == CLOSED:
            return
        with self._turnstile.passing("close"), ExitStack() as steps:
            steps.callback(self._turnstile.close)
            steps.callback(self._keeper.tidy)
            for slot in self.slots.values():
                trigger = self.spec.lifecycle.ending(slot.state)
                if trigger is not None:
                    steps.callback(self._parts.capturer.fire, slot, trigger)

    def __enter__(self) -> Self:
        """The runtime, which is closed when the block is left."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _chosen(self, trigger: str, keys: tuple[tuple[str, int], ...]) -> Sequence[Slot]:
        """The slots of `keys`; none: all in whose state the trigger exists."""
        source = self.spec.lifecycle.transition(trigger).source
        return [self.slots[key] for key in dict.fromkeys(keys)] or self.slots.in_state(*source)

    def _publish(self) -> None:
        """Renew what calls read, from the slots' states."""
        parts, law = self._parts, self.spec
        ready = self.slots.in_state(*law.lifecycle.replays_in)
        blocked = {slot.key: self._reason(slot) for slot in self.slots.values() if slot not in ready}
        gone = [law.lifecycle.transition(on).to for on in (law.lifecycle.on_change, law.lifecycle.on_release)]
        causes = {slot.key: slot.cause.summary for slot in self.slots.in_state(*gone) if slot.cause is not None}
        dispatch = Dispatch(parts.sizes, law.sizes.padding, self._enabled, blocked, parts.peers, causes)
        self._server.publish(dispatch, ready)

    def _reason(self, slot: Slot) -> Reason:
        return Reason.ON_DEMAND if self._keeper.awaits(slot) else self._parts.reason(slot)

    # -- receipts -----------------------------------------------------------------------------------------------------

    def receipts(self) -> dict[SlotKey, CaptureReceipt]:
        """What each recording really reads, writes and has baked in, by slot; slots without a recording have none."""
        return {slot.key: slot.receipt for slot in self.slots.values() if slot.receipt is not None}

    def probe_constants(
        self, key: tuple[str, int], contexts: tuple[Context, Context] = (nullcontext, nullcontext)
    ) -> Probe:
        """Record the step of a slot twice, in two contexts and over two fills of the buffers: what is baked in.

        A context makes what a recording is made in: `lambda: temperature(0.7)`, a context manager. The second recording
        finds in buffers what they declare as `probe`. Slots, live state, random generators and the grammar queue stay
        as they are. With several ranks, all of them probe.

        Raises: CaptureFailed, with nothing left, where the step cannot be recorded; what a context raises.
        """
        with self._turnstile.passing("probe_constants"):
            return probe_constants(self._parts.capturer, self.slots[key].batch, contexts)
