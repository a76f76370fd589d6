"""Serving: from a call's rows to its outputs, by the slot that fits or eagerly. The hot entry of a runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tsgraph.buffers.staging import Staging, eager_inputs
from tsgraph.capture.pipeline import Engine
from tsgraph.dispatch.decision import Dispatch
from tsgraph.dispatch.peers import Peers
from tsgraph.errors import BadBatch
from tsgraph.grammar.door import Door
from tsgraph.keys import DEFAULT_VARIANT, Batch, Decision, Mode, RankCounts, Reason
from tsgraph.lifecycle import Lifecycle
from tsgraph.protocols.collaborators import Recurrent
from tsgraph.replay.eager import EagerPath
from tsgraph.replay.program import Program, compile_program
from tsgraph.replay.reasons import EagerReasons
from tsgraph.replay.routes import Routes
from tsgraph.slots.registry import Slots
from tsgraph.slots.slot import Slot


@attrs.define(eq=False, kw_only=True)
class Server:
    """Serves the steps of one runtime. `padded_batch`: the batch of so many rows of a variant, over static buffers.

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
    recurrent: Recurrent | None = None
    door: Door | None = None
    eager_path: EagerPath = attrs.field(init=False)

    @eager_path.default
    def _eager_path(self) -> EagerPath:
        return EagerPath(engine=self.engine, lifecycle=self.lifecycle, recurrent=self.recurrent, door=self.door)

    def publish(self, dispatch: Dispatch, ready: Sequence[Slot]) -> None:
        """Serve by `dispatch` from now on, with the slots that are `ready`."""
        self.routes = self.routes.renewed(dispatch, ready, self.variants, self._compile)

    def _compile(self, slot: Slot) -> Program:
        return compile_program(slot, self.engine, recurrent=self.recurrent, lifecycle=self.lifecycle, door=self.door)

    # -- a call -------------------------------------------------------------------------------------------------------

    def serve(
        self, rows: int | None, mode: Mode, variant: str | None, counts: RankCounts | None, sources: Mapping[str, Any]
    ) -> tuple[Any, Decision]:
        """Serve one step: its outputs at live size, and the decision behind them. See `GraphRuntime.__call__`."""
        if rows is None or rows.__class__ is not int or rows < 0:
            rows = self.live_rows(rows, sources)
        table = self.routes.tables.get(variant or DEFAULT_VARIANT)
        if table is None:
            raise self._unknown_variant(variant)
        if mode is Mode.DECODE and counts is None and rows < len(table):
            decision, program = table[rows]
            if program is not None:
                return program.run(rows, sources), decision
        return self._decided(rows, mode, variant or DEFAULT_VARIANT, counts, sources)

    def _decided(
        self, rows: int, mode: Mode, variant: str, counts: RankCounts | None, sources: Mapping[str, Any]
    ) -> tuple[Any, Decision]:
        counts = self.peers.checked(counts, rows, mode)
        decision = self.routes.dispatch.decide(rows, variant=variant, mode=mode, counts=counts)
        if decision.key is not None:
            return self.routes.programs[decision.key].run(rows, sources, counts), decision
        return self._serve_eagerly(decision, mode, variant, counts, sources), decision

    def explain(self, rows: int, mode: Mode, variant: str | None, counts: RankCounts | None) -> Decision:
        """Where such a step would go, and why. Pure: nothing is run or counted."""
        counts = self.peers.checked(counts, rows, mode)
        return self.routes.dispatch.decide(rows, variant=variant or DEFAULT_VARIANT, mode=mode, counts=counts)

    # -- eager --------------------------------------------------------------------------------------------------------

    def eager(
        self, rows: int | None, mode: Mode, variant: str | None, counts: RankCounts | None, sources: Mapping[str, Any]
    ) -> Any:
        """Run one step eagerly, whatever slots there are; returns its outputs at live size."""
        live = self.live_rows(rows, sources)
        counts = self.peers.checked(counts, live, mode)
        decision = Decision(live, live, Reason.ASKED)
        return self._serve_eagerly(decision, mode, variant or DEFAULT_VARIANT, counts, sources)

    def eager_padded(self, size: int, rows: int | None, variant: str | None, sources: Mapping[str, Any]) -> Any:
        """Run one decode step eagerly through the static buffers, padded to `size` rows; its outputs at live size."""
        live = self.live_rows(rows, sources)
        self.eager_path.admit()
        batch = self._masked(attrs.evolve(self.padded_batch(size, variant or DEFAULT_VARIANT)))
        Staging(self.engine.arena, size).stage(live, sources)
        returned = self.eager_path.run(batch)
        return self.engine.marks.bind(returned, rows=batch.rows, tokens=batch.tokens).cut(live)

    def _serve_eagerly(
        self, decision: Decision, mode: Mode, variant: str, counts: RankCounts | None, sources: Mapping[str, Any]
    ) -> Any:
        rows = decision.rows
        exact = rows * self.tokens_per_request if mode is Mode.DECODE else None
        buffers, tokens = eager_inputs(self.engine.arena, rows, sources, tokens=exact)
        batch = attrs.evolve(self.padded_batch(rows, variant), buffers=buffers, tokens=tokens, mode=mode)
        batch.counts = counts
        self.eager_path.admit()
        self.reasons.note(decision, self.slots.values())
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
