"""One slot: its key, its life, and what a recording left in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from tsgraph.keys import Batch, SlotKey
from tsgraph.lifecycle import Cause, Entry, Explanation, Life
from tsgraph.protocols.backend import Graph
from tsgraph.spec.draw import draw_spec

if TYPE_CHECKING:
    from tsgraph.slots.outputs import Outputs


@attrs.define(eq=False)
class Counts:
    """How often a slot was replayed, and how many pad rows that computed. Integers that the program moves."""

    replays: int = 0
    pad_rows: int = 0


@attrs.define(eq=False)
class Slot:
    """One recording for one key, and everything known about it.

    `graph`, `outputs` and `seconds` (host time of its capture) are there from `captured` on; `bytes` is by how much its
    recording grew the pool. `tickets` are grammar entries that this slot pushed and nothing consumed yet.
    """

    key: SlotKey
    life: Life
    batch: Batch
    graph: Graph | None = None
    outputs: Outputs | None = None
    seconds: float = 0.0
    counts: Counts = attrs.field(factory=Counts)
    addresses: dict[str, int] = attrs.field(factory=dict)
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

    def forget(self) -> None:
        """Give back the recording and its memory; its facts about the past stay."""
        graph, self.graph, self.outputs = self.graph, None, None
        self.addresses.clear()
        if graph is not None:
            graph.release()

    def __str__(self) -> str:
        return f"slot {self.key} [{self.state}]"
