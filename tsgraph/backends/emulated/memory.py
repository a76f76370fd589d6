"""Graph pools of the emulated device: what happens to memory during a recording, after it, and when its graph is gone.

*During a recording.* What an operation returns is a block of the pool. The block is free again as soon as the last
tensor of the user's on it is gone, be it a view, a detached tensor or a NumPy array, and a later operation of the same
recording takes it. Recorded launches work on the same bytes, but through storages of their own, which do not count.

*After it* nothing changes: a block that is in use stays so until the user drops its last tensor, and every other one
serves the next recordings of the pool. So graphs write over each other's intermediates and dropped outputs (fault E1),
and a replay writes all its blocks, whoever has them now.

*When its graph is released.* CUDA gives memory back when the last graph of a pool is gone, and then only segments of
which no block is in use; so does this. What a graph took and the user still has stays valid, though nothing writes it
any more. What the user has not is free: a graph that captured such a block of another one reads what lies there (fault
E4). So it is with any input that the user dropped (K2). Here the bytes of a dropped input stay mapped, so that no
replay can do harm; in checked mode that replay is an error that names the tensor, in unchecked mode it reads poison
(dropped input), or what has become of the block (dropped block of a pool).

*A recording that fails* gives back the segments that it opened. A tensor of it that was leaked keeps its memory, as
host memory.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Hashable, Sequence

import attrs
import numpy as np
import torch

from tsgraph.backends.emulated.allocator import CUDA, Allocator, Block, Geometry
from tsgraph.backends.emulated.dispatcher import storage_key, unseen_by_operators
from tsgraph.backends.emulated.refusal import refuse

_LEASES: dict[int, Lease] = {}  # by the key of the storage that the user has


@attrs.define(eq=False)
class Lease:
    """A block of a pool while a tensor of the user's lies in it.

    `key` is that of the user's storage; `alias` is another storage of the same bytes, for launches.
    """

    block: Block
    dtype: torch.dtype
    alias: torch.UntypedStorage
    key: int = 0
    freed: bool = False

    def gone(self) -> bool:
        """Whether the user has no tensor in it any more."""
        return self.freed


def lease_of(tensor: torch.Tensor) -> Lease | None:
    """The block that `tensor` lies in; None outside of pools."""
    return _LEASES.get(storage_key(tensor.untyped_storage()))


class EmulatedPool:
    """The memory that recordings of one runtime take. `checked`: a block that is freed is poisoned at once."""

    def __init__(self, *, checked: bool = True, geometry: Geometry = CUDA) -> None:
        self._allocator = Allocator(geometry)
        self._checked = checked
        self._freed: deque[Lease] = deque()
        self._graphs: weakref.WeakSet[object] = weakref.WeakSet()
        self._recording: object = None
        self._lock = threading.RLock()
        self._high_water = 0

    @property
    def bytes(self) -> int:
        """Bytes of its segments: what it holds of the device, in use or not."""
        with self._lock:
            self.collect()
            return self._allocator.bytes

    def holds(self, address: int) -> bool:
        """Whether `address` lies in its segments, in use or not."""
        with self._lock:
            return self._allocator.holds(address)

    @property
    def used(self) -> int:
        """Bytes of its blocks in use."""
        with self._lock:
            self.collect()
            return self._allocator.used

    @property
    def high_water(self) -> int:
        """The most bytes of blocks that were in use at once, ever."""
        return max(self._high_water, self._allocator.peak)

    @property
    def peak(self) -> int:
        """The most bytes of blocks that were in use at once since the last recording began."""
        return self._allocator.peak

    def enter(self, graph: object) -> frozenset[int]:
        """Begin to record `graph`: no segment is given back while it lives. Returns the segments of now.

        Raises: CaptureUnsupported while another graph is recorded here.
        """
        with self._lock:
            if self._recording is not None:
                raise refuse("a recording", "another one takes memory from the same pool", "record one after the other")
            self.collect()
            self._recording = graph
            self._graphs.add(graph)
            self._high_water = self.high_water
            self._allocator.restart_peak()
            return self._allocator.segments

    def settle(self, before: frozenset[int]) -> tuple[int, int]:
        """After a recording: the bytes by which it grew the pool, and the most that its blocks took at once."""
        with self._lock:
            self._recording = None
            self.collect()
            return self._allocator.bytes_beside(before), self._allocator.peak

    def leave(self, graph: object) -> None:
        """Note that `graph` is no more."""
        with self._lock:
            self._graphs.discard(graph)
            self.collect()

    def fail(self, graph: object, before: frozenset[int]) -> None:
        """Drop the segments beside those `before` the recording of `graph`."""
        with self._lock:
            self._recording = None
            self._allocator.drop(before)
            self.leave(graph)

    def allocate(
        self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, stream: Hashable = None
    ) -> torch.Tensor:
        """A poisoned tensor of exactly `size` and `stride`, in a block for work of `stream`."""
        count = _bytes_of(size, stride, dtype)
        with unseen_by_operators():
            if count == 0:
                return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
            return torch.empty(0, dtype=dtype, device="cpu").set_(self._lend(count, dtype, stream), 0, size, stride)

    def collect(self) -> None:
        """Take back the blocks that the user has freed, and give back the segments that nothing needs any more.

        Storages die at any moment, also within this pool's own work; so their death is noted then, and acted on here.
        """
        with self._lock:
            while self._freed:
                self._take_back(self._freed.popleft())
            if not self._graphs:
                self._allocator.shrink()

    def _lend(self, count: int, dtype: torch.dtype, stream: Hashable) -> torch.UntypedStorage:
        with self._lock:
            self.collect()
            block = self._allocator.take(count, stream)
        _poison_block(block, dtype)
        lent = block.memory[:count]
        lease = Lease(block, dtype, _storage_over(block.memory[:count]))
        storage = _storage_over(lent)
        lease.key = storage_key(storage)
        _LEASES[lease.key] = lease
        weakref.finalize(lent, self._note_freed, lease).atexit = False
        return storage

    def _note_freed(self, lease: Lease) -> None:
        lease.freed = True
        _LEASES.pop(lease.key, None)
        self._freed.append(lease)

    def _take_back(self, lease: Lease) -> None:
        if self._checked:
            _poison_block(lease.block, lease.dtype)
        self._allocator.give(lease.block)


def alias(tensor: torch.Tensor, lease: Lease) -> torch.Tensor:
    """The same view of the block of `lease` as `tensor`, in a storage that does not count as the user's."""
    same = torch.empty(0, dtype=tensor.dtype, device="cpu")
    same.set_(lease.alias, tensor.storage_offset(), tensor.size(), tensor.stride())
    same = same.conj() if tensor.is_conj() else same
    return torch._neg_view(same) if tensor.is_neg() else same  # noqa: SLF001 - it has no public name


def poison(tensor: torch.Tensor) -> None:
    """Fill `tensor` with what no result may be mistaken for: NaN, an integer out of any range, alternating booleans.

    On a GPU such memory holds whatever was there before: a recording that reads it is wrong, so it must be seen.
    """
    if tensor.dtype is torch.bool:
        _alternate(tensor)
    elif tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    else:
        limits = torch.iinfo(tensor.dtype)
        tensor.fill_(limits.min or limits.max)


def _alternate(tensor: torch.Tensor) -> None:
    flat = torch.empty(0, dtype=torch.bool, device="cpu").set_(tensor.untyped_storage())
    flat[::2] = True
    flat[1::2] = False


def _poison_block(block: Block, dtype: torch.dtype) -> None:
    """By NumPy: blocks are freed wherever a tensor dies, under any mode of torch."""
    block.memory.view(np.complex128).fill(_pattern(dtype))


@functools.cache
def _pattern(dtype: torch.dtype) -> np.complex128:
    """Sixteen bytes of poison."""
    with unseen_by_operators():
        sample = torch.empty(16 // dtype.itemsize, dtype=dtype, device="cpu")
        poison(sample)
        found: np.complex128 = sample.view(torch.uint8).numpy().view(np.complex128)[0]
    return found


def _storage_over(memory: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> torch.UntypedStorage:
    """A storage of exactly these bytes, which keeps `memory`, the object, alive while it lives itself."""
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


def _bytes_of(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> int:
    if 0 in size:
        return 0
    return (1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))) * dtype.itemsize


def machine_bytes() -> tuple[int, int]:
    """Free and total bytes of this machine's memory; all of it counts as free where the system does not say."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    free = page * os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else total
    return free, total
