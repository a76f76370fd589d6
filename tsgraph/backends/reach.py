"""Memory that the nodes of a CUDA graph are handed: words of their parameters that lie in live blocks of the allocator.

A parameter says what it is to nobody but its kernel, so each of its words counts that could be an address. What is
found is handed, used or not: nothing in a parameter is missed, but for an address that a descriptor packs otherwise, or
that lies in memory itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs
import numpy as np
import torch

from tsgraph.protocols.backend import Reached

_Words = np.ndarray[Any, np.dtype[np.uint64]]
_Places = np.ndarray[Any, np.dtype[np.int64]]

LOWEST, HIGHEST = 1 << 32, 1 << 57
"""Where the driver maps memory of devices: above what sizes and counts reach, below what a processor can address."""

MOST_PARAMETERS = 4096
"""More than any kernel has: a driver that knows no end is not believed."""

_BUFFER, _SIZE = 1, 2  # CU_LAUNCH_PARAM_BUFFER_POINTER and CU_LAUNCH_PARAM_BUFFER_SIZE; 0 ends the list
_WORD = 8


class Unread(Exception):
    """What a node is handed cannot be read."""


class Parameters:
    """How the parameters of one kernel lie in memory: an array of addresses, and the whole words at each of them."""

    def __init__(self, sizes: Iterable[int]) -> None:
        whole = [size - size % _WORD for size in sizes]
        self._count = len(whole)
        self._addresses = ctypes.c_uint64 * self._count
        self._parts = tuple((at, (ctypes.c_char * size).from_address) for at, size in enumerate(whole) if size)

    def read(self, parameters: int | None, extra: int | None) -> list[bytes]:
        """The words behind `parameters` or else `extra`, as a launch is given them.

        Raises: Unread for neither, and where there is something for a kernel that has no parameters.
        """
        if extra and not parameters:
            return [_buffer(extra)]
        if bool(parameters) != bool(self._count):
            raise Unread
        if not parameters:
            return []
        addresses = self._addresses.from_address(parameters)
        return [read(addresses[at]).raw for at, read in self._parts]


def _buffer(extra: int) -> bytes:
    """The words of a buffer of parameters, from the list of names and values that ends with a zero."""
    told: dict[int, int] = {}
    while name := _word_at(extra):
        if name not in (_BUFFER, _SIZE):
            raise Unread
        told[name] = _word_at(extra + _WORD)
        extra += 2 * _WORD
    if len(told) < 2:
        raise Unread
    size = _word_at(told[_SIZE])
    return ctypes.string_at(told[_BUFFER], size - size % _WORD)


def _word_at(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def parameters_of(ask: Callable[..., int], handle: ctypes.c_void_p) -> Parameters | None:
    """The parameters of the kernel `handle`, by the driver's call `ask`; None where it does not tell."""
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    sizes: list[int] = []
    while len(sizes) < MOST_PARAMETERS:
        code = ask(handle, ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size))
        if code == 1:  # CUDA_ERROR_INVALID_VALUE: there are no more
            return Parameters(sizes)
        if code:
            return None
        sizes.append(size.value)
    return None


@attrs.frozen(eq=False)
class Blocks:
    """Blocks of memory: where they start, in order, and how many bytes each has."""

    starts: _Words
    sizes: _Words

    @property
    def low(self) -> int:
        """Where the first one starts."""
        return int(self.starts[0]) if len(self.starts) else HIGHEST

    @property
    def high(self) -> int:
        """Where the last one ends."""
        return int(self.starts[-1] + self.sizes[-1]) if len(self.starts) else 0

    @classmethod
    def of(cls, blocks: Iterable[tuple[int, int]]) -> Blocks:
        """Those that start there and have so many bytes."""
        starts, sizes = np.array(sorted(blocks), np.uint64).reshape(-1, 2).T
        return cls(starts, sizes)

    def but(self, others: Blocks) -> Blocks:
        """Those that do not start where one of `others` does."""
        new = ~np.isin(self.starts, others.starts, assume_unique=True)
        return Blocks(self.starts[new], self.sizes[new])

    def find(self, words: _Words) -> tuple[_Places, _Words, _Words]:
        """The position of the first word in each block that has one, with the block's start and bytes."""
        if not len(self.starts):
            return np.empty(0, np.int64), self.starts, self.sizes
        which = np.maximum(np.searchsorted(self.starts, words, "right"), 1) - 1
        inside = np.flatnonzero((words >= self.starts[which]) & (words - self.starts[which] < self.sizes[which]))
        blocks, firsts = np.unique(which[inside], return_index=True)
        return inside[firsts], self.starts[blocks], self.sizes[blocks]


@attrs.define(eq=False)
class Handed:
    """What the nodes of one graph are handed. `before`: blocks outside of its pool that were live when it was begun.

    `told`: whether all nodes have told what they are handed.
    """

    before: Blocks
    told: bool = attrs.field(default=False, init=False)
    _missed: bool = attrs.field(default=False, init=False)
    _nodes: list[str] = attrs.field(factory=list, init=False)
    _counts: list[int] = attrs.field(factory=list, init=False)
    _parts: list[bytes] = attrs.field(factory=list, init=False)
    _reach: Mapping[int, Reached] | None = attrs.field(default=None, init=False)

    def add(self, node: str, parts: list[bytes]) -> None:
        """The next node is called this, and is handed these words."""
        self._nodes.append(node)
        self._counts.append(len(parts))
        self._parts += parts

    def read(self, node: str, lying: Parameters | None, parameters: int | None, extra: int | None) -> None:
        """The next node is called this, and is handed what lies there, if it can be read."""
        try:
            if lying is not None:
                self.add(node, lying.read(parameters, extra))
                return
        except Unread:
            pass
        self._missed = True

    def miss(self) -> None:
        """The next node does not tell what it is handed."""
        self._missed = True

    def close(self) -> None:
        """There are no more nodes."""
        self.told = not self._missed

    def reach(self, now: Callable[[], Blocks], staging: Collection[int]) -> Mapping[int, Reached] | None:
        """The blocks that are handed, but for those of `staging`. Those of `now` are looked at when it is first asked.

        None where not all nodes have told.
        """
        if self._reach is None and self.told:
            found = self._found(now())
            self._reach = {address: each for address, each in found.items() if address not in staging}
            self._nodes, self._counts, self._parts = [], [], []
        return self._reach

    def _found(self, now: Blocks) -> dict[int, Reached]:
        """Most words are no addresses: only those are looked for that lie where blocks do."""
        words = np.frombuffer(b"".join(self._parts), np.uint64)
        low, high = min(self.before.low, now.low), max(self.before.high, now.high)
        likely = np.flatnonzero((words >= max(low, LOWEST)) & (words < min(high, HIGHEST)))
        found: dict[int, Reached] = {}
        for blocks, own in ((now.but(self.before), True), (self.before, False)):
            firsts, starts, sizes = blocks.find(words[likely])
            told = zip(starts.tolist(), self._names_at(likely[firsts]), sizes.tolist(), strict=True)
            found |= {start: Reached(name, size, own) for start, name, size in told}
        return found

    def _names_at(self, places: _Places) -> list[str]:
        """The names of the nodes that are handed the words at `places`."""
        lengths = np.fromiter(map(len, self._parts), np.int64, len(self._parts))
        parts = np.searchsorted(np.cumsum(lengths) // _WORD, places, "right")
        nodes = np.searchsorted(np.cumsum(self._counts), parts, "right")
        return [self._nodes[node] for node in nodes.tolist()]


def live_blocks(pools: Collection[tuple[int, ...]]) -> Blocks:
    """The live blocks of torch's allocator that lie in no segment of these `pools`, by their handles."""
    return Blocks.of(
        (block["address"], block["size"])
        for segment in snapshot()
        if tuple(segment.get("segment_pool_id", ())) not in pools
        for block in segment.get("blocks", ())
        if block["state"].startswith("active")
    )


def snapshot() -> list[dict[str, Any]]:
    """The allocator's segments, without the history of which torch may keep much."""
    try:
        segments: list[dict[str, Any]] = torch.cuda.memory_snapshot(include_traces=False)
    except TypeError:  # torch before 2.12 always adds it
        segments = torch.cuda.memory_snapshot()
    return segments
