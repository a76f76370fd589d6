"""A recording that can be replayed: a prebuilt list of calls, grouped by the state of torch that they need."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, length_hint
from typing import Any, Literal

import attrs

from tsgraph.backends.emulated import current, graph_views
from tsgraph.backends.emulated.aliases import Holdings
from tsgraph.backends.emulated.dispatch_state import DispatchState
from tsgraph.backends.emulated.memory import EmulatedPool
from tsgraph.backends.emulated.nodes import Launch, Run
from tsgraph.backends.emulated.refusal import refuse
from tsgraph.backends.emulated.streams import is_current_stream_capturing
from tsgraph.backends.emulated.trace import Node
from tsgraph.backends.stager import Feed
from tsgraph.backends.turns import HostFunction, Turns, land
from tsgraph.errors import ReplayFailed, TsgraphError
from tsgraph.protocols.backend import GraphNode, Reached

State = Literal["recording", "replayable", "failed", "released"]


class EmulatedGraph:
    """One recording. Like a CUDA graph it owns none of the memory that it works on.

    It keeps the bytes mapped, so that a replay is memory-safe whatever the user has dropped. `checked`: a replay that
    would use what he has dropped is an error; otherwise it finds poison there. `functions` are the host functions in
    it, and `turns` where its backend keeps what they raise. `feed`: of its staging node, if it has one.
    """

    def __init__(self, pool: EmulatedPool, *, checked: bool = True, turns: Turns | None = None) -> None:
        self.functions: list[HostFunction] = []
        self.feed: Feed | None = None
        self._turns = turns or Turns()
        self._pool = pool
        self._checked = checked
        self._state: State = "recording"
        self._segments: tuple[_Segment, ...] = ()
        self._proved = False
        self._holdings = Holdings()
        self._bytes = self._high_water = 0

    @property
    def bytes(self) -> int:
        """Bytes by which this recording grew its pool; 0 once it is released."""
        return self._bytes

    @property
    def high_water(self) -> int:
        """The most bytes of the pool's blocks that were in use at once while this was recorded."""
        return self._high_water

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What was recorded, in order."""
        return tuple(node for segment in self._segments for node in segment.nodes)

    @property
    def listing(self) -> tuple[GraphNode, ...]:
        """The same as far as a device would tell it."""
        return tuple(node.told() for node in self.nodes)

    @property
    def reach(self) -> Mapping[int, Reached]:
        """The storages of the device outside of its pool that its operations use, by address, in order of first use."""
        used = [each for each in self._holdings.inputs if each.on_device and not self._pool.holds(each.address)]
        return {each.address: Reached(each.operator, each.bytes) for each in used}

    def table(self, width: int = 120) -> str:
        """What was recorded as a table: operators, what they read and write, and the lines of the step.

        An operand starts with its storage: E for external memory, P for the pool's, H for the host's, and a number.
        """
        return graph_views.graph_table(self.nodes, width)

    def to_mermaid(self, limit: int = graph_views.DRAWN_NODES) -> str:
        """The flow of data as a Mermaid chart. Raises: CallerError for more than `limit` nodes: use `table`."""
        return graph_views.graph_mermaid(self.nodes, limit)

    def describe(self) -> dict[str, Any]:
        """What was recorded as plain JSON data: `nodes`, `storages` and the `bytes` by which its pool grew."""
        return graph_views.describe_graph(self.nodes, self._bytes)

    def finish(self, launches: Iterable[Launch], holdings: Holdings, taken: tuple[int, int]) -> None:
        """End the recording well: these launches are the graph. `taken`: by how much the pool grew, and its peak."""
        self._segments = tuple(_Segment.of(state, group) for state, group in groupby(launches, attrgetter("state")))
        self._bytes, self._high_water = taken
        self._holdings = holdings
        weakref.finalize(self, holdings.drop).atexit = False
        self._state = "replayable"

    def fail(self) -> None:
        """End the recording for good."""
        self._state = "failed"
        self.functions.clear()
        self.feed = None

    def replay(self) -> None:
        """Run what was recorded on the same storages, in order. No mode of the user's sees it.

        Raises: CaptureUnsupported inside a recording; ReplayFailed for a graph that is released or was never finished,
        (checked) for an input that the user has dropped, and for an operation that fails, naming it and its line;
        HostFunctionFailed, with nothing run, for host functions of earlier work that no living mark covers.
        """
        _refuse_recorded()
        if self._state != "replayable":
            raise ReplayFailed(f"this graph is {self._state}, so it cannot be replayed", hint="record it again")
        self._holdings.check(checked=self._checked)
        if self.feed is not None:
            self.feed.offer()
        turn = self._turns.begin(self.functions)
        try:
            for segment in self._segments:
                segment.run(segment.runs if self._proved else segment.proofs)
        except BaseException as error:
            if turn is not None:
                self._turns.cancel(turn, error)
            raise
        finally:
            if self.feed is not None:
                self.feed.recount()
        self._proved = True
        land()

    def release(self) -> None:
        """Drop what was recorded and give its bytes back to the pool. Twice is once.

        Raises: CaptureUnsupported inside a recording (fault K1).
        """
        current.refuse_unsafe("the release of a graph", "release graphs before or after the recording")
        self.drop()

    def drop(self) -> None:
        """Release it, whatever is recorded meanwhile."""
        self._state, self._segments, self._bytes = "released", (), 0
        self.functions.clear()
        self.feed = None
        self._holdings.drop()
        self._pool.leave(self)


def _refuse_recorded() -> None:
    current.refuse_in_host_function("a replay")
    if is_current_stream_capturing():
        hint = "replay outside the recording, or record the inner step as part of the outer"
        raise refuse("a replay", "not inside a recording", hint)


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
