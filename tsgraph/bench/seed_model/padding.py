"""Pads, each a new tensor (§4, "Padding"; §6, "Call order": backends get fresh padded copies)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Tables = Mapping[str, Tensor]


def padded_rows(rows: Tensor, extra: int, pad: int) -> Tensor:
    """`rows` [n] with `extra` rows of `pad` below: lengths (R30) and recurrent indices (R33)."""
    return torch.nn.functional.pad(rows, (0, extra), value=pad)


def padded_pool(rows: Tensor, extra: int) -> Tensor:
    """Pool rows [n] with `extra` rows of 0 below (R31)."""
    return torch.cat([rows, rows.new_zeros(extra)])


def padded_tables(tables: Tables, rows: int, pad: int) -> Tables:
    """Each table [n, columns] with rows of `pad` below, up to `rows`; one that has them passes through (R34)."""
    return {
        group: table if len(table) == rows else torch.nn.functional.pad(table, (0, 0, 0, rows - len(table)), value=pad)
        for group, table in tables.items()
    }


def padded_offsets(offsets: Tables, rows: int) -> Tables:
    """Each row of base offsets [n] with zeros below, up to `rows` (R34)."""
    return {
        group: each if len(each) == rows else padded_rows(each, rows - len(each), 0) for group, each in offsets.items()
    }
