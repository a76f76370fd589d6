"""Faults of what happens around a replay, and of what it hands out (R5, R36, R38 to R42)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from tsgraph.capture.pipeline import Pipeline
from tsgraph.replay import server
from tsgraph.replay.program import Program
from tsgraph.slots.outputs import Outputs
from tsgraph.slots.slot import Slot
from tsgraph.testing.faults.fault import Change, Fault, Patch, replaced

Compile = Callable[..., Program]


def _compiled(change: Callable[[Program, Any], dict[str, Any]]) -> Change:
    """A change of `compile_program`: what `change(program, engine)` names is otherwise."""

    def wrong(compile_program: Compile) -> Compile:
        def compiled(slot: Slot, engine: Any, **words: Any) -> Program:
            program = compile_program(slot, engine, **words)
            return attrs.evolve(program, **change(program, engine))

        return compiled

    return wrong


def _refreshed_late(program: Program, _engine: Any) -> dict[str, Any]:
    def refresh(_outputs: Any, live: int) -> None:
        for each in program.refreshes:
            each(program.batch, live)

    return {"refreshes": (), "updates": (refresh, *program.updates)}


def _draft_first(program: Program, _engine: Any) -> dict[str, Any]:
    return {"refreshes": tuple(reversed(program.refreshes))}


def _draft_from_before(program: Program, _engine: Any) -> dict[str, Any]:
    """The draft is refreshed with what was staged for the step before."""

    def stage(live: int, sources: Any) -> None:
        for refresh in program.refreshes:
            refresh(program.batch, live)
        program.stage(live, sources)

    return {"stage": stage, "refreshes": program.refreshes[:1]}


def _unrestored(_program: Program, _engine: Any) -> dict[str, Any]:
    return {"restores": ()}


def _refilled(program: Program, engine: Any) -> dict[str, Any]:
    def refill(batch: Any, _live: int) -> None:
        if engine.sampler is not None:
            engine.sampler.prepare(batch)

    return {"refreshes": (*program.refreshes, refill)}


def _updated_with_pads(program: Program, _engine: Any) -> dict[str, Any]:
    def padded(update: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        return lambda _outputs, _live: update(program.cut(program.size), program.size)

    return {"updates": tuple(padded(update) for update in program.updates)}


def _updated_early(program: Program, _engine: Any) -> dict[str, Any]:
    """State advances by the outputs that the replay before has left."""

    def refresh(_batch: Any, live: int) -> None:
        for update in program.updates:
            update(program.cut(live), live)

    return {"refreshes": (*program.refreshes, refresh), "updates": ()}


def _unupdated(_program: Program, _engine: Any) -> dict[str, Any]:
    return {"updates": ()}


def _uncut(cut: Callable[..., Any]) -> Callable[..., Any]:
    def whole(self: Outputs, _live: int) -> Any:
        pairs = zip(self.leaves, self.rows_per_live, strict=True)
        leading = [len(leaf) // per for leaf, per in pairs if leaf is not None and per]
        return cut(self, max(leading, default=0))

    return whole


def _copied_outputs(record: Callable[[Pipeline], None]) -> Callable[[Pipeline], None]:
    """What a slot keeps are copies of its outputs; nobody holds the memory that its replays write."""

    def recorded(self: Pipeline) -> None:
        record(self)
        held = self.slot.outputs
        if held is not None:
            copies = tuple(None if leaf is None else torch.zeros_like(leaf) for leaf in held.leaves)
            self.slot.outputs = attrs.evolve(held, leaves=copies)

    return recorded


def _own_pool(self: Pipeline) -> Any:
    return self.engine.backend.pool()


COMPILE = (server, "compile_program")

FAULTS = (
    Fault(
        "refresh_after_replay",
        "metadata are refreshed when the graph has read them",
        ("R38",),
        (Patch(*COMPILE, _compiled(_refreshed_late)),),
    ),
    Fault(
        "draft_before_target",
        "the draft is refreshed from what the target had the step before",
        ("R38",),
        (Patch(*COMPILE, _compiled(_draft_first)),),
    ),
    Fault(
        "draft_from_before",
        "the draft gets the lengths of the step before, not the target's padded ones",
        ("R36",),
        (Patch(*COMPILE, _compiled(_draft_from_before)),),
    ),
    Fault(
        "restore_skipped",
        "communication is not restored before a replay",
        ("R38",),
        (Patch(*COMPILE, _compiled(_unrestored)),),
    ),
    Fault(
        "sampler_refilled",
        "a replay fills the random numbers anew, over those of the requests",
        ("R39",),
        (Patch(*COMPILE, _compiled(_refilled)),),
    ),
    Fault(
        "recurrent_update_with_pads",
        "recurrent state is updated with the pad rows too",
        ("R42",),
        (Patch(*COMPILE, _compiled(_updated_with_pads)),),
    ),
    Fault(
        "recurrent_update_early",
        "recurrent state is updated before the replay",
        ("R42",),
        (Patch(*COMPILE, _compiled(_updated_early)),),
    ),
    Fault(
        "recurrent_update_skipped",
        "recurrent state is not updated",
        ("R42",),
        (Patch(*COMPILE, _compiled(_unupdated)),),
    ),
    Fault(
        "uncut_outputs",
        "outputs are handed out with their pad rows",
        ("R40",),
        (Patch(Outputs, "cut", _uncut),),
    ),
    Fault(
        "outputs_not_held",
        "a slot keeps copies of its outputs, and not the memory that replays write",
        ("R5",),
        (Patch(Pipeline, "record", _copied_outputs),),
    ),
    Fault(
        "pool_for_each_slot",
        "each graph has a pool of its own",
        ("R5",),
        (Patch(Pipeline, "_pool", replaced(_own_pool)),),
    ),
)
