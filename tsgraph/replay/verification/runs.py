"""One step, run in each of three ways: replayed, eagerly at the padded shape, eagerly with its live rows alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch.utils import _pytree as pytree

from tsgraph.buffers.arena import Arena
from tsgraph.buffers.staging import Staging
from tsgraph.events import Observers
from tsgraph.keys import Mode, SlotKey
from tsgraph.replay.program import Program
from tsgraph.replay.reasons import EagerReasons
from tsgraph.replay.server import Server
from tsgraph.replay.verification.memory import Left, Memory
from tsgraph.replay.verification.mismatch import compare
from tsgraph.replay.verification.standstill import Entries, Random
from tsgraph.slots.leases import copied, unleased
from tsgraph.slots.slot import Counts, Slot

Sources = Mapping[str, Any]


@attrs.frozen(eq=False)
class Returned:
    """Copies of what a step returned, by name, where the originals lay, and `structure`, the tree without leaves."""

    leaves: tuple[tuple[str, torch.Tensor | None], ...]
    addresses: tuple[int, ...]
    structure: pytree.TreeSpec

    @classmethod
    def of(cls, returned: Any) -> Returned:
        """Copy them: the next replay overwrites them."""
        addresses = tuple(0 if leaf is None else leaf.data_ptr() for leaf in pytree.tree_leaves(returned))
        paths, structure = pytree.tree_flatten_with_path(copied(returned))
        return cls(tuple((f"output{pytree.keystr(path)}", leaf) for path, leaf in paths), addresses, structure)


@attrs.frozen(eq=False)
class Run:
    """What one run came to: outputs at live size, what it left in memory, and the static buffers, whole, after it.

    `drew`: whether random numbers were drawn.
    """

    outputs: Returned
    left: Mapping[str, Left]
    buffers: Mapping[str, torch.Tensor]
    drew: bool


@attrs.define(eq=False)
class Runs:
    """Runs steps of one server. `updates`: whether recurrent state is updated after them, as ever (R42).

    What they count is their own: the counters of slots and of eager steps stay.
    """

    server: Server
    memory: Memory
    entries: Entries
    random: Random
    updates: bool = True
    counts: dict[str, int] = attrs.field(factory=lambda: {"replays": 0, "eager steps": 0})
    _programs: dict[SlotKey, Program] = attrs.field(factory=dict, init=False)

    @property
    def arena(self) -> Arena:
        """The static buffers."""
        return self.server.engine.arena

    def stage(self, slot: Slot, live: int, sources: Sources) -> dict[str, torch.Tensor]:
        """Bring the rows into the static buffers, as an eager step does; what their rows of the slot hold then."""
        size = slot.key.size
        Staging(self.arena, size).stage(live, unleased(sources))
        return {field.label: self.arena.head(field, size).clone() for field in self.arena.fields}

    def replay(self, slot: Slot, live: int, sources: Sources) -> Run:
        """The slot's own way, whatever slot the server would have chosen."""
        program, ranks = self._program(slot), self.server.peers.uniform(live)
        self.counts["replays"] += 1
        return self._run(live, lambda: program.run(live, sources, ranks))

    def padded(self, slot: Slot, live: int, sources: Sources) -> Run:
        """Eagerly, through the static buffers, padded to the slot's size."""
        size, variant = slot.key.size, slot.key.variant
        self.counts["eager steps"] += 1
        return self._run(live, lambda: self.server.eager_padded(size, live, variant, sources))

    def alone(self, slot: Slot, live: int, sources: Sources) -> Run:
        """Eagerly, at exactly the live rows."""
        variant, ranks = slot.key.variant, self.server.peers.uniform(live)
        self.counts["eager steps"] += 1
        return self._run(live, lambda: self.server.eager(live, Mode.DECODE, variant, ranks, sources))

    def _program(self, slot: Slot) -> Program:
        if slot.key not in self._programs:
            program = self.server.routes.programs[slot.key]
            updates = program.updates if self.updates else ()
            self._programs[slot.key] = attrs.evolve(program, counts=Counts(slot.key.size), updates=updates)
        return self._programs[slot.key]

    def _run(self, live: int, serve: Callable[[], Any]) -> Run:
        self.random.rewind()
        with self.entries.one(live):
            returned = serve()
        self.server.engine.backend.synchronize()
        with torch.inference_mode():
            buffers = {label: tensor.clone() for label, tensor in self.arena.tensors().items()}
            return Run(Returned.of(returned), self.memory.left(), buffers, self.random.moved())


def quiet(server: Server, *, updates: bool) -> Server:
    """A server of the same slots that counts and tells for nobody. `updates`: whether it updates recurrent state."""
    return attrs.evolve(server, reasons=EagerReasons(Observers()), recurrent=server.recurrent if updates else None)


@contextmanager
def unchanged(sources: Sources, tell: Callable[[list[str]], None]) -> Iterator[None]:
    """Tell the names of the sources that the block changed (R41): none, mostly."""
    before = copied(dict(sources))
    yield
    tell([name for name, source in sources.items() if not same(before[name], source)])


def same(one: Any, other: Any) -> bool:
    """Whether two sources hold the same bits."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(each, other[group]) for group, each in one.items())
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return one is other
    if one.device != other.device:
        return False
    return compare(one, other) is None
