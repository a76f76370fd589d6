"""The draft's metadata: the target's rows, lengths that the drafter owns, and only the tables that it reads."""

from __future__ import annotations

from typing import Any

import torch

from tsgraph.adapters.tokenspeed.call import Call, Desk
from tsgraph.adapters.tokenspeed.parts import EngineParts
from tsgraph.adapters.tokenspeed.target import INDICES, eager_words, handed, init_state, paged_words
from tsgraph.keys import Batch, Mode
from tsgraph.protocols.collaborators import Capabilities, MetadataSetup
from tsgraph.protocols.null import NullDrafter

ALIASED = "_block_table_aliased"


class DraftMetadata(NullDrafter):
    """Calls the draft's backend as its wrapper is expected to. A drafter may have none: then there is nothing to do."""

    def __init__(self, parts: EngineParts, desk: Desk) -> None:
        self._parts = parts
        self._desk = desk
        self._backend = parts.draft_attn_backend
        self._v4 = bool(parts.config.use_v4_mtp_paged_metadata)
        self.capabilities = Capabilities(prefill_on_target_lengths=self._v4)

    def init_state(self, setup: MetadataSetup) -> None:
        """Let the backend make its graph state, which may alias the drafter's lengths."""
        if self._backend is not None:
            parts = self._parts
            lengths, pool = parts.drafter.draft_seq_lens_buf, parts.draft_token_to_kv_pool
            init_state(parts, self._backend, setup.rows, lengths, pool)
            self.kv_indices = getattr(self._backend, INDICES, None)

    def share_kv_indices(self, indices: torch.Tensor) -> None:
        """Let the backend read the target's indices, and tell it so."""
        for name, value in ((INDICES, indices), (ALIASED, True)):
            setattr(self._backend, name, value)

    def bind(self, batch: Batch) -> None:
        """Bind for a recording, to the lengths that replays refresh."""
        if self._backend is not None:
            self._backend.init_forward_metadata_capture_cuda_graph(
                batch.rows,
                batch.request_pool,
                batch.draft_seq_lens,
                self._parts.types.mode.DECODE,
                **self._bound(batch.rows),
            )

    def refresh(self, batch: Batch, live: int) -> None:
        """Bring the metadata of a graph up to date, after the target's."""
        if self._backend is not None:
            self._backend.init_forward_metadata_replay_cuda_graph(
                batch.rows,
                handed(batch.request_pool, live),
                batch.draft_seq_lens,
                req_to_page=self._parts.drafter.req_to_page,
                forward_mode=self._parts.types.mode.DECODE,
                **self._refreshed(self._desk.call, batch.rows),
            )

    def begin_eager(self, batch: Batch) -> None:
        """Make metadata for an eager step: as the target's where it prefills, else as a decode step's."""
        if self._backend is None:
            return
        call, lengths = self._desk.call, self._copied_lengths()
        if batch.mode is not Mode.DECODE:
            self._begin(call, self._target_lengths() if self._v4 else lengths, self._prefilling(call))
        elif call.ctx.forward_mode.is_extend_or_mixed():
            self._begin(call, lengths, self._decoding(call))
        else:
            words = self._decoding(call) | self._paged_tokens(call.bs)
            self._begin(call, self._target_lengths() if self._v4 else lengths, words)

    def _begin(self, call: Call, lengths: torch.Tensor, words: dict[str, Any]) -> None:
        self._backend.init_forward_metadata(
            bs=call.bs,
            req_pool_indices=self._parts.input_buffers.req_pool_indices_buf[: call.bs],
            seq_lens=lengths,
            req_to_page=self._parts.drafter.req_to_page,
            **words,
        )

    def _target_lengths(self) -> torch.Tensor:
        lengths: torch.Tensor = self._parts.input_buffers.seq_lens_buf[: self._desk.call.bs]
        return lengths

    def _copied_lengths(self) -> torch.Tensor:
        """The drafter's own lengths, which it moves between its steps, set to the target's."""
        lengths: torch.Tensor = self._parts.drafter.draft_seq_lens_buf[: self._desk.call.bs]
        return lengths.copy_(self._target_lengths())

    def _prefilling(self, call: Call) -> dict[str, Any]:
        words = eager_words(self._parts, call)
        if words["flat_block_tables"] is not None:
            words["flat_block_tables"] = self._parts.narrowed(call.flat)
        return {"num_extends": call.ctx.num_extends, "forward_mode": call.ctx.forward_mode, **words}

    def _decoding(self, call: Call) -> dict[str, Any]:
        parts, words = self._parts, {"num_extends": 0, "forward_mode": self._parts.types.mode.DECODE}
        if parts.draft_paged and parts.target_paged:
            offsets = {"paged_cache_block_table_base_offsets": call.offsets} if call.offsets is not None else {}
            words |= paged_words(call) | offsets
        return words | self._flat_words(call)

    def _bound(self, size: int) -> dict[str, Any]:
        parts, words = self._parts, dict[str, Any]()
        tables = None
        if parts.draft_token_to_kv_pool is not None and self._backend.uses_paged_cache_groups:
            tables = parts.capture_tables(size, parts.draft_token_to_kv_pool)
        if tables is not None:
            words |= {"paged_cache_block_tables": tables} | self._paged_tokens(size)
        groups = parts.draft_flat_groups
        return words | ({"flat_cache_group_ids": groups} if groups else {})

    def _refreshed(self, call: Call, size: int) -> dict[str, Any]:
        words = paged_words(call) if self._parts.draft_paged else {}
        if getattr(self._backend, "uses_padded_decode_token_mask", False):
            words["actual_bs"] = call.bs
        return words | self._flat_words(call) | self._paged_tokens(size)

    def _flat_words(self, call: Call) -> dict[str, Any]:
        flat = self._parts.narrowed(call.flat) if self._parts.target_flat else None
        return {"flat_block_tables": flat} if flat is not None else {}

    def _paged_tokens(self, rows: int) -> dict[str, int]:
        return {"num_tokens": rows * self._parts.tokens_per_request} if self._parts.draft_paged else {}
