"""The engine's parts that a capture and a replay must involve. Each is optional; absence drops what `needs` it.

Every collaborator may declare `honours`: for each buffer that it reads, the pad values it skips or maps to a sink.
A buffer whose declared pad it does not honour is refused when the runtime is built (projects do not agree on pads).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from tsgraph.keys import Batch

if TYPE_CHECKING:
    import torch

Verdict = Literal["agreed", "refused"]


@runtime_checkable
class Attention(Protocol):
    """Attention metadata: views of persistent buffers inside graphs, anything in eager steps."""

    @property
    def honours(self) -> Mapping[str, Collection[float]]:
        """For each buffer it reads, the pads it honours."""

    def bind(self, batch: Batch) -> None:
        """Make the current metadata views of persistent buffers for `batch.rows` rows. Same addresses at each call."""

    def refresh(self, batch: Batch, live: int) -> None:
        """Bring the metadata of `batch` up to date in place, before a replay; rows from `live` on are pads."""

    def begin_eager(self, batch: Batch) -> None:
        """Make metadata for an eager step. May allocate."""


@runtime_checkable
class Sampler(Protocol):
    """The sampler's state outside the graph."""

    def variants(self, tokens_per_request: int) -> Sequence[str]:
        """The recorded variants it needs; "default" is always captured, first."""

    def prepare(self, batch: Batch) -> None:
        """Fill RNG buffers for `batch`, outside any recording (R11)."""

    def reset(self) -> None:
        """Forget what warm-ups accumulated (R10)."""


@runtime_checkable
class Grammar(Protocol):
    """The grammar queue: one entry per forward of any kind (R22)."""

    def bind(self, batch: Batch) -> torch.Tensor | None:
        """The mask that `batch` will read; the same memory is refilled at replay (R18)."""

    def push(self, rows: int) -> Any:
        """Push an entry without grammars for `rows` rows; returns its ticket."""

    def cancel(self, ticket: Any) -> None:
        """Take back an entry that no forward consumed. Unknown or consumed tickets are ignored."""

    def reset(self) -> None:
        """Forget the previous and current entries of warm-up and recording (R23)."""


@runtime_checkable
class Drafter(Protocol):
    """A draft model's metadata, refreshed after the target's."""

    def bind(self, batch: Batch) -> None:
        """As `Attention.bind`, for the draft."""

    def refresh(self, batch: Batch, live: int) -> None:
        """As `Attention.refresh`, for the draft."""

    def begin_eager(self, batch: Batch) -> None:
        """As `Attention.begin_eager`, for the draft."""


@runtime_checkable
class Recurrent(Protocol):
    """Recurrent state that is updated after verification, with live rows only (R42)."""

    def update(self, outputs: Any, live: int) -> None:
        """Advance the state of the `live` rows from the step's outputs at live size."""


@runtime_checkable
class Communication(Protocol):
    """A communication library with process-wide modes (DeepEP)."""

    def arm(self) -> None:
        """Before a recording."""

    def restore(self) -> None:
        """Before every replay."""


@runtime_checkable
class Ranks(Protocol):
    """The other ranks."""

    def meet(self) -> None:
        """Wait until every rank is here."""

    def settle(self, point: str, ok: bool, digest: int, deadline: float) -> Verdict:
        """Agree on the outcome at `point`, on success and on failure alike; `deadline` in seconds."""
