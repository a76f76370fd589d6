"""Speculative decoding inside one step: verify what was drafted, then draft what comes next.

A row's tokens in a step are its last token and its drafts. The target samples after each of them; a draft is accepted
while it is what the target sampled in its place. Since a draw depends on (seed, position) and the logits alone, what is
accepted is what decoding token by token would have drawn, sampled or greedy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs
import torch
from torch import Tensor

from tsgraph.keys import Batch
from tsgraph.protocols.null import NullDrafter
from tsgraph.reference.cache import DUMMY_PAGE, DUMMY_SLOT, PagedCache
from tsgraph.reference.model import Decoder
from tsgraph.reference.sampler import SamplingTensors
from tsgraph.reference.variants import draw_by


def verify(read: Tensor, sampled: Tensor) -> Tensor:
    """How many tokens each row gains, [rows] int64, at least 1.

    `read` [rows, n]: the last token and the drafts. `sampled` [rows, n]: what the target drew after each of them.
    """
    right = read[:, 1:] == sampled[:, :-1]
    return 1 + right.long().cumprod(dim=1).sum(dim=1)


def slots_at(positions: Tensor, tables: Tensor, page_size: int) -> Tensor:
    """The cache slot of each row at `positions` [rows], through `tables` [rows, pages]; the dummy's beyond it."""
    page = positions // page_size
    held = tables.gather(1, page.clamp(max=tables.shape[1] - 1)[:, None].long())[:, 0]
    return torch.where(page < tables.shape[1], held * page_size + positions % page_size, DUMMY_SLOT)


@attrs.frozen(eq=False)
class Read:
    """What a step read: `tokens`, `positions` and `slots`, [rows * width] each, row by row."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    width: int

    @classmethod
    def of(cls, batch: Batch) -> Read:
        """What `batch` reads."""
        return cls(batch.input_ids, batch.positions, batch.cache_locations, len(batch.input_ids) // batch.rows)

    @property
    def rows(self) -> Tensor:
        """The tokens, [rows, width]."""
        return self.tokens.view(-1, self.width)


@attrs.frozen(eq=False)
class Draft:
    """A smaller model with a cache of its own, over the target's tables: both write to the same places."""

    model: Decoder
    cache: PagedCache
    drafts: int

    def propose(self, batch: Batch, read: Read, drawn: Tensor, gained: Tensor) -> Tensor:
        """The next drafts of each row, [rows, drafts] int64; moves `batch.draft_seq_lens` [rows] as it goes.

        `drawn` [rows, n]: what the target drew, of which a row gains the first `gained` [rows]. The draft reads what
        the target has `read`, too, so that its cache has all that is accepted; what is not will be written over.

        A pad row has a length of 1 with several tokens, so its length would fall below 1 here: a row that sees no key
        is NaN, and its NaN would reach the dummy page, which live rows read behind their mask. Hence the bound.
        """
        lengths, tables = batch.draft_seq_lens, batch.page_table
        self.model(read.tokens, read.positions, read.slots, lengths, tables, self.cache)
        lengths.add_(gained - drawn.shape[1] + 1).clamp_(min=1)
        token, drafts = drawn.gather(1, gained[:, None] - 1)[:, 0], []
        for _ in range(self.drafts):
            token = self._next(batch, token)
            drafts.append(token)
            lengths.add_(1)
        return torch.stack(drafts, dim=1)

    def _next(self, batch: Batch, token: Tensor) -> Tensor:
        """What the draft makes of `token`, each row's newest: no penalties, for it is only a guess."""
        lengths, tables = batch.draft_seq_lens, batch.page_table
        position = (lengths - 1).long()
        slots = slots_at(position, tables, self.cache.page_size)
        logits = self.model(token, position, slots, lengths, tables, self.cache)
        how = SamplingTensors(
            temperature=batch.temperature, top_k=batch.top_k, top_p=batch.top_p, seed=batch.seed, position=position
        )
        return draw_by(batch.variant, logits, how)


class DraftMetadata(NullDrafter):
    """The drafter as the runtime knows it: the draft model plans nothing ahead, all it reads are buffers of the batch.

    Its lengths are the buffer `draft_seq_lens`, which mirrors the target's at every step before it moves them.
    """

    honours: Mapping[str, Collection[float]] = {
        "draft_seq_lens": (1,),
        "cache_locations": (DUMMY_SLOT,),
        "page_table": (DUMMY_PAGE,),
    }
