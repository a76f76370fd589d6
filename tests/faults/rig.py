"""An engine with its slots captured, whose memory can be copied, put back and filled with garbage."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs
import torch
from torch import Tensor

from tests.faults.parts import Parts
from tests.faults.shape import DUMMY_PAGE, Shape
from tests.faults.step import Memory, PagedStep, tensor
from tsgraph.buffers.contract import Fixed
from tsgraph.runtime import GraphRuntime

Snapshot = dict[str, Tensor]
Honours = Mapping[str, Collection[float]]


def require(holds: object, what: str) -> None:
    """Raise AssertionError saying `what`, unless it holds."""
    if not holds:
        raise AssertionError(what)


@attrs.define(eq=False)
class Rig:
    """One engine. `cache` keeps what requests have in their pages: whatever nobody holds is NaN during a turn.

    `replays`: whether its slots are captured; else turns run eagerly, through the same static buffers and pads.
    """

    shape: Shape
    memory: Memory
    parts: Parts
    step: PagedStep
    runtime: GraphRuntime
    cache: Snapshot
    replays: bool
    turn: int = 0

    @classmethod
    def build(cls, shape: Shape, *, capture: bool = True, honours: Honours | None = None) -> Rig:
        """An engine of this shape on an emulated device. `honours`: the pads that its attention can do with."""
        memory, parts = Memory.fresh(shape), Parts.of(shape)
        parts.attention.honours = honours or {}
        step = PagedStep(shape, memory, parts)
        cache = {"keys": tensor(1, *memory.keys.shape), "values": tensor(2, *memory.values.shape)}
        rig = cls(shape, memory, parts, step, _runtime(step), cache, replays=capture)
        if capture:
            rig.capture()
        return rig

    def capture(self) -> None:
        """Capture every slot. Raises AssertionError where one is not replayable then."""
        with self.parts.capturing():
            self.runtime.capture()
        states = {str(slot): str(slot.cause) for slot in self.runtime.slots.values() if slot.state != "replayable"}
        require(not states, f"slots were not captured: {states}")

    def size_of(self, live: int, variant: str) -> int:
        """The size of the slot that serves `live` rows."""
        if not self.replays:
            return min(size for size in self.shape.sizes if size >= live)
        decision = self.runtime.explain(live, variant=variant)
        require(decision.key == (variant, decision.padded_to), f"no slot of {variant} serves {live} rows: {decision}")
        return decision.padded_to

    # -- memory --------------------------------------------------------------------------------------------------------

    def mutable(self) -> Snapshot:
        """All memory that a turn may change, by name."""
        return {**self.memory.tensors(), **self.parts.tensors(), "accepted": self.parts.recurrent.accepted}

    def snapshot(self) -> Snapshot:
        """A copy of it."""
        return {name: now.clone() for name, now in self.mutable().items()}

    def restore(self, before: Snapshot) -> None:
        """Put a copy back."""
        for name, now in self.mutable().items():
            now.copy_(before[name])

    def load_pages(self, pages: list[int]) -> None:
        """Give the pages of live rows, and the dummy page, what they hold, and make every other one NaN."""
        for name, kept in self.cache.items():
            now = getattr(self.memory, name)
            now.fill_(float("nan"))
            now[[DUMMY_PAGE, *pages]] = kept[[DUMMY_PAGE, *pages]]

    def keep_pages(self, pages: list[int]) -> None:
        """Keep what the pages of live rows hold now, for a later turn."""
        for name, kept in self.cache.items():
            kept[[DUMMY_PAGE, *pages]] = getattr(self.memory, name)[[DUMMY_PAGE, *pages]]

    def litter(self, garbage: int) -> None:
        """Write `garbage` into every element of every static buffer."""
        for held in self.runtime.slots["default", self.shape.rows].batch.buffers.values():
            for each in [held] if isinstance(held, Tensor) else held.values():
                each.fill_(min(garbage, torch.iinfo(each.dtype).max))


def _runtime(step: PagedStep) -> GraphRuntime:
    shape, parts = step.shape, step.parts
    states = {**step.memory.states(), **parts.states()}
    written = {state.tensor.data_ptr() for state in states.values()}
    read = {**step.weights, **{f"part {name}": memory for name, memory in parts.tensors().items()}}
    return GraphRuntime(
        shape.law,
        step,
        geometry=shape.geometry,
        sizes=shape.sizes,
        fixed={name: Fixed(memory) for name, memory in read.items() if memory.data_ptr() not in written},
        state=states,
        backend="emulated",
        observers=(),
        **parts.collaborators(),
    )
