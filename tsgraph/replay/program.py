"""What one replay does, compiled for one slot. No trigger, no logging, no look-up by name that could be made earlier.

Order (rule R38): stage and pad, refresh target then draft, restore communication, replay, cut, update recurrent state.
Where the engine names the variant only then, it is asked just before the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

from tsgraph.buffers.staging import Staging
from tsgraph.capture.pipeline import Engine
from tsgraph.errors import InternalError, ReplayFailed
from tsgraph.keys import Batch, RankCounts
from tsgraph.lifecycle import Effect, Lifecycle, Monitors
from tsgraph.protocols.backend import Graph
from tsgraph.protocols.collaborators import Recurrent
from tsgraph.slots.slot import Counts, Slot


@attrs.define(eq=False, slots=True)
class Program:
    """One slot, ready to be called. `counts` is the slot's own: observers read it when they like.

    `batch` is for refreshes: the recorded one, but with the real counts of the ranks. `choose`: which program's graph
    is replayed for so many live rows, one of this size (None: this one's).
    """

    name: str
    size: int
    batch: Batch
    stage: Callable[[int, Mapping[str, Any]], None]
    refreshes: Sequence[Callable[[Batch, int], None]]
    restores: Sequence[Callable[[], None]]
    graph: Graph
    cut: Callable[[int], Any]
    updates: Sequence[Callable[[Any, int], None]]
    scope: Monitors
    effects: Sequence[Effect]
    abandons: Sequence[Effect]
    counts: Counts
    choose: Callable[[int], Program] | None = None

    def run(self, live: int, sources: Mapping[str, Any], ranks: RankCounts | None = None) -> Any:
        """Serve `live` rows; returns the outputs at live size, views of static memory until the next replay.

        `ranks`: what every rank brings, where there are several.

        Raises: BadBatch before anything is changed; ReplayFailed where the device refuses.
        """
        try:
            with torch.inference_mode():
                self.stage(live, sources)
                self.batch.counts = ranks
                for refresh in self.refreshes:
                    refresh(self.batch, live)
                for restore in self.restores:
                    restore()
                chosen = self if self.choose is None else self.choose(live)
                chosen.replay()
                outputs = chosen.cut(live)
                for update in self.updates:
                    update(outputs, live)
        except BaseException:
            for effect in self.abandons:
                self.scope.apply(effect)
            raise
        for effect in self.effects:
            self.scope.apply(effect)
        chosen.counts.replays += 1
        chosen.counts.pad_rows += self.size - live
        return outputs

    def replay(self) -> None:
        """Replay its graph, nothing else. Raises: ReplayFailed where the device refuses."""
        try:
            self.graph.replay()
        except RuntimeError as error:
            says = str(error).partition("\n")[0]
            raise ReplayFailed(
                f"slot {self.name} failed to replay: {says}", hint="invalidate and recapture it"
            ) from error


def compile_program(
    slot: Slot,
    engine: Engine,
    *,
    recurrent: Recurrent | None,
    lifecycle: Lifecycle,
    choose: Callable[[int], Program] | None = None,
) -> Program:
    """The program of a replayable slot."""
    if slot.graph is None or slot.outputs is None:
        raise InternalError(f"{slot} is to be replayed, but nothing is recorded in it")
    batch = attrs.evolve(slot.batch)
    return Program(
        name=str(slot.key),
        size=slot.key.size,
        batch=batch,
        stage=Staging(engine.arena, slot.key.size).stage,
        refreshes=tuple(_refreshes(engine, batch)),
        restores=(engine.comm.restore,) if engine.comm is not None else (),
        graph=slot.graph,
        cut=slot.outputs.cut,
        updates=(recurrent.update,) if recurrent is not None else (),
        scope=lifecycle.runtime_scope,
        effects=lifecycle.serving.replay,
        abandons=lifecycle.serving.abandon,
        counts=slot.counts,
        choose=choose,
    )


def _refreshes(engine: Engine, batch: Batch) -> Iterator[Callable[[Batch, int], None]]:
    """The target's refresh, then the draft's, which reads what the target's made (R3, R38)."""
    if engine.attention is not None:
        yield engine.attention.refresh
    if engine.drafting is not None:
        yield engine.drafting.refresher(batch)
