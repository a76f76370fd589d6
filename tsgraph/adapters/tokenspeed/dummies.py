"""What a slot's forwards are told instead of a call: one context and one sampling info, made when it is allocated."""

from __future__ import annotations

from typing import Any

import attrs

from tsgraph.adapters.tokenspeed.parts import EngineParts
from tsgraph.errors import InternalError
from tsgraph.keys import Batch, SlotKey


@attrs.frozen(eq=False)
class Dummy:
    """The words of one slot's warm-ups and recording."""

    ctx: Any
    sampling_info: Any


@attrs.frozen(eq=False)
class Dummies:
    """The words of all slots."""

    _parts: EngineParts
    _made: dict[SlotKey, Dummy] = attrs.field(factory=dict)

    def make(self, batch: Batch) -> Dummy:
        """New words for the slot of `batch`."""
        dummy = self._made[SlotKey(batch.variant, batch.rows)] = Dummy(self._context(batch), self._sampling_info(batch))
        return dummy

    def of(self, batch: Batch) -> Dummy:
        """Those made for the slot of `batch`. Raises InternalError before it was allocated."""
        try:
            return self._made[SlotKey(batch.variant, batch.rows)]
        except KeyError:
            raise InternalError(f"slot {batch.variant}/{batch.rows} runs before it was allocated") from None

    def _context(self, batch: Batch) -> Any:
        """A decode context on all ranks alike (R14, R15), which keeps full hidden states for a drafter (R17)."""
        parts, types = self._parts, self._parts.types
        ctx = types.context(
            attn_backend=parts.attn_backend,
            token_to_kv_pool=parts.token_to_kv_pool,
            bs=batch.rows,
            num_extends=0,
            input_num_tokens=batch.tokens,
            forward_mode=types.mode.DECODE,
            capture_hidden_mode=types.hidden.FULL if batch.full_hidden else types.hidden.NULL,
        )
        ctx.all_decode_or_idle = True
        if batch.counts is not None:
            ctx.global_num_tokens, ctx.global_bs = list(batch.counts.tokens), list(batch.counts.rows or ())
        return ctx

    def _sampling_info(self, batch: Batch) -> Any:
        """Live views (R19), and not all greedy: that would be frozen into the graph (R16)."""
        parts = self._parts
        states = parts.runtime_states
        return parts.types.sampling(
            req_pool_indices=batch.request_pool,
            valid_cache_lengths=states.valid_cache_lengths if states is not None else None,
            is_all_greedy=False,
            vocab_size=parts.config.vocab_size,
            device=parts.config.device,
        )
