"""How metadata are tried: on static buffers, under a recording that reads them, and beside a fresh part alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from tsgraph.protocols.backend import Graph
from tsgraph.protocols.collaborators import Attention, Drafter
from tsgraph.testing.conformance.ground import Ground
from tsgraph.testing.conformance.readings import copy_of, difference, tensors_in

Part = Attention | Drafter
Metadata = Callable[[Any], Any]
"""From a part to its current metadata: any nesting of what the recorded kernels read of it, and nothing else."""


@attrs.frozen(eq=False)
class MetadataTrial:
    """One part with metadata, on its ground. `fresh` makes further ones alike, ready to be bound."""

    factory: Callable[[], Part]
    ground: Ground
    metadata: Metadata
    lengths: Callable[[Any], torch.Tensor] | None = None
    source: str = "seq_lens"
    part: Part = attrs.field(init=False)

    @part.default
    def _make(self) -> Part:
        return self.fresh()

    def fresh(self) -> Part:
        """A new part that has its state."""
        part = self.factory()
        if isinstance(part, Attention):  # what lacks a member is told so, and not called
            part.init_state(self.ground.setup(self.source))
        return part

    def bind(self, rows: int, part: Part | None = None) -> Any:
        """The metadata after binding for `rows` rows."""
        part = part or self.part
        part.bind(self.ground.stage(rows, rows, 0))
        return self.metadata(part)

    def refreshed(self, rows: int, live: int, step: int) -> Any:
        """What metadata should be: those of a fresh part, copied, after one bind and one refresh."""
        part = self.fresh()
        self.bind(rows, part)
        part.refresh(self.ground.stage(rows, live, step), live)
        return copy_of(self.metadata(part))

    def refresh(self, rows: int, live: int, step: int) -> None:
        """Refresh the part for a step."""
        self.part.refresh(self.ground.stage(rows, live, step), live)

    def record(self, rows: int) -> Recording:
        """A graph that reads the metadata bound for `rows` rows, as the recorded step would."""
        bound, backend = tensors_in(self.bind(rows)), self.ground.backend
        backend.adopt(bound)
        if not bound:
            return Recording(None, [])  # CUDA warns of an empty graph
        with backend.record(backend.pool()) as graph:
            read = [tensor.clone() for tensor in bound]
        return Recording(graph, read)


@attrs.frozen(eq=False)
class Recording:
    """A graph, and what it read at its last replay."""

    graph: Graph | None
    read: Sequence[torch.Tensor]

    def misreads(self, expected: Any) -> str | None:
        """Replay; how what it reads differs from the tensors of `expected`."""
        if self.graph is not None:
            self.graph.replay()
        return difference(tensors_in(expected), list(self.read))


def live_difference(trial: MetadataTrial, live: int, rows: int, padded: Any) -> str | None:
    """How metadata of `live` among `rows` rows differ from those without pads, in what is said row by row.

    Row by row is what has as many entries as there are rows, or one more, as running sums have.
    """
    pairs = zip(tensors_in(trial.refreshed(live, live, 1)), tensors_in(padded), strict=True)
    by_row = [(a, b) for a, b in pairs if a.dim() and b.dim() and _extra(a, live) == _extra(b, rows) in (0, 1)]
    return difference([a for a, _ in by_row], [b[: len(a)] for a, b in by_row])


def _extra(tensor: torch.Tensor, rows: int) -> int:
    return len(tensor) - rows
