"""A recording that can be replayed: a prebuilt list of calls, grouped by the state of torch that they need."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter, length_hint
from typing import Literal

import attrs

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.dispatch_state import DispatchState
from tsgraph.backends.emulated.memory import EmulatedPool
from tsgraph.backends.emulated.nodes import Launch, Node, Run
from tsgraph.errors import ReplayFailed, TsgraphError

State = Literal["recording", "replayable", "failed", "released"]


class EmulatedGraph:
    """One recording. It holds strong references to every tensor that it touches, so that a replay is memory-safe.

    A CUDA graph holds addresses alone: there, an input that the user drops is gone. `release` drops these too.
    """

    def __init__(self, pool: EmulatedPool) -> None:
        self._pool = pool
        self._state: State = "recording"
        self._segments: tuple[_Segment, ...] = ()
        self._proved = False
        self._bytes = 0
        self._give_back: Callable[[], object] = int  # nothing to give back yet

    @property
    def bytes(self) -> int:
        """Bytes by which this recording grew its pool; 0 once it is released."""
        return self._bytes

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What was recorded, in order."""
        return tuple(node for segment in self._segments for node in segment.nodes)

    def finish(self, launches: Iterable[Launch], count: int) -> None:
        """End the recording well: these launches, and `count` bytes of the pool, are the graph."""
        self._segments = tuple(_Segment.of(state, group) for state, group in groupby(launches, attrgetter("state")))
        self._bytes = count
        self._give_back = weakref.finalize(self, self._pool.give_back, count)
        self._state = "replayable"

    def fail(self) -> None:
        """End the recording for good."""
        self._state = "failed"

    def replay(self) -> None:
        """Run what was recorded on the same storages, in order. No mode of the user's sees it.

        Raises: CaptureUnsupported inside a recording; ReplayFailed for a graph that is released or was never finished,
        and for an operation that fails, naming it and its line.
        """
        current.refuse_inside("a replay", "replay outside the recording, or record the inner step as part of the outer")
        if self._state != "replayable":
            raise ReplayFailed(f"this graph is {self._state}, so it cannot be replayed", hint="record it again")
        for segment in self._segments:
            segment.run(segment.runs if self._proved else segment.proofs)
        self._proved = True

    def release(self) -> None:
        """Drop what was recorded and give its bytes back to the pool. Twice is once.

        Raises: CaptureUnsupported inside a recording (fault K1).
        """
        current.refuse_inside("the release of a graph", "release graphs before or after the recording")
        self._give_back()
        self._state, self._segments, self._bytes = "released", (), 0


@attrs.frozen
class _Segment:
    """Launches in a row that run in the same state of torch."""

    state: DispatchState
    nodes: tuple[Node, ...]
    runs: tuple[Run, ...]
    proofs: tuple[Run, ...]

    @classmethod
    def of(cls, state: DispatchState, launches: Iterable[Launch]) -> _Segment:
        """The segment of these launches, at least one."""
        nodes, runs, proofs = zip(*((each.node, each.run, each.prove) for each in launches), strict=True)
        return cls(state, nodes, runs, proofs)

    def run(self, runs: Sequence[Run]) -> None:
        """Make the calls. Raises: ReplayFailed, naming the operation and its line."""
        left = iter(runs)
        try:
            with self.state.entered():
                for run in left:
                    run()
        except TsgraphError:
            raise
        except Exception as error:
            node = self.nodes[len(runs) - length_hint(left) - 1]
            raise ReplayFailed(f"{node}: {error}", operation=node.operator, line=node.line) from error
