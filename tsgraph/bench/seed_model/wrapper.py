"""One call of the wrapper: route, pad, refresh, replay, slice (§6, "Call order")."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from torch import Tensor

from tsgraph.bench.seed_model.buffers import InputBuffers
from tsgraph.bench.seed_model.collaborators import Communication, Context, Drafter, Metadata, Sampler
from tsgraph.bench.seed_model.padding import Tables, padded_offsets, padded_pool, padded_rows, padded_tables

Key = tuple[str, int]


@attrs.define(eq=False, kw_only=True)
class Wrapper:
    """Serves decode steps from graphs of these `sizes`. `replays`, `outputs`: by variant and size."""

    buffers: InputBuffers
    metadata: Metadata
    sizes: Sequence[int]
    replays: Mapping[Key, Callable[[], None]]
    outputs: Mapping[Key, Mapping[str, Tensor]]
    drafter: Drafter | None = None
    sampler: Sampler = attrs.field(factory=Sampler)
    communication: Communication = attrs.field(factory=Communication)
    enabled: bool = True
    ranks: int = 1

    def __call__(
        self,
        live: int,
        context: Context,
        *,
        pages: Tensor | None = None,
        tables: Tables | None = None,
        offsets: Tables | None = None,
        recurrent: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Serve `live` rows that the engine has filled in; returns tokens, accept lengths, log-probabilities."""
        padded = self.padded_size(live, context)
        pool, lengths, recurrent = self._padded(live, padded, context, recurrent or {})
        self._set_state_writes(live, padded)
        self._refresh(live, padded, pool, lengths, pages=pages, tables=tables, offsets=offsets, recurrent=recurrent)
        self.communication.restore()
        key = (self.sampler.variant(self.buffers.tokens_per_request), padded)
        self.replays[key]()
        result = self._sliced(key, live)
        if padded != live:
            context.rows = live
        return result

    # -- routing (§4, R26 to R29) --

    def can_run(self, live: int, context: Context) -> bool:
        """Whether a graph serves so many rows: enabled, decoding, and a size fits."""
        if not self.enabled or not context.decoding or (self.ranks > 1 and context.rank_tokens is None):
            return False
        return live <= self.sizes[-1]

    def padded_size(self, live: int, context: Context) -> int:
        """The size of the graph that serves so many rows. Raises ValueError where none does."""
        if not self.can_run(live, context):
            raise ValueError(f"no graph serves {live} rows: the model has graphs only")
        return self.sizes[bisect.bisect_left(self.sizes, live)]

    # -- padding (§6: the padded rows are written into the buffers, and backends get the fresh tensors) --

    def _padded(
        self, live: int, padded: int, context: Context, recurrent: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        buffers, extra = self.buffers, padded - live
        if not extra:
            return buffers["request_pool"][:padded], buffers["seq_lens"][:padded], recurrent
        context.rows = padded
        lengths = padded_rows(buffers["seq_lens"][:live], extra, 1)
        pool = padded_pool(buffers["request_pool"][:live], extra)
        buffers["seq_lens"][:padded].copy_(lengths)
        buffers["request_pool"][:padded].copy_(pool)
        return pool, lengths, {name: padded_rows(indices, extra, -1) for name, indices in recurrent.items()}

    def _set_state_writes(self, live: int, padded: int) -> None:
        """State-write indices on every step: live pool rows, then the sentinel (R32)."""
        indices = self.buffers["state_write_pool"][:padded]
        if live:
            indices[:live].copy_(self.buffers["request_pool"][:live])
        if live < padded:
            indices[live:padded].fill_(self.buffers.sentinel)

    # -- refresh (§6, "Refresh": target, then draft) --

    def _refresh(
        self,
        live: int,
        padded: int,
        pool: Tensor,
        lengths: Tensor,
        *,
        pages: Tensor | None,
        tables: Tables | None,
        offsets: Tables | None,
        recurrent: Mapping[str, Tensor],
    ) -> None:
        more: dict[str, Any] = {"num_padding": padded - live, **recurrent}
        if self.metadata.uses_paged_cache_groups and tables is not None:
            tables = padded_tables(tables, padded, -1)
            offsets = None if offsets is None else padded_offsets(offsets, padded)
            more |= {"tables": tables, "offsets": offsets}
            if self.drafter is not None:
                more["num_tokens"] = padded * self.buffers.tokens_per_request
        if self.metadata.uses_padded_decode_token_mask:
            more["actual_rows"] = live
        self.metadata.refresh(padded, pool, lengths, pages=pages, decoding=True, **more)
        if self.drafter is not None:
            self._refresh_draft(self.drafter, padded, pool, lengths, tables=tables, offsets=offsets)

    def _refresh_draft(
        self,
        drafter: Drafter,
        padded: int,
        pool: Tensor,
        lengths: Tensor,
        *,
        tables: Tables | None,
        offsets: Tables | None,
    ) -> None:
        """The draft gets the padded lengths in its own buffer, and the target's padded tables (R36)."""
        more: dict[str, Any] = {}
        if drafter.metadata.uses_paged_cache_groups and tables is not None:
            more = {"tables": tables, "offsets": offsets, "num_tokens": padded * self.buffers.tokens_per_request}
        own = drafter.lengths[:padded]
        own.copy_(lengths[:padded])
        drafter.metadata.refresh(padded, pool, own, pages=drafter.pages, decoding=True, **more)

    # -- outputs (§4, R40) --

    def _sliced(self, key: Key, live: int) -> tuple[Tensor, Tensor, Tensor | None]:
        outputs, tokens = self.outputs[key], live * self.buffers.tokens_per_request
        logprobs = outputs.get("logprobs")
        return (
            outputs["tokens"][:tokens],
            outputs["accept_lengths"][:live],
            None if logprobs is None else logprobs[:tokens],
        )
