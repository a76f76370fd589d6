"""Blocks cut from segments by the rules of PyTorch's CUDA caching allocator.

Sizes are rounded up to 512 B. The smallest free block that fits is taken, the oldest of equals; what is left over is
split off. A block that is given back merges with free neighbours of its segment. Small and large requests never share
a segment, nor do two streams: a block that one stream freed is not safe to give to another.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Hashable
from itertools import count

import attrs
import numpy as np

_ALIGNMENT = 512
_Free = tuple[int, int, int, "Block"]  # size, segment and start order the free blocks: no two share the last two


@attrs.frozen(kw_only=True)
class Geometry:
    """How sizes are rounded, in bytes. The defaults are PyTorch's (`CUDACachingAllocator.cpp`, torch 2.11).

    Requests of at most `small` are served from segments of `small_segment`, those under `medium` from segments of
    `medium_segment`; a larger one has a segment of its own, rounded to `large_unit`.
    """

    unit: int = 512
    small: int = 1 << 20
    small_segment: int = 2 << 20
    medium: int = 10 << 20
    medium_segment: int = 20 << 20
    large_unit: int = 2 << 20

    def block_bytes(self, count: int) -> int:
        """The size of a block for `count` bytes."""
        return _round_up(max(count, 1), self.unit)

    def segment_bytes(self, size: int) -> int:
        """The size of a new segment for a block of `size`."""
        if size <= self.small:
            return self.small_segment
        return self.medium_segment if size < self.medium else _round_up(size, self.large_unit)

    def splits(self, available: int, size: int) -> bool:
        """Whether what a block of `size` leaves of `available` becomes a block."""
        rest = available - size
        return rest >= self.unit if size <= self.small else rest > self.small


CUDA = Geometry()
TIGHT = Geometry(small=0, medium=0, large_unit=512)  # segments no larger than what asked for them: for small numbers


@attrs.define(eq=False)
class Segment:
    """A stretch of memory that blocks are cut from."""

    index: int
    memory: np.ndarray[tuple[int], np.dtype[np.uint8]]
    small: bool
    stream: Hashable
    used: int = 0  # bytes of its used blocks

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.memory.size

    def holds(self, address: int) -> bool:
        """Whether `address` is that of one of its bytes."""
        return 0 <= address - self.memory.ctypes.data < self.bytes


@attrs.define(eq=False)
class Block:
    """A part of a segment, and its neighbours there."""

    segment: Segment
    start: int
    size: int
    used: bool = False
    before: Block | None = attrs.field(default=None, repr=False)
    after: Block | None = attrs.field(default=None, repr=False)

    @property
    def memory(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Its bytes."""
        return self.segment.memory[self.start : self.start + self.size]


class Allocator:
    """The segments of one pool. `used` and `peak` are bytes of blocks: now, and the most since `restart_peak`.

    `backed`: the segments have memory. Others only count.
    """

    def __init__(self, geometry: Geometry = CUDA, *, backed: bool = True) -> None:
        self._geometry = geometry
        self._memory = _memory if backed else _no_memory
        self._segments: dict[int, Segment] = {}
        self._free: dict[tuple[Hashable, bool], list[_Free]] = defaultdict(list)
        self._indices = count()
        self.used = 0
        self.peak = 0

    @property
    def bytes(self) -> int:
        """Bytes of the segments."""
        return self.bytes_beside(frozenset())

    def bytes_beside(self, known: frozenset[int]) -> int:
        """Bytes of the segments beside `known`."""
        return sum(segment.bytes for index, segment in self._segments.items() if index not in known)

    def holds(self, address: int) -> bool:
        """Whether `address` lies in one of the segments."""
        return any(segment.holds(address) for segment in self._segments.values())

    @property
    def segments(self) -> frozenset[int]:
        """The indices of the segments."""
        return frozenset(self._segments)

    def take(self, count: int, stream: Hashable = None) -> Block:
        """A block of at least `count` bytes for work of `stream`."""
        size = self._geometry.block_bytes(count)
        block = self._best_fit(size, stream) or self._grow(size, stream)
        if self._geometry.splits(block.size, size):
            self._split(block, size)
        self._count(block, used=True)
        self.peak = max(self.peak, self.used)
        return block

    def must_grow(self, count: int, stream: Hashable = None) -> bool:
        """Whether `take` would need a new segment."""
        return not self._fits(self._geometry.block_bytes(count), stream)

    @property
    def idle(self) -> bool:
        """Whether `shrink` would drop a segment."""
        return any(not segment.used for segment in self._segments.values())

    def give(self, block: Block) -> None:
        """Take `block` back; one of a segment that was dropped is gone with it."""
        if block.segment.index not in self._segments:
            return
        self._count(block, used=False)
        self._insert(self._merge(block))

    def restart_peak(self) -> None:
        """Measure `peak` from now."""
        self.peak = self.used

    def shrink(self) -> None:
        """Drop the segments of which no block is used."""
        self.drop(frozenset(segment.index for segment in self._segments.values() if segment.used))

    def drop(self, kept: frozenset[int]) -> None:
        """Drop the segments beside `kept`, used or not: who uses their blocks has them to himself from now on."""
        self.used -= sum(segment.used for segment in self._segments.values() if segment.index not in kept)
        for key, blocks in self._free.items():
            self._free[key] = [entry for entry in blocks if entry[1] in kept]
        self._segments = {index: segment for index, segment in self._segments.items() if index in kept}

    def _count(self, block: Block, *, used: bool) -> None:
        block.used = used
        change = block.size if used else -block.size
        self.used += change
        block.segment.used += change

    def _best_fit(self, size: int, stream: Hashable) -> Block | None:
        blocks = self._free[stream, size <= self._geometry.small]
        return blocks.pop(bisect_left(blocks, size, key=_size_of))[3] if self._fits(size, stream) else None

    def _fits(self, size: int, stream: Hashable) -> bool:
        blocks = self._free[stream, size <= self._geometry.small]
        return bool(blocks) and blocks[-1][0] >= size

    def _grow(self, size: int, stream: Hashable) -> Block:
        count = self._geometry.segment_bytes(size)
        segment = Segment(next(self._indices), self._memory(count), size <= self._geometry.small, stream)
        self._segments[segment.index] = segment
        return Block(segment, 0, count)

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.segment, block.start + size, block.size - size, before=block, after=block.after)
        if rest.after is not None:
            rest.after.before = rest
        block.size, block.after = size, rest
        self._insert(rest)

    def _merge(self, block: Block) -> Block:
        if block.after is not None and not block.after.used:
            self._remove(block.after)
            block = _join(block, block.after)
        if block.before is not None and not block.before.used:
            self._remove(block.before)
            block = _join(block.before, block)
        return block

    def _insert(self, block: Block) -> None:
        insort(self._blocks_beside(block), _entry(block))

    def _remove(self, block: Block) -> None:
        blocks = self._blocks_beside(block)
        del blocks[bisect_left(blocks, _entry(block))]

    def _blocks_beside(self, block: Block) -> list[_Free]:
        return self._free[block.segment.stream, block.segment.small]


def _entry(block: Block) -> _Free:
    return block.size, block.segment.index, block.start, block


def _size_of(entry: _Free) -> int:
    return entry[0]


def _join(block: Block, after: Block) -> Block:
    block.size += after.size
    block.after = after.after
    if after.after is not None:
        after.after.before = block
    return block


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _memory(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Bytes at an aligned address; the system lends none of them before they are touched."""
    raw = np.empty(count + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + count]


def _no_memory(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """As many bytes that are one and the same."""
    return np.broadcast_to(np.uint8(0), count)
