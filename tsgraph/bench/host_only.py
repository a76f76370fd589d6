"""A device that does nothing: what is left of a call is the host's own work, which is the same on any machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import attrs

from tsgraph.backends.cuda import CudaGraph
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.staging import EmulatedKernel
from tsgraph.backends.stager import Load, Stager
from tsgraph.backends.trays import Layout
from tsgraph.protocols.backend import Graph, Lane, Pool


class HostOnlyBackend(EmulatedBackend):
    """Records as the emulated device does, and is called as CUDA is; but nothing is launched.

    Replays are those of the CUDA backend around a graph that only says that it took its tray. Static buffers and
    outputs then hold what they held: it is for timing.
    """

    @contextmanager
    def _record(self, pool: Any) -> Iterator[Any]:
        nothing = _Nothing()
        quick = _Quick(pool, self._turns, graph=nothing)  # type: ignore[arg-type]
        with super()._record(pool) as recorded:
            yield quick
        nothing.recorded = recorded
        quick.feed, quick.bytes = recorded.feed, recorded.bytes

    def record(self, pool: Pool, *, reach: bool = False) -> Any:  # noqa: ARG002 - a backend's signature
        """Record the block into a graph of `pool`, which replays as a CUDA graph that holds nothing."""
        return self._record(pool)

    def stager(self, lanes: Sequence[Lane], rows: int, *, reads: Literal["ring", "landing"] = "ring") -> Stager:
        """Packs rows as ever, and moves none."""
        return Stager(lanes, rows, self, _Counting(), lambda: self._recording, reads)


class _Counting(EmulatedKernel):
    hidden = False  # host and device look alike here, and nobody may ask which is which: on a GPU nobody has to

    def prepare(self, stager: Stager, load: Load) -> Callable[[], None]:
        """What counts the tray that a launch was told of, if any."""
        return lambda: _count(stager) if load.packed else None

    def take_now(self, stager: Stager, layout: Layout) -> None:  # noqa: ARG002 - a kernel's signature
        """Count the tray that comes next."""
        _count(stager)


def _count(stager: Stager) -> None:
    """Say that the tray which comes next was taken, where the device says it: the first word of the ring."""
    ring = stager.ring
    ring._words[0] = ring.number  # noqa: SLF001 - what a device writes


@attrs.define(eq=False)
class _Nothing:
    """In the place of torch's own graph."""

    recorded: Any = None

    def replay(self) -> None:
        """Take the tray, if the graph has a node for it."""
        if self.recorded is not None and self.recorded.feed is not None:
            _count(self.recorded.feed.stager)


class _Quick(CudaGraph):
    def release(self) -> None:
        """Give back what was recorded."""
        kept: Graph | None = self.graph.recorded  # type: ignore[attr-defined]
        if kept is not None:
            kept.release()
