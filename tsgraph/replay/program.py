"""What one replay does, compiled for one slot. No trigger, no logging, no look-up by name that could be made earlier.

Order (rule R38): stage and pad, refresh target then draft, restore communication, replay, cut, update recurrent state.
Where the engine names the variant only then, it is asked just before the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch

from tsgraph.capture.pipeline import Engine
from tsgraph.errors import HostFunctionFailed, InternalError, ReplayFailed
from tsgraph.grammar.door import Door
from tsgraph.keys import Batch, RankCounts
from tsgraph.lifecycle import Effect, Kind, Lifecycle, Monitors
from tsgraph.protocols.backend import Graph
from tsgraph.protocols.collaborators import Recurrent
from tsgraph.replay.guard import Guard, Metadata
from tsgraph.slots.leases import Counted, Leases
from tsgraph.slots.slot import Counts, Slot

_is_inference_mode = torch.is_inference_mode_enabled
_InferenceMode = torch._C._InferenceMode  # noqa: SLF001 - what torch.inference_mode makes at each use, which is once


@attrs.define(eq=False, slots=True)
class Program:
    """One slot, ready to be called. `counts` is the slot's own: observers read it when they like.

    `batch` is for refreshes: the recorded one, but with the real counts of the ranks. `choose`: which program's graph
    is replayed for so many live rows, one of this size (None: this one's). `admit`: asks the rules that guard a replay
    (None: there are none). `launched`: is told as soon as the graph runs (None: nobody wants to know). `metadata`:
    what the graph reads of those that are refreshed (None: nothing that is known).
    """

    name: str
    size: int
    batch: Batch
    stage: Callable[[int, Mapping[str, Any]], None]
    refreshes: Sequence[Callable[[Batch, int], None]]
    restores: Sequence[Callable[[], None]]
    graph: Graph | Counted
    cut: Callable[[int], Any]
    updates: Sequence[Callable[[Any, int], None]]
    scope: Monitors
    effects: Sequence[Effect]
    counts: Counts
    choose: Callable[[int], Program] | None = None
    admit: Callable[[], None] | None = None
    launched: Callable[[], None] | None = None
    metadata: Metadata | None = None
    involved: bool = attrs.field(init=False)

    @involved.default
    def _involved(self) -> bool:
        """Whether collaborators compute: in inference mode. Without any it does not matter, since a replay has none."""
        return bool(self.refreshes or self.restores or self.updates or self.choose or self.launched)

    def run(self, live: int, sources: Mapping[str, Any], ranks: RankCounts | None = None) -> Any:
        """Serve `live` rows; returns the outputs at live size, views of static memory until the next replay.

        `ranks`: what every rank brings, where there are several.

        Raises: RuleViolation or BadBatch before anything is changed; StaleSlot before the graph is launched, where it
        reads other memory than was refreshed; ReplayFailed where the device refuses.
        """
        if self.admit is not None:
            self.admit()
        if not self.involved or _is_inference_mode():
            return self._serve(live, sources, ranks)
        with _InferenceMode(True):
            return self._serve(live, sources, ranks)

    def _serve(  # noqa: C901 - each call saved counts
        self, live: int, sources: Mapping[str, Any], ranks: RankCounts | None
    ) -> Any:
        self.stage(live, sources)
        batch = self.batch
        batch.counts = ranks
        for refresh in self.refreshes:
            refresh(batch, live)
        if self.metadata is not None and self.metadata.turn.look():
            self.metadata.settle(live)
        for restore in self.restores:
            restore()
        chosen = self if self.choose is None else self.choose(live)
        try:
            chosen.graph.replay()
        except HostFunctionFailed:  # of an earlier step: this one was not launched
            raise
        except RuntimeError as error:
            raise chosen.failure(error) from error
        for effect in self.effects:  # whatever is raised from here on, the graph has taken its entry
            self.scope.apply(effect)
        if self.launched is not None:
            self.launched()
        outputs = chosen.cut(live)
        for update in self.updates:
            update(outputs, live)
        chosen.counts.rows[live] += 1
        return outputs

    def failure(self, error: RuntimeError) -> ReplayFailed:
        """That its graph could not be replayed."""
        says = str(error).partition("\n")[0]
        return ReplayFailed(f"slot {self.name} failed to replay: {says}", hint="invalidate and recapture it")


def compile_program(
    slot: Slot,
    engine: Engine,
    *,
    recurrent: Recurrent | None,
    lifecycle: Lifecycle,
    choose: Callable[[int], Program] | None = None,
    door: Door | None = None,
    leases: Leases | None = None,
    guard: Guard | None = None,
) -> Program:
    """The program of a replayable slot. `door`: where the entries of replays wait, if there is a grammar.

    `leases`: what its outputs are leased from, if they are. `guard`: what looks after what it recorded.
    """
    if slot.graph is None or slot.outputs is None:
        raise InternalError(f"{slot} is to be replayed, but nothing is recorded in it")
    batch, name = attrs.evolve(slot.batch), str(slot.key)
    refreshes = tuple(_refreshes(engine, batch))
    return Program(
        name=name,
        size=slot.key.size,
        batch=batch,
        stage=engine.stagings.of(slot.key.size).stage,
        refreshes=refreshes,
        restores=(engine.comm.restore,) if engine.comm is not None else (),
        graph=slot.graph if leases is None else leases.counting(name, slot.graph),
        cut=slot.outputs.cut if leases is None else leases.leasing(name, slot.outputs),
        updates=(recurrent.update,) if recurrent is not None else (),
        scope=lifecycle.runtime_scope,
        effects=lifecycle.serving.replay,
        counts=slot.counts,
        choose=choose,
        admit=asking("replay", lifecycle, door),
        launched=None if door is None else door.launched,
        metadata=None if guard is None else guard.metadata_of(slot.key, batch, refreshes),
    )


def asking(kind: Kind, lifecycle: Lifecycle, door: Door | None) -> Callable[[], None] | None:
    """What asks the rules that guard a serving of `kind`; None where nothing does."""
    if not lifecycle.guarded(kind):
        return None
    return partial(lifecycle.admit if door is None else door.admit, kind)


def _refreshes(engine: Engine, batch: Batch) -> Iterator[Callable[[Batch, int], None]]:
    """The target's refresh, then the draft's, which reads what the target's made (R3, R38)."""
    if engine.attention is not None:
        yield engine.attention.refresh
    if engine.drafting is not None:
        yield engine.drafting.refresher(batch)
