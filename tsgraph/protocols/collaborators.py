"""The engine's parts that a capture and a replay must involve. Each is optional; absence drops what `needs` it.

Every collaborator may declare `honours`: for each buffer that it reads, the pad values it skips or maps to a sink.
A buffer whose declared pad it does not honour is refused when the runtime is built (projects do not agree on pads).
A part that has memory of its own which steps write, on device or host, names it in `written`, tensors by name: a
warm-up may write there. Tensors that a part holds are looked at before replays; one that replaces memory which nobody
can see there (inside a library, say) may have an integer `generation` and raise it each time: what was recorded before
then is stale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import attrs

from tsgraph.groups import CacheGroup
from tsgraph.keys import Batch

if TYPE_CHECKING:
    import torch

Verdict = Literal["agreed", "refused"]


@attrs.frozen(kw_only=True)
class Capabilities:
    """What metadata consume besides lengths and pool rows, said once, so that nobody has to probe signatures.

    `paged_groups`, `flat_groups`: block tables by cache group, in that convention. `prefill_on_target_lengths`: of a
    drafter whose first eager init of an extend or mixed step reads the target's lengths; a decode init follows it then.
    """

    paged_groups: bool = False
    flat_groups: bool = False
    prefill_on_target_lengths: bool = False


@attrs.frozen(kw_only=True, eq=False)
class MetadataSetup:
    """What metadata are made for. `rows`: the largest slot. `lengths` [rows]: the static buffer, which may be aliased.

    `groups`: the cache groups that the part reads. `overlap_depth`: steps that the engine runs ahead.
    """

    rows: int
    tokens_per_request: int
    lengths: torch.Tensor | None
    groups: tuple[CacheGroup, ...] = ()
    overlap_depth: int = 0


@runtime_checkable
class Attention(Protocol):
    """Attention metadata: views of persistent buffers inside graphs, anything in eager steps."""

    @property
    def honours(self) -> Mapping[str, Collection[float]]:
        """For each buffer it reads, the pads it honours."""

    @property
    def capabilities(self) -> Capabilities:
        """What it consumes."""

    @property
    def kv_indices(self) -> torch.Tensor | None:
        """The persistent key-value indices that a drafter's metadata may share, if there are such."""

    def init_state(self, setup: MetadataSetup) -> None:
        """Make the persistent buffers. Once, before any bind (R2)."""

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

    def push(self, rows: int, *, who: str = "", ahead: bool = False) -> Any:
        """Push an entry without grammars for `rows` rows; returns its ticket. `who` pushes, for errors.

        `ahead`: before all entries that no forward has taken. So a slot pushes for its own forwards, which come before
        the engine's next one. An engine's own pushes may have further arguments; `GraphRuntime.push` hands them on.
        """

    def claim(self, ticket: Any) -> None:
        """The ticket's forward was launched: cancelling it is ignored from now on, consumed or not."""

    def cancel(self, ticket: Any) -> None:
        """Take back an entry that no forward consumed. Unknown or consumed tickets are ignored."""

    def abandon(self, ticket: Any) -> None:
        """Take back an entry whose forward raised, or never came; if it is consumed, nothing is accepted for it."""

    def reset(self) -> None:
        """Forget the previous and current entries of warm-up and recording (R23)."""


@runtime_checkable
class Drafter(Attention, Protocol):
    """A draft model's metadata, refreshed after the target's, of a batch with the cache groups that a drafter reads.

    An eager step that extends or mixes is begun in that mode; where `prefill_on_target_lengths`, a second time, as a
    decode step. Any other one is begun as a decode step.
    """

    def share_kv_indices(self, indices: torch.Tensor) -> None:
        """Read these indices, the target's, instead of own ones. Before any bind, and of the same form (R3)."""


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
    """The processes that capture and serve together, this one among them.

    A rank that failed settles while the others may still meet: their meeting must then fail, too, and the point is
    settled for them as well, so that their own vote on it, which follows, waits for nobody.
    """

    @property
    def count(self) -> int:
        """How many ranks there are, this one included."""

    @property
    def index(self) -> int:
        """Which of them this is, from 0."""

    def meet(self) -> None:
        """Wait until every rank is here. Raises RankDisagreement where one failed, or did not come in time."""

    def settle(self, point: str, ok: bool, digest: int, deadline: float) -> Verdict:
        """Agree on the outcome at `point`, on success and on failure alike; `deadline` in seconds.

        "refused" where any rank says no. Raises: RankDisagreement where ranks settle different points or digests, or
        one did not come in time.
        """
