"""An engine whose steps need memory in proportion to their rows, on a device whose pools are no larger than needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch

from tsgraph.backends.emulated.allocator import TIGHT
from tsgraph.backends.emulated.backend import EmulatedBackend
from tsgraph.buffers.contract import Rows
from tsgraph.capture.mode import is_capturing
from tsgraph.events import Event
from tsgraph.runtime import GraphRuntime

WIDTH = 1024
ROW = 4 * WIDTH
"""Bytes of one row of what a step computes on its way; it has two of these at once."""


@attrs.define(eq=False)
class Hungry:
    """A step that adds its model's bias to ids. `heard`: what its runtime tells. `fails`: sizes that fail to record."""

    model: torch.nn.Linear = attrs.field(factory=lambda: torch.nn.Linear(1, 1))
    backend: EmulatedBackend = attrs.field(factory=lambda: EmulatedBackend(geometry=TIGHT))
    heard: list[Event] = attrs.field(factory=list)
    fails: set[int] = attrs.field(factory=set)
    recorded: list[int] = attrs.field(factory=list)

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids plus the bias, by way of two large intermediates."""
        if is_capturing():
            self.recorded.append(len(ids))
            if len(ids) in self.fails:
                raise ValueError("planted")
        wide = ids[:, None].expand(-1, WIDTH).float() + 0.0
        return (wide + self.model.bias)[:, 0].clone()

    def __attrs_post_init__(self) -> None:
        self.model.bias.data.fill_(0.5)

    def runtime(
        self, sizes: tuple[int, ...] = (1, 2, 4, 8), policy: Mapping[str, Any] | None = None, **rest: Any
    ) -> GraphRuntime:
        """A runtime of it. Collections around captures take long, and are not what is tried here."""
        words: dict[str, Any] = {
            "inputs": {"ids": Rows(torch.int64, pad=0)},
            "outputs": "request",
            "modules": [self.model],
            "backend": self.backend,
            "observers": [self.heard.append],
            "policy": {"freeze_gc": False, **(policy or {})},
        }
        return GraphRuntime.for_step(self.step, sizes=sizes, **words | rest)

    def told(self, name: str) -> list[dict[str, Any]]:
        """The facts of each event of this name."""
        return [dict(event.fields) for event in self.heard if event.name == name]

    @property
    def pooled(self) -> int:
        """Bytes that graph pools hold of the device."""
        return self.backend.memory().pooled


def serve(runtime: GraphRuntime, rows: int, times: int = 1) -> list[str]:
    """Serve so many steps of so many rows; returns why each went where it did. Outputs are checked."""
    bias = runtime._parts.declared.modules[0].get_parameter("bias").item()
    reasons = []
    for _ in range(times):
        done = runtime.step(ids=torch.arange(rows))
        assert [row + bias for row in range(rows)] == done.outputs.tolist()
        reasons.append(done.decision.reason.name)
    return reasons


def states(runtime: GraphRuntime) -> dict[int, str]:
    """The state of each slot, by size."""
    return {slot.key.size: slot.state for slot in runtime.slots.values()}
