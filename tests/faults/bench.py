"""A small engine for what needs no attention: a trivial step, all collaborators, and misbehaviour on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from tests.faults.parts import Attention, Parts
from tests.faults.rig import require
from tests.faults.shape import Shape
from tsgraph.buffers.contract import Fixed, State
from tsgraph.capture.mode import is_capturing
from tsgraph.keys import Batch
from tsgraph.runtime import GraphRuntime

LIVE_ROW, SINK_ROW = 2, 0
Moment = Literal["never", "warming", "recording"]


@attrs.define(eq=False)
class CopyingAttention(Attention):
    """Metadata that put a copy of the lengths into the batch."""

    def bind(self, batch: Batch) -> None:
        super().bind(batch)
        batch.buffers = {**batch.buffers, "seq_lens": batch.seq_lens.clone()}


@attrs.define(eq=False)
class Bench:
    """The engine. `misbehave(bench, batch)` is called at the `moment`, in the forward."""

    shape: Shape
    misbehave: Callable[[Bench, Batch], None] = lambda _bench, _batch: None
    moment: Moment = "never"
    parts: Parts = attrs.field(init=False)
    rows: Tensor = attrs.field(init=False, factory=lambda: torch.zeros(4))
    undeclared: Tensor = attrs.field(init=False, factory=lambda: torch.zeros(4))
    moving: torch.nn.Linear = attrs.field(init=False, factory=lambda: torch.nn.Linear(2, 2))

    def __attrs_post_init__(self) -> None:
        self.parts = Parts.of(self.shape)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Ids plus one, and as many of the variant as there are requests."""
        if self.moment == ("recording" if is_capturing() else "warming"):
            self.misbehave(self, batch)
        self.parts.enter(batch)
        self.rows[SINK_ROW].add_(1)
        lengths = batch.seq_lens.long() + (100 if batch.variant == "greedy" else 0)
        return {"tokens": batch.input_ids + 1, "accept_lengths": lengths}

    def runtime(self, **rest: Any) -> GraphRuntime:
        """A runtime of it. `rest` replaces arguments."""
        parts = self.parts
        fixed = {f"part {name}": Fixed(each) for name, each in parts.tensors().items() if name != "dirt"}
        words: dict[str, Any] = {
            "geometry": self.shape.geometry,
            "sizes": self.shape.sizes,
            "fixed": fixed,
            "modules": [self.moving],
            "state": {"rows": State(self.rows, sink=SINK_ROW)},
            "backend": "emulated",
            "observers": (),
            "outputs": {"tokens": "token", "accept_lengths": "request"},
            **parts.collaborators(),
        }
        return GraphRuntime(self.shape.law, self.step, **{**words, **rest})

    def captured(self, **rest: Any) -> GraphRuntime:
        """A runtime of it that has tried to capture every slot."""
        runtime = self.runtime(**rest)
        with self.parts.capturing():
            runtime.capture()
        return runtime


@contextmanager
def entry(runtime: GraphRuntime, rows: int) -> Iterator[None]:
    """Around one step: its grammar entry is pushed, and taken back where the step did not take it."""
    ticket = runtime.push(rows)
    try:
        yield
    finally:
        runtime.cancel(ticket)


def require_replayable(runtime: GraphRuntime) -> None:
    """Raise AssertionError unless every slot is replayable."""
    wrong = {str(slot): str(slot.cause) for slot in runtime.slots.values() if slot.state != "replayable"}
    require(not wrong, f"slots were not captured: {wrong}")
