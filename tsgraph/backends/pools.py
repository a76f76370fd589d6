"""The private pools of torch's caching allocator that CUDA graphs live in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from tsgraph.backends.reach import Blocks, live_blocks, snapshot

if TYPE_CHECKING:
    from tsgraph.backends.cuda import CudaGraph


def _segment_counts() -> object:
    """What changes whenever the allocator takes memory or gives it back; None where torch does not say."""
    try:
        counts = torch.cuda.memory_stats_as_nested_dict()["reserved_bytes"]["all"]
        return counts["allocated"], counts["freed"]
    except (KeyError, AttributeError):
        return None


class CudaPool:
    """The private pools of torch's caching allocator that one runtime's graphs live in: one, as long as all goes well.

    Torch refuses to record into a pool whose last graph was destroyed, and may refuse one whose recording failed, so
    the next recording then opens a new pool. `bytes` counts all that hold memory.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._graphs: WeakSet[CudaGraph] = WeakSet()
        self._broken = False
        self._known: tuple[object, list[range]] = (None, [])

    @property
    def bytes(self) -> int:
        """Bytes of the segments that the pool holds. Not for the hot path."""
        return sum(map(len, self._segments()))

    def holds(self, address: int) -> bool:
        """Whether `address` lies in a segment of the pool."""
        return any(address in segment for segment in self._segments())

    def _segments(self) -> list[range]:
        """The addresses of its segments. Walks the allocator where that has changed since."""
        now = _segment_counts(), len(self._handles)
        if now[0] is None or now != self._known[0]:
            self._known = (now, self._walk())
        return self._known[1]

    def _walk(self) -> list[range]:
        handles = self._pools()
        mine = [segment for segment in snapshot() if tuple(segment.get("segment_pool_id", ())) in handles]
        return [range(s["address"], s["address"] + s["total_size"]) for s in mine]

    def outside(self) -> Blocks:
        """The live blocks of the allocator that are not in the pool. Walks all of it."""
        return live_blocks(self._pools())

    def _pools(self) -> set[tuple[int, ...]]:
        return {tuple(handle) for handle in self._handles}

    def handle(self) -> Any:
        """The pool to record into now."""
        if self._broken or not self._graphs:
            self._handles.append(torch.cuda.graph_pool_handle())
            self._broken = False
        return self._handles[-1]

    def keep(self, graph: CudaGraph) -> None:
        """Note that `graph` lives here."""
        self._graphs.add(graph)

    def leave(self, graph: CudaGraph) -> None:
        """Note that `graph` is gone."""
        self._graphs.discard(graph)

    def fail(self) -> None:
        """Note that a recording failed here."""
        self._broken = True
