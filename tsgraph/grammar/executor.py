"""What the executors have in common: the memory of the masks, the queue, and what the host may ask beside the steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from tsgraph.errors import BadBatch
from tsgraph.grammar.bitmask import ALL, only, words_for
from tsgraph.grammar.entry import Entry
from tsgraph.grammar.masks import Masks
from tsgraph.grammar.tickets import Ticket
from tsgraph.protocols.backend import Ready
from tsgraph.protocols.matching import Matcher

if TYPE_CHECKING:
    from tsgraph.keys import Batch
    from tsgraph.protocols.backend import Backend

ENGINE = "the engine"


@attrs.frozen(eq=False)
class Memory:
    """The memory of an executor: `mask` on the device, all else pinned and written by copies and host functions."""

    mask: Tensor
    words: Tensor
    drafts: Tensor
    tokens: Tensor
    gains: Tensor

    @classmethod
    def of(cls, backend: Backend, *, rows: int, draws: int, vocabulary: int) -> Memory:
        """Memory for `rows` rows of `draws` draws each; every mask allows all."""
        words = words_for(vocabulary)
        return cls(
            mask=backend.allocate((rows * draws, words), torch.int32, ALL),
            words=backend.pin((rows * draws, words), torch.int32),
            drafts=backend.pin((rows * (draws - 1),), torch.int64),
            tokens=backend.pin((rows * draws,), torch.int64),
            gains=backend.pin((rows,), torch.int64),
        )

    def masks(self, closed: Iterable[int], vocabulary: int) -> Masks:
        """The host's view of it. `closed`: the tokens that a step which failed may draw."""
        return Masks(
            words=self.words.numpy(),
            drafts=self.drafts.numpy(),
            tokens=self.tokens.numpy(),
            gains=self.gains.numpy(),
            closed=only(closed, vocabulary),
        )


class GrammarExecutor:
    """What both executors have: the queue, and masks of `rows` rows with up to `draws` draws each.

    `closed`: the tokens that every row of a step may draw whose masks could not be made; by default none, so that the
    lowest finite number is all that its logits are. It is best a token that ends a text. The step's `ready` raises.
    """

    def __init__(
        self, backend: Backend, *, rows: int, vocabulary: int, draws: int = 1, closed: Iterable[int] = ()
    ) -> None:
        self.backend, self.rows, self.draws = backend, rows, draws
        self._memory = Memory.of(backend, rows=rows, draws=draws, vocabulary=vocabulary)
        self._masks = self._memory.masks(closed, vocabulary)
        self._step: tuple[int, int] | None = None
        self.queue = self._masks.queue

    # -- the queue ----------------------------------------------------------------------------------------------------

    def bind(self, batch: Batch) -> Tensor:
        """The masks that a decode step of `batch` reads, [rows * draws, words] int32: the same memory always (R18)."""
        return self._memory.mask[: batch.rows * self.draws]

    def push(
        self,
        rows: int,
        matchers: Sequence[Matcher | None] | None = None,
        advances: Sequence[bool] | None = None,
        *,
        who: str = ENGINE,
        ahead: bool = False,
    ) -> Ticket:
        """Push the entry of the next forward (R22): a matcher or None for each of its live rows; none: all are free.

        `advances`: whether what a row draws counts, as the last chunk of a prompt's does. `who` pushes, for errors.

        Raises: BadBatch for more rows than there are, lists that do not fit, or a matcher in two rows.
        """
        if rows not in range(self.rows + 1):
            raise BadBatch(f"an entry of {rows} rows, for an executor of {self.rows}", hint="make it larger")
        return self.queue.push(Entry.of(rows, matchers, advances), who=who, ahead=ahead)

    def push_repeat(self, rows: int, *, who: str = ENGINE) -> Ticket:
        """Push an entry for a forward that runs the last one again: same masks, and what it draws does not count."""
        return self.queue.push(Entry(rows, repeats=True), who=who)

    def claim(self, ticket: Any) -> None:
        """The ticket's replay was launched: its entry can no longer be taken back."""
        self.queue.claim_for(ticket)

    def cancel(self, ticket: Any) -> None:
        """Take back an entry that no forward has taken (R25). Anything else is ignored."""
        self.queue.cancel(ticket)

    def abandon(self, ticket: Any) -> None:
        """After a forward that raised: take its entry back; if it is consumed, what was drawn counts for nothing."""
        self._masks.abandon(ticket)

    def settle(self, ticket: Ticket, ready: Ready) -> bool:
        """Let the matchers accept now what the ticket's forward drew. False where the next build has done so already.

        `ready`: of its step. Raises: what that raises; what matchers raise; BadBatch where the forward has not begun.
        """
        ready.wait()
        return self._masks.settle(ticket)

    def reset(self) -> None:
        """Forget what warm-up and recording consumed (R23). Tokens of requests that wait to be accepted stay."""
        self._masks.reset()

    @property
    def written(self) -> dict[str, Tensor]:
        """The memory that steps write, by name: a warm-up may, too."""
        return {name: tensor for name, tensor in attrs.asdict(self._memory, recurse=False).items() if tensor.numel()}

    @property
    def remembered(self) -> tuple[Entry, ...]:
        """The entries consumed last whose tokens, if any, the next build accepts."""
        return self._masks.remembered

    # -- for a step ---------------------------------------------------------------------------------------------------

    def _shape(self, batch: Batch, candidates: Tensor | None) -> tuple[int, int]:
        """Rows of a step and draws of each. Raises: BadBatch where they do not fit (fault I2)."""
        draws = 1 if candidates is None else candidates.shape[1] + 1
        self._check_room(batch.rows, draws)
        if candidates is not None and len(candidates) != batch.rows:
            raise BadBatch(
                f"{len(candidates)} rows of candidates for {batch.rows} rows", hint="give all rows of the step"
            )
        return batch.rows, draws

    def _check_room(self, rows: int, draws: int) -> None:
        if rows > self.rows or draws > self.draws:
            what = f"a step of {rows} rows with {draws} draws each: there is room for {self.rows} with {self.draws}"
            raise BadBatch(what, hint="make the executor for the largest step")

    def _forked(self, batch: Batch) -> tuple[int, int]:
        if self._step is None or self._step[0] != batch.rows:
            raise BadBatch(f"a step of {batch.rows} rows was not forked", hint="fork the grammar first in every step")
        return self._step


def check_drawn(rows: int, draws: int, tokens: Tensor, accept_lengths: Tensor | None) -> None:
    """Refuse what a step of `rows` rows with `draws` draws each cannot have drawn. Raises: BadBatch."""
    lengths = None if accept_lengths is None else tuple(accept_lengths.shape)
    if tokens.numel() != rows * draws or lengths not in ((None, (rows,)) if draws == 1 else ((rows,),)):
        what = f"{tokens.numel()} tokens and accept lengths of shape {lengths}, of {rows} rows with {draws} draws"
        raise BadBatch(what, hint="fork the grammar first; hand over all draws, and how many of several count")


def copy_into(source: Tensor, target: Tensor) -> None:
    """Copy `source` to the beginning of `target`, between host and device, without waiting. May be recorded."""
    flat = source if source.dim() == target.dim() else source.reshape(-1)
    target[: len(flat)].copy_(flat.to(target.dtype).contiguous(), non_blocking=True)
