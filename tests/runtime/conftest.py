"""A small engine that the runtime tests share: rows of ids, lengths and page tables over a state of pages."""

from __future__ import annotations

import attrs
import pytest
import torch

from tsgraph.buffers.contract import Fixed, Rows, State
from tsgraph.runtime import GraphRuntime

PAGES, WIDTH = 16, 4


@attrs.define(eq=False)
class ToyEngine:
    """A step that reads its rows' pages, writes one page per row, and returns a score and the ids plus one."""

    device: torch.device
    weight: torch.Tensor
    pages: torch.Tensor
    calls: int = 0
    raises: Exception | None = None

    def step(self, ids, seq_lens, table, weight):
        self.calls += 1
        if self.raises is not None:
            raise self.raises
        read = self.pages[table.clamp(min=0).long()].sum(dim=(1, 2))
        self.pages.index_copy_(
            0, table[:, 0].clamp(min=0).long(), (ids[:, None] + self.pages[0] * 0).to(self.pages.dtype)
        )
        score = (read + seq_lens).float()[:, None] * weight
        return {"score": score, "next": ids + 1}

    def sources(self, *ids: int) -> dict[str, torch.Tensor]:
        """Sources of one step, one row per id, each with a page of its own, on the host."""
        rows = len(ids)
        table = torch.full((rows, WIDTH), -1, dtype=torch.int32)
        table[:, 0] = torch.arange(1, rows + 1)
        return {
            "ids": torch.tensor(ids, dtype=torch.int64),
            "seq_lens": torch.arange(2, rows + 2, dtype=torch.int32),
            "table": table,
        }

    def runtime(self, backend, sizes=(1, 2, 4, 8), **rest) -> GraphRuntime:
        """A runtime of this step."""
        inputs = {
            "ids": Rows(torch.int64, pad=0),
            "seq_lens": Rows(torch.int32, pad=1),
            "table": Rows(torch.int32, shape=(WIDTH,), pad=-1),
            "weight": Fixed(self.weight),
        }
        state = {"pages": State(self.pages, sink=0)}
        options = {"inputs": inputs, "sizes": sizes, "outputs": "request", "state": state, **rest}
        return GraphRuntime.for_step(self.step, backend=backend, **options)


@pytest.fixture
def engine(backend) -> ToyEngine:
    """A fresh engine on the backend's device."""
    weight = torch.arange(1.0, 4.0, device=backend.device)
    pages = torch.arange(PAGES * 3, dtype=torch.float32, device=backend.device).reshape(PAGES, 3)
    return ToyEngine(backend.device, weight, pages)
