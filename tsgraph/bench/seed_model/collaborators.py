"""Stub collaborators of the wrapper (§2): they keep what a graph reads, and do nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from torch import Tensor

from tsgraph.bench.seed_model.padding import Tables


@attrs.define
class Context:
    """What the engine says of one forward: rows, tokens, mode."""

    rows: int
    tokens: int
    decoding: bool = True
    rank_tokens: list[int] | None = None


@attrs.frozen(eq=False)
class Metadata:
    """Attention metadata with persistent buffers, which a refresh brings up to date in place (§2, "refresh").

    `held`: persistent tensors by label. The lengths buffer is aliased, as §2 lets it, so it is not copied.
    """

    held: Mapping[str, Tensor]
    uses_paged_cache_groups: bool
    uses_flat_cache_groups: bool = False
    uses_padded_decode_token_mask: bool = False

    def refresh(
        self,
        rows: int,
        pool: Tensor,  # noqa: ARG002 - a stub keeps the signature of what it stands for
        lengths: Tensor,  # noqa: ARG002
        *,
        tables: Tables | None = None,
        offsets: Tables | None = None,
        **more: Any,
    ) -> None:
        """Copy padded tables, offsets and recurrent indices to where the graph reads them: one copy each."""
        for name, grouped in (("paged_tables", tables), ("paged_offsets", offsets)):
            for group, tensor in (grouped or {}).items():
                self.held[f"{name}[{group}]"][:rows].copy_(tensor)
        for name, value in more.items():
            if name in self.held:
                self.held[name][:rows].copy_(value)


@attrs.frozen(eq=False)
class DraftMetadata:
    """A drafter's metadata, which read the target's tables, as if aliased (§2, "KV-index aliasing"): no copies."""

    uses_paged_cache_groups: bool
    uses_flat_cache_groups: bool = False
    uses_padded_decode_token_mask: bool = False

    def refresh(self, rows: int, pool: Tensor, lengths: Tensor, **more: Any) -> None:
        """Nothing to copy."""


@attrs.frozen(eq=False)
class Drafter:
    """A drafter, which owns its lengths (§2, "Drafter")."""

    metadata: DraftMetadata
    lengths: Tensor
    pages: Tensor | None = None


class Sampler:
    """Which variant a step needs (§2, "Sampler")."""

    def variant(self, tokens_per_request: int) -> str:  # noqa: ARG002
        """The default."""
        return "default"


class Communication:
    """The adapter of a communication library that is not there (§2, "Communication adapter")."""

    active = False

    def restore(self) -> None:
        """Nothing, unless a capture has made it active."""
        if self.active:
            raise NotImplementedError
