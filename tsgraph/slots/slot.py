"""One slot: its key, its life, and what a recording left in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from tsgraph.keys import Batch, SlotKey
from tsgraph.lifecycle import Cause, Entry, Explanation, Life
from tsgraph.protocols.backend import Graph
from tsgraph.spec.draw import draw_spec

if TYPE_CHECKING:
    from tsgraph.receipts.receipt import CaptureReceipt
    from tsgraph.slots.outputs import Outputs


REMADE = "remade"
"""The kind of cause of a slot whose memory is made anew for each step: to record that again is no help."""


@attrs.define(eq=False)
class Counts:
    """How often a slot of `size` rows was replayed, by live rows: exactly, and at no cost.

    `rows`: replays with 0, 1, … `size` live rows. A replay adds one to one of these integers, and counts nothing else.
    `captured_at`: how many replays there had been when it was captured last.
    """

    size: int
    captured_at: int = 0
    rows: list[int] = attrs.field(init=False)

    @rows.default
    def _none(self) -> list[int]:
        return [0] * (self.size + 1)

    @property
    def replays(self) -> int:
        """All replays."""
        return sum(self.rows)

    @property
    def pad_rows(self) -> int:
        """Pad rows that all replays computed."""
        return sum((self.size - live) * replays for live, replays in enumerate(self.rows))

    @property
    def since_capture(self) -> int:
        """Replays of the recording that it has, or had last."""
        return self.replays - self.captured_at


@attrs.define(eq=False)
class Slot:
    """One recording for one key, and everything known about it.

    `graph`, `outputs`, `receipt` (what it recorded) and `seconds` (host time of its capture) are there from `captured`
    on; `bytes` is by how much its recording grew the pool. `was_recorded`: whether there was one to forget when it was
    last told to. `warmed`: whether forwards of its own warmed it up since. `tickets` are grammar entries that this slot
    pushed and nothing consumed yet.
    """

    key: SlotKey
    life: Life
    batch: Batch
    graph: Graph | None = None
    outputs: Outputs | None = None
    receipt: CaptureReceipt | None = None
    seconds: float = 0.0
    counts: Counts = attrs.field(default=attrs.Factory(lambda self: Counts(self.key.size), takes_self=True))
    addresses: dict[str, int] = attrs.field(factory=dict)
    generations: dict[str, int] = attrs.field(factory=dict)
    was_recorded: bool = False
    warmed: bool = False
    tickets: list[Any] = attrs.field(factory=list)

    @property
    def state(self) -> str:
        """The state it is in, as the spec names it."""
        return self.life.state

    @property
    def cause(self) -> Cause | None:
        """Why it is stale, failed or released; None in every other state."""
        return self.life.cause

    @property
    def history(self) -> tuple[Entry, ...]:
        """What happened to it, oldest first: steps' events and changes of state."""
        return self.life.history

    @property
    def bytes(self) -> int:
        """Bytes by which its recording grew the pool."""
        return self.graph.bytes if self.graph else 0

    def can(self, trigger: str) -> bool:
        """Whether `trigger` would be allowed now, its declared steps included."""
        return self.life.can(trigger)

    def explain(self, trigger: str) -> Explanation:
        """Whether `trigger` would be allowed now and, if not, the first refusal: which rule, why, and what to do."""
        return self.life.explain(trigger)

    def diagram(self) -> str:
        """Its lifecycle as a Mermaid state diagram, the state that it is in marked."""
        return draw_spec(self.life.spec, self.state)

    def let_go(self) -> None:
        """Hold no longer what it recorded, since it has to be recorded anew. The receipt tells of it all the same.

        Nobody else gets the memory before what is queued on the current stream is done: a replay may still read it.
        """
        if self.receipt is None:
            return
        for kept in self.receipt.kept:
            if kept.is_cuda:
                kept.record_stream(torch.cuda.current_stream(kept.device))
        self.receipt = attrs.evolve(self.receipt, kept=())

    def forget(self) -> None:
        """Give back the recording and its memory; its facts about the past stay."""
        self.let_go()
        self.warmed = False
        graph, self.graph, self.outputs, self.receipt = self.graph, None, None, None
        self.addresses.clear()
        self.generations.clear()
        self.was_recorded = graph is not None
        if graph is not None:
            graph.release()

    def __str__(self) -> str:
        return f"slot {self.key} [{self.state}]"
