"""Graph pools by their handles, as torch's allocator keeps them."""

from __future__ import annotations

from itertools import count

import attrs

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.memory import EmulatedPool

Handle = tuple[int, int]
_HANDLES = count(1)


def new_handle() -> Handle:
    """A token for a pool that does not exist yet."""
    return (0, next(_HANDLES))


@attrs.define(eq=False)
class _Entry:
    pool: EmulatedPool
    graphs: int = 0
    open: bool = False  # a capture takes memory from it, or has failed so that torch never closed it

    @property
    def idle(self) -> bool:
        """Whether nothing needs it any more."""
        return self.graphs == 0 and not self.open and self.pool.bytes == 0


class Pools:
    """The pools that graphs hold, and those whose graphs are gone but whose memory is not given back yet."""

    def __init__(self, *, checked: bool) -> None:
        self._checked = checked
        self._entries: dict[Handle, _Entry] = {}

    def open(self, handle: Handle) -> EmulatedPool:
        """The pool of `handle` for one more graph.

        Raises: RuntimeError, as torch's allocator does, for a pool whose last graph is gone and that is not trimmed,
        and for one that is open.
        """
        entry = self._entries.get(handle)
        if entry is None:
            entry = self._entries[handle] = _Entry(EmulatedPool(checked=self._checked))
        elif entry.open:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        elif entry.graphs == 0:
            raise RuntimeError(f"use_count > 0 INTERNAL ASSERT FAILED: the last graph of pool {handle} is gone")
        entry.graphs, entry.open = entry.graphs + 1, True
        return entry.pool

    def settle(self, handle: Handle) -> None:
        """The capture that takes memory from this pool has ended."""
        self._entries[handle].open = False

    def close(self, handle: Handle) -> None:
        """A graph of this pool is gone."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.graphs -= 1

    def trim(self) -> None:
        """Forget the pools whose graphs are gone and of which nothing is in use.

        Raises: CaptureUnsupported where there are any, and a capture forbids to give memory back.
        """
        over = [handle for handle, entry in self._entries.items() if entry.idle]
        if over:
            current.refuse_unsafe("torch.cuda.empty_cache", "empty the cache before or after the recording")
        for handle in over:
            del self._entries[handle]

    @property
    def spare(self) -> int:
        """Bytes that the pools hold of the device beside their blocks in use."""
        return sum(entry.pool.bytes - entry.pool.used for entry in self._entries.values())
