"""Serving: from a call's rows to its outputs, by the slot that fits or eagerly. The hot entry of a runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any

import attrs

from tsgraph import events
from tsgraph.buffers.sources import demand_rows, roots_first
from tsgraph.buffers.staging import Staging, eager_inputs
from tsgraph.capture.pipeline import Engine
from tsgraph.dispatch.decision import Dispatch
from tsgraph.dispatch.peers import Peers
from tsgraph.errors import BadBatch, StaleSlot
from tsgraph.grammar.door import Door
from tsgraph.keys import DEFAULT_VARIANT, Batch, Decision, Mode, RankCounts, Reason, SlotKey
from tsgraph.lifecycle import Cause, Lifecycle
from tsgraph.protocols.backend import Backend
from tsgraph.protocols.collaborators import Recurrent
from tsgraph.replay.eager import EagerPath
from tsgraph.replay.guard import Guard, causes_of
from tsgraph.replay.places import Change
from tsgraph.replay.program import Program, asking, compile_program
from tsgraph.replay.reasons import EagerReasons
from tsgraph.replay.routes import Routes
from tsgraph.replay.turnstile import NOBODY, STEP, Turnstile
from tsgraph.slots.leases import Leases, copied, unleased
from tsgraph.slots.registry import Slots
from tsgraph.slots.slot import Slot

_DECODE = Mode.DECODE


@attrs.define(eq=False, kw_only=True)
class Server:
    """Serves the steps of one runtime. `padded_batch`: the batch of so many rows of a variant, over static buffers.

    `want` is told of a slot that a step wants and that is captured on demand, before the step is served; `stale` of
    slots that have recorded what has changed since, before they serve again.
    What a step reads is swapped whole by `publish`, so a call never sees a slot half-changed.
    """

    engine: Engine
    lifecycle: Lifecycle
    slots: Slots
    peers: Peers
    variants: Sequence[str]
    tokens_per_request: int
    padded_batch: Callable[[int, str], Batch]
    reasons: EagerReasons
    routes: Routes
    turnstile: Turnstile
    guard: Guard
    recurrent: Recurrent | None = None
    door: Door | None = None
    leases: Leases | None = None
    want: Callable[[SlotKey], None] = lambda _: None
    stale: Callable[[Mapping[SlotKey, Cause]], None] = lambda _: None
    backend: Backend = attrs.field(init=False)
    look: Callable[[], bool] | None = attrs.field(init=False)
    eager_path: EagerPath = attrs.field(init=False)

    @backend.default
    def _backend(self) -> Backend:
        return self.engine.backend

    @look.default
    def _look(self) -> Callable[[], bool] | None:
        return self.guard.look if self.guard.looks else None

    @eager_path.default
    def _eager_path(self) -> EagerPath:
        return EagerPath(engine=self.engine, lifecycle=self.lifecycle, recurrent=self.recurrent, door=self.door)

    def publish(self, dispatch: Dispatch, ready: Sequence[Slot]) -> None:
        """Serve by `dispatch` from now on, with the slots that are `ready`."""
        self.guard.watch(ready)
        self.routes = self.routes.renewed(dispatch, ready, self.variants, self._compile)

    def _compile(self, slot: Slot) -> Program:
        return compile_program(
            slot,
            self.engine,
            recurrent=self.recurrent,
            lifecycle=self.lifecycle,
            door=self.door,
            leases=self.leases,
            guard=self.guard,
        )

    # -- a call -------------------------------------------------------------------------------------------------------

    def serve(  # noqa: C901 - each call saved counts
        self,
        rows: int | None,
        mode: Mode,
        variant: str | None,
        counts: RankCounts | None,
        clone: bool,
        sources: Mapping[str, Any],
    ) -> tuple[Any, Decision]:
        """Serve one step: its outputs at live size, and the decision behind them. See `GraphRuntime.__call__`."""
        turnstile, thread = self.turnstile, get_ident()
        if turnstile.inside:
            raise turnstile.refusal(STEP)
        turnstile.inside = thread
        try:
            if self.backend.recording:
                raise turnstile.refusal_of_recording(STEP)
            if self.leases is not None:
                sources = unleased(sources)
            if rows.__class__ is not int or rows < 0:  # None is of another class
                rows = self.live_rows(rows, sources)
            table = self.routes.tables.get(variant or DEFAULT_VARIANT)
            if table is None:
                raise self._unknown_variant(variant)
            if mode is _DECODE and counts is None and rows < len(table):
                decision, program = table[rows]
                if program is not None and not ((look := self.look) is not None and look() and self.settle()):
                    try:
                        outputs = program.run(rows, sources)
                        return (copied(outputs) if clone else outputs), decision
                    except StaleSlot as error:
                        self._take(error)
            table = program = None  # they would hold memory of slots that make room for a capture now
            outputs, decision = self._decided(rows, mode, variant or DEFAULT_VARIANT, counts, sources)
            return (copied(outputs) if clone else outputs), decision
        finally:
            turnstile.inside = NOBODY

    def _decided(
        self, rows: int, mode: Mode, variant: str, counts: RankCounts | None, sources: Mapping[str, Any]
    ) -> tuple[Any, Decision]:
        counts = self.peers.checked(counts, rows, mode)
        decision = self._decide(rows, mode, variant, counts)
        if decision.key is not None and self.look is not None and self.look() and self.settle():
            decision = self._decide(rows, mode, variant, counts)
        if decision.reason is Reason.ON_DEMAND:
            self._demand(rows, variant, counts, sources)
            decision = self._decide(rows, mode, variant, counts)
        if decision.key is not None:
            try:
                return self.routes.programs[decision.key].run(rows, sources, counts), decision
            except StaleSlot as error:
                self._take(error)
                decision = self._decide(rows, mode, variant, counts)
        return self._serve_eagerly(decision, mode, variant, counts, sources), decision

    def _decide(self, rows: int, mode: Mode, variant: str, counts: RankCounts | None) -> Decision:
        return self.routes.dispatch.decide(rows, variant=variant, mode=mode, counts=counts)

    def settle(self) -> tuple[Change, ...]:
        """Look at all that graphs recorded; slots of which something has changed serve no more. What has changed."""
        changes = self.guard.changes()
        if changes:
            causes, told = causes_of(changes), [str(change) for change in changes]
            self.reasons.observers.emit(events.MEMORY_MOVED, "warning", changes=told, slots=[*map(str, causes)])
            self.stale(causes)
        return changes

    def _take(self, error: StaleSlot) -> None:
        """A program found its recording stale before its launch. Raises: `error`, if that is what a part has found."""
        if not self.settle():
            raise error

    def _demand(self, rows: int, variant: str, counts: RankCounts | None, sources: Mapping[str, Any]) -> None:
        """Have the slot captured that a step wants, unless the call is to be refused: then nothing may change."""
        admit, arena = asking("replay", self.lifecycle, self.door), self.engine.arena
        if admit is not None:
            admit()
        fields, device = roots_first(arena.fields), arena.backend.device
        demand_rows(fields, lambda field: rows * field.rows_per_request, device, idle=rows == 0).take(sources)
        self.want(self.routes.dispatch.key_of(rows, variant=variant, counts=counts))

    def explain(self, rows: int, mode: Mode, variant: str | None, counts: RankCounts | None) -> Decision:
        """Where such a step would go, and why. Pure: nothing is run or counted."""
        return self._decide(rows, mode, variant or DEFAULT_VARIANT, self.peers.checked(counts, rows, mode))

    # -- eager --------------------------------------------------------------------------------------------------------

    def eager(
        self, rows: int | None, mode: Mode, variant: str | None, counts: RankCounts | None, sources: Mapping[str, Any]
    ) -> Any:
        """Run one step eagerly, whatever slots there are; returns its outputs at live size."""
        sources = unleased(sources)
        live = self.live_rows(rows, sources)
        counts = self.peers.checked(counts, live, mode)
        decision = Decision(live, live, Reason.ASKED)
        return self._serve_eagerly(decision, mode, variant or DEFAULT_VARIANT, counts, sources)

    def eager_padded(self, size: int, rows: int | None, variant: str | None, sources: Mapping[str, Any]) -> Any:
        """Do all that a replay of `size` rows does, but run the step itself; its outputs at live size."""
        sources = unleased(sources)
        live = self.live_rows(rows, sources)
        self.eager_path.admit()
        batch = self._masked(attrs.evolve(self.padded_batch(size, variant or DEFAULT_VARIANT)))
        Staging(self.engine.arena, size).stage(live, sources)
        if self.engine.comm is not None:
            self.engine.comm.restore()
        returned = self.eager_path.run(batch)
        outputs = self.engine.marks.bind(returned, rows=batch.rows, tokens=batch.tokens).cut(live)
        self.eager_path.update(outputs, live)
        return outputs

    def _serve_eagerly(
        self, decision: Decision, mode: Mode, variant: str, counts: RankCounts | None, sources: Mapping[str, Any]
    ) -> Any:
        rows = decision.rows
        exact = rows * self.tokens_per_request if mode is Mode.DECODE else None
        buffers, tokens = eager_inputs(self.engine.arena, rows, sources, tokens=exact)
        batch = attrs.evolve(self.padded_batch(rows, variant), buffers=buffers, tokens=tokens, mode=mode)
        batch.counts = counts
        self.eager_path.admit()
        self.reasons.note(decision, batch, self.slots.values())
        return self.eager_path.serve(self._masked(batch))

    def _masked(self, batch: Batch) -> Batch:
        """`batch` with the mask that it reads: a slot of its size need not have bound one, nor exist (R18)."""
        grammar = self.engine.grammar
        if grammar is not None:
            batch.mask = grammar.bind(batch)
        return batch

    # -- what a call says ---------------------------------------------------------------------------------------------

    def live_rows(self, rows: int | None, sources: Mapping[str, Any]) -> int:
        """How many live rows a call has: what it says, or what its sources say. Raises: BadBatch."""
        if rows is None:
            return self.engine.arena.count_rows(sources)
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
            raise BadBatch(f"rows must be a non-negative integer, not {rows!r}")
        return rows

    def _unknown_variant(self, variant: str | None) -> BadBatch:
        return BadBatch(f"variant {variant!r} was never captured", hint=f"the variants are {', '.join(self.variants)}")
