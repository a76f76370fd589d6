"""The allocator of graph pools against a slow model of it that keeps no lists of free blocks."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tsgraph.backends.emulated.allocator import CUDA, TIGHT, Allocator, Block, Geometry

MIB = 1 << 20
Place = tuple[int, int, int]  # segment, start, size


@attrs.define
class Model:
    """Which bytes of which segment are used; what is free is found by looking at all of them."""

    geometry: Geometry
    segments: list[tuple[tuple[object, bool], int]] = attrs.field(factory=list)  # what may share it, and its size
    used: dict[tuple[int, int], int] = attrs.field(factory=dict)  # size by segment and start

    def holes(self, index: int) -> list[Place]:
        """The free stretches of a segment."""
        taken = sorted((start, size) for (segment, start), size in self.used.items() if segment == index)
        edges = [0, *itertools.chain.from_iterable((start, start + size) for start, size in taken)]
        edges.append(self.segments[index][1])
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return [(index, start, end - start) for start, end in pairs if end > start]

    def take(self, count: int, stream: object) -> Place:
        """Where the block goes: the smallest hole, then the oldest segment, then the lowest address."""
        size = -(-max(count, 1) // 512) * 512
        kind = (stream, size <= self.geometry.small)
        shared = [index for index, (other, _) in enumerate(self.segments) if other == kind]
        fitting = [hole for index in shared for hole in self.holes(index) if hole[2] >= size]
        if not fitting:
            fitting = [(len(self.segments), 0, self.geometry.segment_bytes(size))]
            self.segments.append((kind, fitting[0][2]))
        index, start, hole = min(fitting, key=lambda each: (each[2], each[0], each[1]))
        size = size if self.geometry.splits(hole, size) else hole
        self.used[index, start] = size
        return index, start, size


def place(block: Block) -> Place:
    """Where it is."""
    return block.segment.index, block.start, block.size


counts = st.one_of(st.integers(0, 5000), st.integers(0, 3 * MIB), st.integers(9 * MIB, 23 * MIB))
steps = st.one_of(
    st.tuples(st.just("take"), counts, st.sampled_from([None, "side"])),
    st.tuples(st.just("give"), st.integers(0, 30), st.none()),
)


@given(st.lists(steps, max_size=40), st.sampled_from([CUDA, TIGHT]))
@example([("take", 698369, "side"), ("take", 698881, "side"), ("take", 698881, "side")], CUDA)
def test_places_blocks_as_the_model_does(program, geometry) -> None:
    """Every block is where the model puts it, the sums are right, and all that was freed can be had again."""
    allocator, model, blocks = Allocator(geometry), Model(geometry), []
    peak = 0
    for what, number, stream in program:
        if what == "take":
            block = allocator.take(number, stream)
            assert model.take(number, stream) == place(block)
            assert block.size >= number
            assert block.size == block.memory.size
            assert 0 == block.memory.ctypes.data % 512
            blocks.append(block)
        elif blocks:
            block = blocks.pop(number % len(blocks))
            del model.used[block.segment.index, block.start]
            allocator.give(block)
        peak = max(peak, allocator.used)
        assert (sum(model.used.values()), peak) == (allocator.used, allocator.peak)
        assert sum(size for _, size in model.segments) == allocator.bytes
    for block in blocks:
        allocator.give(block)
    for (stream, small), size in model.segments:
        each = geometry.small if small else size
        for _ in range(size // each):
            allocator.take(each, stream)
    total = sum(size for _, size in model.segments)
    assert (total, total) == (allocator.used, allocator.bytes)


@given(st.lists(counts, min_size=1, max_size=12))
def test_live_blocks_share_no_byte(sizes) -> None:
    """What is written into one block is seen in no other."""
    allocator = Allocator(TIGHT)
    blocks = [allocator.take(count % 4096) for count in sizes]
    for block in blocks[::2]:
        allocator.give(block)
    blocks = blocks[1::2] + [allocator.take(count % 2048) for count in sizes]
    for value, block in enumerate(blocks):
        block.memory[:] = value
    assert all((block.memory == value).all() for value, block in enumerate(blocks))


class TestGeometry:
    @pytest.mark.parametrize(
        ("count", "block", "segment"),
        [
            (0, 512, 2 * MIB), (1, 512, 2 * MIB), (513, 1024, 2 * MIB), (MIB, MIB, 2 * MIB),
            (MIB + 1, MIB + 512, 20 * MIB), (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB, 10 * MIB), (11 * MIB, 11 * MIB, 12 * MIB),
        ],
    )  # fmt: skip
    def test_rounds_as_torch_does(self, count: int, block: int, segment: int) -> None:
        """Blocks to 512 B; segments of 2 MiB, of 20 MiB, or of their own in steps of 2 MiB."""
        assert block == CUDA.block_bytes(count)
        assert segment == CUDA.segment_bytes(CUDA.block_bytes(count))

    def test_splits_off_what_is_worth_it(self) -> None:
        """Any rest of a small segment is a block; of a large one only what is larger than 1 MiB."""
        assert [True, False] == [CUDA.splits(1024, 512), CUDA.splits(512, 512)]
        assert [True, False] == [CUDA.splits(4 * MIB, 2 * MIB), CUDA.splits(3 * MIB, 2 * MIB)]


class TestSegments:
    def test_streams_share_none(self) -> None:
        """A block that one stream freed is not given to another."""
        allocator = Allocator()
        allocator.give(allocator.take(100, "a"))
        assert 1 == allocator.take(100, "b").segment.index
        assert 0 == allocator.take(100, "a").segment.index

    def test_are_given_back_whole(self) -> None:
        """Shrinking keeps each segment of which a block is used."""
        allocator = Allocator(TIGHT)
        first, second = allocator.take(512), allocator.take(1024)
        allocator.give(first)
        allocator.shrink()
        assert (1024, 1024) == (allocator.bytes, allocator.used)
        allocator.give(second)
        allocator.shrink()
        assert (0, 0) == (allocator.bytes, allocator.used)
        assert 2 == allocator.take(512).segment.index

    def test_can_be_dropped_with_their_blocks(self) -> None:
        """Dropped segments count no more, nor do blocks of them that are given back later."""
        allocator = Allocator(TIGHT)
        kept = allocator.take(512)
        before = allocator.segments
        lost, free = allocator.take(1024), allocator.take(2048)
        allocator.give(free)
        allocator.drop(before)
        allocator.give(lost)
        assert (512, 512) == (allocator.bytes, allocator.used)
        assert kept.segment.index != allocator.take(2048).segment.index

    def test_growth_is_foreseen(self) -> None:
        """Whether `take` would need a new segment: of that stream, and of that size."""
        allocator = Allocator(backed=False)
        block = allocator.take(MIB, "a")
        asked = [(100, "a"), (MIB, "a"), (2 * MIB, "a"), (100, "b")]
        assert [False, False, True, True] == [allocator.must_grow(*each) for each in asked]
        allocator.take(MIB, "a")
        assert allocator.must_grow(1, "a")
        allocator.give(block)
        assert not allocator.must_grow(1, "a")

    def test_idle_ones_are_found(self) -> None:
        """Those of which no block is used, before they are given back."""
        allocator = Allocator(backed=False)
        block = allocator.take(100)
        assert not allocator.idle
        allocator.give(block)
        assert allocator.idle
        allocator.shrink()
        assert not allocator.idle

    def test_need_no_memory_to_be_counted(self) -> None:
        """Without memory behind them, any size is at hand at once."""
        allocator = Allocator(backed=False)
        assert 1 << 50 == allocator.take(1 << 50).size == allocator.bytes
