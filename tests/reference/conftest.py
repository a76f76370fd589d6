"""Runtimes without graphs to test the engine with: one runs the step as given, one pads it as a slot would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from tsgraph.keys import DEFAULT_VARIANT, Batch, Decision, Mode, Reason, SlotKey, Step
from tsgraph.reference import Parts

PADS = {"input_ids": 1, "seq_lens": 1, "top_p": 1.0}


@attrs.define
class EagerRuntime:
    """Runs every step as it is given, and counts steps by mode and rows."""

    parts: Parts
    steps: Counter[tuple[Mode, int]] = attrs.field(factory=Counter)

    def step(self, *, rows: int, mode: Mode, variant: None = None, **sources: Any) -> Step:
        """Run the step on `sources` as they are; the plain engine has no variants."""
        self.steps[mode, rows] += 1
        return Step(
            self.eager(rows=rows, mode=mode, padded_to=None, **sources), Decision(rows, rows, Reason.ASKED), None
        )

    def eager(
        self, *, rows: int, mode: Mode, variant: str | None = None, padded_to: int | None = None, **sources: Tensor
    ) -> dict[str, Tensor]:
        """Outputs of the step on `sources`, or on as many rows of them and pads, cut to the live rows."""
        size = rows if padded_to is None else padded_to
        buffers = {name: pad_rows(source, size - rows, PADS.get(name, 0)) for name, source in sources.items()}
        batch = Batch(size, len(buffers["input_ids"]), mode, DEFAULT_VARIANT, buffers)
        with torch.inference_mode():
            return {name: leaf[:rows] for name, leaf in self.parts.step(batch).items()}


@attrs.define
class PaddedRuntime(EagerRuntime):
    """Runs decode steps padded to `size` rows and calls that a replay. `spoil` may change what a replay gives."""

    size: int = 16
    spoil: Callable[[Parts, dict[str, Tensor]], None] = lambda parts, outputs: None

    def step(self, *, rows: int, mode: Mode, variant: None = None, **sources: Any) -> Step:
        """Run the step on padded sources, if it is a decode step."""
        if mode is not Mode.DECODE:
            return EagerRuntime.step(self, rows=rows, mode=mode, **sources)
        outputs = self.eager(rows=rows, mode=mode, padded_to=self.size, **sources)
        outputs = {name: leaf.clone() for name, leaf in outputs.items()}
        self.spoil(self.parts, outputs)
        key = SlotKey(DEFAULT_VARIANT, self.size)
        return Step(outputs, Decision(rows, self.size, Reason.PADDED, key), None)


def pad_rows(source: Tensor, count: int, pad: float) -> Tensor:
    """`source` with `count` rows of `pad` behind it."""
    return torch.cat((source, torch.full((count, *source.shape[1:]), pad, dtype=source.dtype)))


@pytest.fixture
def eager_runtime() -> Callable[[Parts], EagerRuntime]:
    """Makes runtimes that run every step as it is given."""
    return EagerRuntime


@pytest.fixture
def padded_runtime() -> Callable[..., PaddedRuntime]:
    """Makes runtimes that pad every decode step; `spoil` plants a fault in what they call a replay."""

    def make(parts: Parts, **options: Any) -> PaddedRuntime:
        return PaddedRuntime(parts, **options)

    return make
