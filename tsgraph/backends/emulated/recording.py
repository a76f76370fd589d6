"""A recording under way: the two layers, the memory it takes, and everything put back as it was on every exit."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import attrs
import torch

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.aliases import Aliases
from tsgraph.backends.emulated.current import Capture, ErrorMode
from tsgraph.backends.emulated.functions import FunctionMode
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.backends.emulated.memory import EmulatedPool
from tsgraph.backends.emulated.nodes import Launch
from tsgraph.backends.emulated.operations import OperationMode
from tsgraph.backends.emulated.refusal import refuse
from tsgraph.backends.emulated.residence import Residence
from tsgraph.backends.emulated.stance import STANCE
from tsgraph.backends.emulated.streams import Stream, current_stream, default_stream
from tsgraph.backends.turns import Turns
from tsgraph.errors import CaptureUnsupported, NotEmulated

UNJOINED = "cudaErrorStreamCaptureUnjoined"


class Recording:
    """Takes memory from `pool` for what a step makes, and makes `graph` of what the step does.

    `checked`: a wait that is missing between streams is an error at the end. `mode` says what is forbidden meanwhile to
    which threads, in CUDA's words. `turns` is the ledger of a backend's host functions.
    """

    def __init__(
        self,
        residence: Residence,
        pool: EmulatedPool,
        *,
        checked: bool = True,
        mode: ErrorMode = "global",
        turns: Turns | None = None,
    ) -> None:
        self.graph = EmulatedGraph(pool, checked=checked, turns=turns)
        self._residence = residence
        self._pool = pool
        self._checked = checked
        self._mode: ErrorMode = mode
        self._segments: frozenset[int] = frozenset()  # of the pool, before
        self._aliases = Aliases(residence.holds)
        self._functions = FunctionMode(residence)
        allocate = partial(_allocate, pool, residence, self._aliases)
        self._operations = _Operations(self._functions, allocate, self._aliases)
        self._capture: Capture | None = None
        self.broken = False  # whether CUDA could not end it: torch then leaves its pool open
        self._exits = ExitStack()

    @contextmanager
    def run(self) -> Iterator[EmulatedGraph]:
        """Record the block on the current stream. Raises what `begin` and `end` raise."""
        self.begin()
        try:
            yield self.graph
        except BaseException:
            self.abort()
            raise
        try:
            self.end()
        finally:
            self.abort()

    def begin(self) -> None:
        """Record what this thread puts on its current stream, and on those that join it, from now on.

        This thread may be recording on another stream: that recording goes on when this one has ended.

        Raises: CaptureUnsupported on the default stream, on a stream that is being recorded, and in a host function.
        """
        origin = current_stream()
        current.refuse_in_host_function("a recording")
        _check_origin(origin)
        capture = Capture(origin, self._mode, self._operations.launches)
        with ExitStack() as exits:
            for context in (current.capturing(capture), _torch_as_it_was(), self._operations, self._functions):
                exits.enter_context(context)
            self._segments = self._pool.enter(self.graph)
            self._exits = exits.pop_all()
        self._capture = self._operations.capture = capture

    def end(self) -> None:
        """End the recording: `graph` can be replayed.

        Raises: CaptureUnsupported in another thread or on another stream than it began, and it goes on; with work on
        streams that were not joined back, after an operation that CUDA refuses, where another recording forbids it,
        and (checked) where a wait is missing between streams, and it has failed. NotEmulated while this thread records
        another graph that began later.
        """
        capture = self._capture
        if capture is None:
            raise refuse("the end of a recording", "none is in progress", "begin one first")
        _check_place(capture)
        self._leave()
        try:
            self.broken = True
            _check_whole(capture)
            self.broken = False
            current.refuse_unsafe("the end of a recording", "record one graph after the other")  # CUDA instantiates it
            if self._checked:
                _check_order(capture)
        except BaseException:
            self._fail()
            raise
        self.graph.finish(_on_lanes(capture), self._aliases.end(), self._pool.settle(self._segments))
        self._forget()

    def abort(self) -> None:
        """End the recording without a graph, and give back what it took; nothing if it is over.

        Raises: CaptureUnsupported in another thread than it began, and it goes on.
        """
        if self._capture is not None:
            _check_thread(self._capture)
            self._leave()
            self._fail()

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not, or never began."""
        return self._capture is None

    def _leave(self) -> None:
        self._capture = None
        self._exits.close()

    def _fail(self) -> None:
        self.graph.fail()
        self._residence.forget(lease.key for lease in self._aliases.own if not lease.gone())
        self._forget()
        self._aliases.end().drop()
        self._pool.fail(self.graph, self._segments)

    def _forget(self) -> None:
        """Events keep the capture: what it held would outlive the graph."""
        self._operations.launches.clear()


class _Operations(OperationMode):
    """Lets another recording that this thread makes meanwhile, above this one, do its work unseen."""

    capture: Capture | None = None

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Record the operation, run it at once, or refuse it."""
        if current.of_thread() is not self.capture:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _allocate(pool: EmulatedPool, residence: Residence, aliases: Aliases, like: torch.Tensor) -> torch.Tensor:
    """Not a method: `Recording` in a reference cycle would keep its graph alive."""
    tensor = pool.allocate(like.shape, like.stride(), like.dtype, current_stream().stream_id)
    residence.add(tensor)
    aliases.take(tensor)
    return tensor


def _check_origin(origin: Stream) -> None:
    if origin is default_stream():
        why = "a capture must be made on a non-default stream"
        raise refuse("a recording", why, "enter a side stream first; replays may run on the default one")
    if origin.capture is not None:
        why = f"{origin} takes part in a recording already"
        raise refuse("a recording", why, "record on a stream of its own", cuda="cudaErrorIllegalState")


def _check_thread(capture: Capture) -> None:
    if capture.thread != threading.get_ident():
        why, error = "a recording ends in the thread in which it began", "cudaErrorStreamCaptureWrongThread"
        raise refuse("the end of a recording", why, "end it there", cuda=error)
    if current.of_thread() is not capture:
        why = "this thread records another graph, which began later, and recordings end in the reverse order here"
        raise NotEmulated(why, hint="end the inner recording first")


def _check_place(capture: Capture) -> None:
    _check_thread(capture)
    if current_stream() is not capture.origin:
        why = f"a recording ends on the stream on which it began: {capture.origin}, not {current_stream()}"
        raise refuse("the end of a recording", why, "leave the other stream first")


def _check_whole(capture: Capture) -> None:
    capture.refuse_if_invalid("the end of a recording")
    loose = capture.timeline.loose_end(0)
    if loose is not None:
        why = f"{capture.origin} never waited for {loose.stream}, on which this was the last to be recorded"
        hint = f"make {capture.origin} wait for {loose.stream} before the recording ends"
        facts = {"operation": loose.operation, "line": loose.line, "stream": loose.stream}
        raise CaptureUnsupported(f"{loose.operation} at {loose.line}: {why}", hint=hint, cuda=UNJOINED, **facts)


def _check_order(capture: Capture) -> None:
    race = capture.timeline.race()
    if race is not None:
        facts = {"operation": race.second.operation, "line": race.second.line, "first": str(race.first)}
        raise CaptureUnsupported(f"a wait is missing: {race}", hint=race.fix, **facts)


def _on_lanes(capture: Capture) -> list[Launch]:
    """The launches, each with the number of its stream where there are several."""
    if capture.timeline.lanes < 2:
        return capture.launches
    return [attrs.evolve(each, node=attrs.evolve(each.node, stream=each.node.stream or 0)) for each in capture.launches]


@contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Run the block with compilation off, and without a trace in the random numbers or in autocast's cache.

    A compiled callable would run its kernels unseen; forced to be eager, it is recorded like any other function. A cast
    that autocast kept from before would be a host tensor here; one kept from here would be read before any replay.
    """
    numbers = torch.get_rng_state()
    torch.clear_autocast_cache()
    try:
        with STANCE.eager():
            yield
    finally:
        torch.clear_autocast_cache()
        torch.set_rng_state(numbers)
