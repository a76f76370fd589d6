"""Memory of the device outside of graph pools: when torch's caching allocator would have to ask CUDA for more of it.

It keeps what a stream has freed for the same stream, in segments. To get one from CUDA, and to give one back, are calls
that a capture forbids. The bytes themselves are those of CPU tensors; here their sizes are counted, by the same rules.
"""

from __future__ import annotations

import threading

import attrs
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.aliases import is_dropped
from tsgraph.backends.emulated.allocator import Allocator, Block
from tsgraph.backends.emulated.dispatcher import storage_key
from tsgraph.backends.emulated.streams import current_stream

_BEFORE = "make it before the recording, on a stream that takes part in it, or where that stream has freed as much"


@attrs.frozen
class _Held:
    """A block, and the storage that lies in it."""

    reference: StorageWeakRef
    block: Block

    def gone(self, key: int) -> bool:
        return self.reference.expired() or is_dropped(key)


class EagerMemory:
    """The segments of each stream, and the blocks of the storages that live in them.

    Storages die unnoticed, so it looks for the dead when it is about to grow.
    """

    def __init__(self) -> None:
        self._allocator = Allocator(backed=False)
        self._held: dict[int, _Held] = {}
        self._lock = threading.RLock()

    def take(self, storage: torch.UntypedStorage) -> None:
        """A block of the current stream's for `storage`, unless it has one.

        Raises: CaptureUnsupported where CUDA would be asked for a segment, and a capture forbids it.
        """
        key, count, stream = storage_key(storage), storage.nbytes(), current_stream().stream_id
        with self._lock:
            if count == 0 or key in self._held:
                return
            if self._must_grow(count, stream):
                current.refuse_unsafe("an allocation of device memory", _BEFORE)
            self._held[key] = _Held(StorageWeakRef(storage), self._allocator.take(count, stream))

    def give_back(self) -> None:
        """Give CUDA the segments that nothing uses.

        Raises: CaptureUnsupported where there are any, and a capture forbids it.
        """
        with self._lock:
            self.collect()
            if self._allocator.idle:
                current.refuse_unsafe("torch.cuda.empty_cache", "empty the cache before or after the recording")
            self._allocator.shrink()

    def collect(self) -> None:
        """Take the blocks of the dead."""
        with self._lock:
            for key in [key for key, held in self._held.items() if held.gone(key)]:
                self._allocator.give(self._held.pop(key).block)

    def _must_grow(self, count: int, stream: int) -> bool:
        if not self._allocator.must_grow(count, stream):
            return False
        self.collect()
        return self._allocator.must_grow(count, stream)
