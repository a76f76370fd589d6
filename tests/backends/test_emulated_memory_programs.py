"""Generated lives of a pool: recordings that drop, keep and hand on tensors, replayed in any order, against eager.

Whatever is freed when, a replay computes what eager code does, and leaves alone what the user kept of earlier graphs.
Outputs of later graphs may lie in blocks that it writes (fault E1), as on a GPU. A graph whose input was dropped says
so.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.allocator import CUDA, TIGHT, Geometry
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.backends.emulated.memory import alias, lease_of
from tsgraph.errors import CaptureUnsupported, ReplayFailed

LONGEST, LENGTH = 2048, 96
OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda a, b: a + b.sum(),
    "scale": lambda a, b: (a * 2).sub(1) * 0.5,
    "grow": lambda a, b: torch.cat([a, b])[:LONGEST].clone(),
    "sort": lambda a, b: a.sort(descending=True).values,
    "change": lambda a, b: a.mul_(0.5).add_(b[:1] + 1),
    "fill": lambda a, b: torch.full_like(a, 3.0),
    "out": lambda a, b: torch.mul(a, b[:1], out=torch.empty(0, device=a.device)),
    "half": lambda a, b: a[a.numel() // 2 :],
    "reverse": lambda a, b: a.view(-1, 1).t()[0].flip(0),
    "several": lambda a, b: torch._foreach_add([a, b], 1)[0],
}


@attrs.frozen
class Step:
    """An operation on two of the tensors at hand; then one of them, or none, is dropped."""

    operation: str
    first: int
    second: int
    drop: int | None


@attrs.frozen
class Program:
    """`steps` start from the static input and, with `inherited`, from an output of an earlier graph that is kept."""

    steps: list[Step]
    kept: list[int]
    inherited: int | None

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs to keep."""
        hand = [each + 0 for each in inputs]
        for step in self.steps:
            hand.append(OPERATIONS[step.operation](hand[step.first % len(hand)], hand[step.second % len(hand)]))
            if step.drop is not None and len(hand) > 1:
                del hand[step.drop % len(hand)]
        return [hand[number % len(hand)] for number in self.kept]


@attrs.define
class Life:
    """A graph with its outputs, what they should hold (None where that is anything), and what it inherited."""

    graph: EmulatedGraph
    program: Program
    outputs: list[torch.Tensor]
    expected: list[torch.Tensor] | None = None
    source: torch.Tensor | None = None  # seen without counting as the user's
    owner: StorageWeakRef | None = None

    @property
    def is_stale(self) -> bool:
        """Whether what it inherited is gone: torch's own word, not the allocator's."""
        return self.owner is not None and self.owner.expired()

    def replay(self, static: torch.Tensor) -> None:
        """Once more, here and eagerly."""
        inputs = [static.clone()] if self.source is None else [static.clone(), self.source.clone()]
        self.graph.replay()
        self.expected = self.program.run(inputs)[: len(self.outputs)]


class World:
    """A pool, and all that was recorded in it."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.backend = EmulatedBackend(geometry=geometry)
        self.pool = self.backend.pool()
        self.static = self.backend.allocate((LENGTH,), torch.float32, 1)
        self.lives: list[Life] = []

    def record(self, program: Program, fails: bool) -> None:
        """One more graph, or a recording that fails and leaves no trace."""
        kept = [out for life in self.lives for out in life.outputs]
        sources = [kept[program.inherited % len(kept)]] if kept and program.inherited is not None else []
        del kept
        before = self.pool.used, self.pool.bytes
        if fails:
            with pytest.raises(CaptureUnsupported), torch.no_grad(), self.backend.record(self.pool):
                torch.cat([*program.run([self.static, *sources]), self.static]).tolist()
            assert before == (self.pool.used, self.pool.bytes)
            return
        with torch.no_grad(), self.backend.record(self.pool) as graph:
            outputs = program.run([self.static, *sources])
        life = Life(graph, program, outputs)
        if sources:
            lease = lease_of(sources[0])
            assert lease is not None
            life.source = alias(sources[0], lease)
            life.owner = StorageWeakRef(sources[0].untyped_storage())
        self.lives.append(life)

    def replay(self, number: int, value: float) -> None:
        """A graph on a new input, if it may."""
        if not self.lives:
            return
        life = self.lives[number % len(self.lives)]
        self.static.copy_(torch.linspace(value, 1, LENGTH))
        if not life.is_stale:
            life.replay(self.static)
            for later in self.lives[number % len(self.lives) + 1 :]:
                later.expected = None
            return
        with pytest.raises(ReplayFailed, match="was freed"):
            life.graph.replay()

    def drop(self, number: int) -> None:
        """Let go of the last output of a graph."""
        life = self.lives[number % len(self.lives)] if self.lives else None
        if life is not None and life.outputs:
            life.outputs.pop()
            life.expected = life.expected and life.expected[: len(life.outputs)]

    def release(self, number: int) -> None:
        """Let go of a graph and its outputs."""
        if self.lives:
            self.lives.pop(number % len(self.lives)).graph.release()

    def check(self) -> None:
        """What is kept holds what it should, and is what the pool counts."""
        for life in self.lives:
            for out, expected in zip(life.outputs, life.expected or [], strict=False):
                torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
        sizes = {out.untyped_storage()._cdata: out.untyped_storage().nbytes() for out in self.kept()}
        rounded = sum(-(-size // 512) * 512 for size in sizes.values())
        assert rounded == self.pool.used if self.geometry is TIGHT else rounded <= self.pool.used
        assert self.pool.used <= min(self.pool.high_water, self.pool.bytes)

    def kept(self) -> list[torch.Tensor]:
        """All outputs that the user has."""
        return [out for life in self.lives for out in life.outputs]


numbers = st.integers(0, 11)
programs = st.builds(
    Program,
    st.lists(
        st.builds(Step, st.sampled_from(sorted(OPERATIONS)), numbers, numbers, st.none() | numbers),
        min_size=1,
        max_size=8,
    ),
    st.lists(numbers, max_size=3),
    st.none() | numbers,
)
actions = st.one_of(
    st.tuples(st.just("record"), programs, st.sampled_from([False, False, False, True])),
    st.tuples(st.just("replay"), numbers, st.floats(-2, 2, width=16)),
    st.tuples(st.just("replay"), numbers, st.floats(-2, 2, width=16)),
    st.tuples(st.just("drop"), numbers),
    st.tuples(st.just("release"), numbers),
)


@given(programs, programs, st.lists(actions, max_size=14), st.sampled_from([TIGHT, CUDA]))
def test_replays_equal_eager_whatever_is_freed_when(first, second, life, geometry) -> None:
    """Every output that is kept is right after every action; in the end every byte is given back."""
    world = World(geometry)
    world.record(first, False)
    world.record(second, False)
    for name, *arguments in life:
        getattr(world, name)(*arguments)
        world.check()
    for number in range(len(world.lives)):
        world.replay(number, 0.25)
        world.check()
    while world.lives:
        world.release(0)
    assert (0, 0) == (world.pool.used, world.pool.bytes)
