"""Random rows for a decode step of the reference engine."""

from __future__ import annotations

import torch
from torch import Tensor

from tsgraph.reference import EngineConfig


def random_rows(
    config: EngineConfig, rows: int, *, position: int | None = None, temperature: float = 0.0, seed: int = 0
) -> dict[str, Tensor]:
    """Host tensors for each buffer of `specs/reference.toml`, for `rows` requests with pages of their own.

    `position`: where all of them are (None: anywhere in their context). `temperature`: 0 draws greedily.
    """
    generator = torch.Generator().manual_seed(seed)
    pages, size = config.pages_per_request, config.page_size
    tables = 1 + torch.arange(rows * pages, dtype=torch.int32).view(rows, pages)
    if position is None:
        positions = torch.randint(config.context, (rows,), generator=generator)
    else:
        positions = torch.full((rows,), position)
    page = tables.gather(1, (positions // size)[:, None]).squeeze(1)
    return {
        "input_ids": torch.randint(config.decoder.vocabulary, (rows,), generator=generator).to(torch.int32),
        "positions": positions,
        "cache_locations": (page * size + positions % size).to(torch.int32),
        "seq_lens": (positions + 1).to(torch.int32),
        "request_pool": torch.arange(1, rows + 1),
        "page_table": tables,
        "temperature": torch.full((rows,), temperature),
        "top_k": torch.zeros(rows, dtype=torch.int32),
        "top_p": torch.ones(rows),
        "seed": torch.arange(rows),
    }
