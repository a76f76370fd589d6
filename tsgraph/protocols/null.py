"""Collaborators that do nothing: base classes of an engine's own, which then say only what they do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tsgraph.protocols.collaborators import Capabilities, MetadataSetup

if TYPE_CHECKING:
    import torch

    from tsgraph.keys import Batch


class NullAttention:
    """Metadata of a step that needs none beside its buffers; also a drafter's."""

    honours: Mapping[str, Collection[float]] = {}
    capabilities = Capabilities()
    kv_indices: torch.Tensor | None = None

    def init_state(self, setup: MetadataSetup) -> None:
        """Nothing to make."""

    def bind(self, batch: Batch) -> None:
        """Nothing to bind."""

    def refresh(self, batch: Batch, live: int) -> None:
        """Nothing to refresh."""

    def begin_eager(self, batch: Batch) -> None:
        """Nothing to begin."""


class NullDrafter(NullAttention):
    """A drafter without metadata."""

    def share_kv_indices(self, indices: torch.Tensor) -> None:
        """Keep them as its own."""
        self.kv_indices = indices


class NullSampler:
    """A sampler without state: its draws depend on nothing but what the step is given."""

    def variants(self, tokens_per_request: int) -> Sequence[str]:
        """None but the default."""
        return ()

    def prepare(self, batch: Batch) -> None:
        """Nothing to prepare."""

    def reset(self) -> None:
        """Nothing to forget."""


class NullGrammar:
    """A queue of nothing: no row is constrained."""

    def bind(self, batch: Batch) -> torch.Tensor | None:
        """No mask."""
        return None

    def push(self, rows: int, *, who: str = "", ahead: bool = False) -> Any:
        """No ticket."""
        return None

    def claim(self, ticket: Any) -> None:
        """Nothing to claim."""

    def abandon(self, ticket: Any) -> None:
        """Nothing to take back."""

    def cancel(self, ticket: Any) -> None:
        """Nothing to take back."""

    def reset(self) -> None:
        """Nothing to forget."""


class NullRecurrent:
    """Recurrent state that its step itself brings up to date."""

    def update(self, outputs: Any, live: int) -> None:
        """Nothing to update."""


class NullCommunication:
    """Communication without modes."""

    def arm(self) -> None:
        """Nothing to arm."""

    def restore(self) -> None:
        """Nothing to restore."""
