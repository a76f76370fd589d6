"""The target's metadata: tsgraph's protocol in front, the engine's attention backend behind."""

from __future__ import annotations

from typing import Any

import torch

from tsgraph.adapters.tokenspeed.call import Call, Desk
from tsgraph.adapters.tokenspeed.parts import EngineParts, group_ids
from tsgraph.keys import Batch
from tsgraph.protocols.collaborators import MetadataSetup
from tsgraph.protocols.null import NullAttention

INDICES = "decode_cuda_graph_kv_indices"


class TargetMetadata(NullAttention):
    """Calls the target's backend as its wrapper is expected to."""

    def __init__(self, parts: EngineParts, desk: Desk) -> None:
        self._parts = parts
        self._desk = desk
        self._backend = parts.attn_backend

    def init_state(self, setup: MetadataSetup) -> None:
        """Let the backend make its graph state, which may alias the lengths of the input buffers."""
        parts = self._parts
        init_state(parts, self._backend, setup.rows, parts.input_buffers.seq_lens_buf, parts.token_to_kv_pool)
        self.kv_indices = getattr(self._backend, INDICES, None)

    def bind(self, batch: Batch) -> None:
        """Bind for a recording, with fresh tables."""
        self._backend.init_forward_metadata_capture_cuda_graph(
            batch.rows, batch.request_pool, batch.seq_lens, self._parts.types.mode.DECODE, **self._bound(batch.rows)
        )

    def refresh(self, batch: Batch, live: int) -> None:
        """Bring the metadata of a graph up to date."""
        call = self._desk.call
        self._backend.init_forward_metadata_replay_cuda_graph(
            batch.rows,
            handed(batch.request_pool, live),
            handed(batch.seq_lens, live),
            req_to_page=call.req_to_page,
            forward_mode=call.ctx.forward_mode,
            num_padding=batch.rows - live,
            **self._refreshed(call, batch.rows),
        )

    def begin_eager(self, batch: Batch) -> None:  # noqa: ARG002 — the call has the engine's own words for it
        """Make metadata for an eager step."""
        call, buffers = self._desk.call, self._parts.input_buffers
        self._backend.init_forward_metadata(
            bs=call.bs,
            num_extends=call.ctx.num_extends,
            req_pool_indices=buffers.req_pool_indices_buf[: call.bs],
            seq_lens=buffers.seq_lens_buf[: call.bs],
            req_to_page=call.req_to_page,
            forward_mode=call.ctx.forward_mode,
            **eager_words(self._parts, call),
        )

    def _bound(self, size: int) -> dict[str, Any]:
        parts, words = self._parts, dict[str, Any]()
        if parts.input_buffers.has_mamba:
            words["mamba_pool_indices"] = parts.input_buffers.mamba_pool_indices_buf[:size]
        tables = parts.capture_tables(size, parts.token_to_kv_pool) if parts.target_paged else None
        if tables is not None:
            words["paged_cache_block_tables"] = tables
            words |= self._drafted_tokens(size)
        groups = group_ids(parts.token_to_kv_pool) if parts.target_flat else ()
        return words | ({"flat_cache_group_ids": groups} if groups else {})

    def _refreshed(self, call: Call, size: int) -> dict[str, Any]:
        parts, words = self._parts, dict(call.recurrent)
        if parts.target_paged:
            words |= paged_words(call) | self._drafted_tokens(size)
        if parts.target_flat and call.flat is not None:
            words["flat_block_tables"] = call.flat
        if self._backend.uses_padded_decode_token_mask:
            words["actual_bs"] = call.bs
        return words

    def _drafted_tokens(self, size: int) -> dict[str, int]:
        parts = self._parts
        return {"num_tokens": size * parts.tokens_per_request} if parts.drafter is not None else {}


def init_state(parts: EngineParts, backend: Any, rows: int, lengths: torch.Tensor, pool: Any) -> None:
    """Make the graph state of a backend, once (R2)."""
    parts.types.init_state(
        backend,
        rows,
        lengths,
        paged_cache_group_specs=tuple(pool.paged_cache_group_specs),
        max_tokens_per_req=parts.tokens_per_request,
        overlap_schedule_depth=parts.config.overlap_schedule_depth,
    )


def handed(rows: torch.Tensor, live: int) -> torch.Tensor:
    """`rows` as a refresh gets them: the static view, or a copy where some are pads."""
    return rows if live == len(rows) else rows.clone()


def paged_words(call: Call) -> dict[str, Any]:
    """The paged tables of a call, and with them their offsets, where there are any."""
    given = {"paged_cache_block_tables": call.paged, "paged_cache_block_table_base_offsets": call.offsets}
    return {name: value for name, value in given.items() if value is not None} if call.paged is not None else {}


def eager_words(parts: EngineParts, call: Call) -> dict[str, Any]:
    """What an eager init of the target gets besides rows, lengths and pages."""
    paged, ctx = parts.target_paged, call.ctx
    return {
        **call.extend,
        "global_num_tokens": ctx.global_num_tokens,
        "all_decode_or_idle": ctx.all_decode_or_idle,
        "capture_hidden_mode": ctx.capture_hidden_mode,
        **({"num_tokens": ctx.input_num_tokens} if paged else {}),
        "paged_cache_block_tables": call.paged if paged else None,
        "paged_cache_block_table_base_offsets": call.offsets if paged else None,
        "flat_block_tables": call.flat if parts.target_flat else None,
        **call.recurrent,
    }
