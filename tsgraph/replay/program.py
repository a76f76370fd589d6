"""What one replay does, compiled for one slot. No trigger, no logging, no look-up by name that could be made earlier.

Order (rule R38): stage and pad, refresh target then draft, restore communication, replay, cut, update recurrent state.
Where the engine names the variant only then, it is asked just before the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
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

_AS_IT_IS = nullcontext()


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
    mode: torch.inference_mode | None = attrs.field(init=False)

    @mode.default
    def _mode(self) -> torch.inference_mode | None:
        """What collaborators compute in, made once; None without any, since torch's mode is nothing to a replay."""
        involved = self.refreshes or self.restores or self.updates or self.choose or self.launched
        return torch.inference_mode() if involved else None

    def run(self, live: int, sources: Mapping[str, Any], ranks: RankCounts | None = None) -> Any:
        """Serve `live` rows; returns the outputs at live size, views of static memory until the next replay.

        `ranks`: what every rank brings, where there are several.

        Raises: RuleViolation or BadBatch before anything is changed; StaleSlot before the graph is launched, where it
        reads other memory than was refreshed; ReplayFailed where the device refuses.
        """
        if self.admit is not None:
            self.admit()
        with _AS_IT_IS if self.mode is None or torch.is_inference_mode_enabled() else self.mode:
            self.stage(live, sources)
            self.batch.counts = ranks
            for refresh in self.refreshes:
                refresh(self.batch, live)
            if self.metadata is not None and self.metadata.turn.look():
                self.metadata.settle(live)
            for restore in self.restores:
                restore()
            chosen = self if self.choose is None else self.choose(live)
            chosen.replay()
            for effect in self.effects:  # whatever is raised from here on, the graph has taken its entry
                self.scope.apply(effect)
            if self.launched is not None:
                self.launched()
            outputs = chosen.cut(live)
            for update in self.updates:
                update(outputs, live)
        chosen.counts.replays += 1
        chosen.counts.pad_rows += self.size - live
        return outputs

    def replay(self) -> None:
        """Replay its graph, nothing else.

        Raises: ReplayFailed where the device refuses; HostFunctionFailed for an earlier step, and nothing is run.
        """
        try:
            self.graph.replay()
        except HostFunctionFailed:  # of an earlier step: this one was not launched
            raise
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
