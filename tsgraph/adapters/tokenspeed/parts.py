"""What the engine hands to its wrapper, and what follows from it: tokens per request, groups, and their tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from tsgraph.adapters.tokenspeed.engine_types import EngineTypes
from tsgraph.errors import ContractViolation
from tsgraph.groups import STATE_FAMILY, CacheGroup, table_widths
from tsgraph.keys import Mode

Tables = dict[str, torch.Tensor]


@attrs.frozen(eq=False, kw_only=True)
class EngineParts:
    """The arguments of the wrapper, each as the engine passed it. `largest`: the largest capture size, in rows."""

    forward_func: Callable[..., Any]
    attn_backend: Any
    token_to_kv_pool: Any
    input_buffers: Any
    config: Any
    draft_attn_backend: Any
    draft_token_to_kv_pool: Any
    drafter: Any
    capturable_grammar: Any
    eager_grammar_buffers: Any
    sampling_backend: Any
    runtime_states: Any
    types: EngineTypes
    largest: int

    def check(self) -> None:
        """Refuse a draft's metadata without a drafter, whose lengths and pages they read."""
        if self.draft_attn_backend is not None and self.drafter is None:
            hint = "pass drafter=, or no draft_attn_backend"
            raise ContractViolation("CudaGraphWrapper", "drafter", "one, as the draft has metadata", "None", hint=hint)

    @property
    def tokens_per_request(self) -> int:
        """Tokens that each row has in a decode step: several only where the engine speculates."""
        return int(self.config.spec_num_tokens) if self.config.spec_algo is not None else 1

    @property
    def ranks(self) -> int:
        """How many ranks decide together on a step: all of them, where data are parallel."""
        return int(self.config.world_size) if self.config.data_parallel_size > 1 else 1

    @property
    def target_paged(self) -> bool:
        """Whether the target takes paged tables."""
        return bool(self.attn_backend.uses_paged_cache_groups)

    @property
    def target_flat(self) -> bool:
        """Whether the target takes flat tables."""
        return bool(getattr(self.attn_backend, "uses_flat_cache_groups", False))

    @property
    def draft_paged(self) -> bool:
        """Whether the draft takes paged tables."""
        return bool(getattr(self.draft_attn_backend, "uses_paged_cache_groups", False))

    @property
    def draft_flat_groups(self) -> tuple[str, ...]:
        """The target's groups that the draft reads by flat tables."""
        if not getattr(self.draft_attn_backend, "uses_flat_cache_groups", False):
            return ()
        specs = self.token_to_kv_pool.paged_cache_group_specs
        return tuple(str(s.group_id) for s in specs if s.family != STATE_FAMILY and s.retention == "full_history")

    def narrowed(self, flat: Any) -> Tables | None:
        """Those of the target's flat tables that the draft reads; None for none."""
        return {group: flat[group] for group in self.draft_flat_groups if group in (flat or {})} or None

    def capture_tables(self, size: int, pool: Any) -> Tables | None:
        """Paged tables of `size` rows as a recording has them: zeros, each at its widest. None without groups."""
        words = {"tokens_per_request": self.tokens_per_request, "overlap_depth": self.config.overlap_schedule_depth}
        widths = table_widths(_groups(pool), self.config.context_len, largest=self.largest, **words)
        return {group: self._zeros(size, pages) for group, pages in widths.items()} or None

    def idle_flat_tables(self, size: int) -> Tables | None:
        """The least flat tables of `size` rows that are all pads: one column of the null page for all groups."""
        table = self._zeros(size, 1)
        return dict.fromkeys(group_ids(self.token_to_kv_pool), table) or None

    def _zeros(self, rows: int, columns: int) -> torch.Tensor:
        return torch.zeros((rows, columns), dtype=torch.int32, device=self.config.device)


def group_ids(pool: Any) -> tuple[str, ...]:
    """The names of the cache groups that a pool publishes."""
    return tuple(str(spec.group_id) for spec in pool.paged_cache_group_specs)


def _groups(pool: Any) -> tuple[CacheGroup, ...]:
    """The same groups in our words. Raises BadGeometry where one cannot be."""
    return tuple(
        CacheGroup(
            name=str(spec.group_id),
            rows_per_page=spec.rows_per_page,
            entry_stride_tokens=spec.entry_stride_tokens,
            retention=spec.retention,
            window=spec.sliding_window_tokens,
            family=spec.family,
        )
        for spec in pool.paged_cache_group_specs
    )


def mode_of(forward_mode: Any) -> Mode:
    """The engine's mode in our words."""
    if forward_mode.is_decode():
        return Mode.DECODE
    return Mode.EXTEND if forward_mode.is_extend_or_mixed() else Mode.IDLE
