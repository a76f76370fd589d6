"""What one step is told about its sequences: host tensors, one for each buffer of the spec."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tsgraph.reference.cache import DUMMY_PAGE
from tsgraph.reference.config import EngineConfig
from tsgraph.reference.scheduler import Sequence as Running

Sources = dict[str, Tensor]


def sources_of(sequences: Sequence[Running], page_size: int) -> Sources:
    """The unread tokens of `sequences`: the buffers of `specs/reference.toml`."""
    widest = max(len(s.pages) for s in sequences)
    how = [s.request.sampling for s in sequences]
    unread = [(s, *each) for s in sequences for each in enumerate(s.unread, s.cached)]
    return {
        "input_ids": torch.tensor([token for _, _, token in unread], dtype=torch.int32),
        "positions": torch.tensor([position for _, position, _ in unread], dtype=torch.int64),
        "cache_locations": torch.tensor([_slot(s, p, page_size) for s, p, _ in unread], dtype=torch.int32),
        "seq_lens": torch.tensor([s.cached + len(s.unread) for s in sequences], dtype=torch.int32),
        "request_pool": torch.tensor([s.row for s in sequences], dtype=torch.int64),
        "page_table": torch.tensor([_table(s, widest) for s in sequences], dtype=torch.int32),
        "temperature": torch.tensor([h.temperature for h in how], dtype=torch.float32),
        "top_k": torch.tensor([h.top_k for h in how], dtype=torch.int32),
        "top_p": torch.tensor([h.top_p for h in how], dtype=torch.float32),
        "seed": torch.tensor([h.seed for h in how], dtype=torch.int64),
    }


def extras_of(sequences: Sequence[Running], config: EngineConfig) -> Sources:
    """The buffers that `specs/reference_full.toml` has besides, as far as `config` asks for them."""
    extras = {}
    if config.decoder.recurrent:
        extras["recurrent_slots"] = torch.tensor([s.state_slot for s in sequences], dtype=torch.int32)
    if config.variants:
        how = [s.request.sampling for s in sequences]
        extras["repetition_penalty"] = torch.tensor([h.repetition for h in how], dtype=torch.float32)
        extras["frequency_penalty"] = torch.tensor([h.frequency for h in how], dtype=torch.float32)
    return extras


def _slot(sequence: Running, position: int, page_size: int) -> int:
    return sequence.pages[position // page_size] * page_size + position % page_size


def _table(sequence: Running, width: int) -> list[int]:
    return [*sequence.pages, *[DUMMY_PAGE] * (width - len(sequence.pages))]
