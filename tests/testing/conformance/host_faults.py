"""Backends with one fault each in what they do with host functions."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import attrs

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.turns import HostFunction, Turn, Turns
from tsgraph.errors import HostFunctionFailed

Function = Callable[[], object]


def nothing() -> None:
    """A function that does nothing."""


class RunsWhileRecording(EmulatedBackend):
    def host_function(self, function: Function, *, on_error: Function | None = None) -> None:
        if self._recording is not None:
            function()
        super().host_function(function, on_error=on_error)


@attrs.define(eq=False)
class Late:
    """A graph that calls its host functions when all else is done."""

    graph: Any
    functions: list[Function]

    def replay(self) -> None:
        self.graph.replay()
        for function in self.functions:
            function()


class RunsLate(EmulatedBackend):
    functions: Any = ()

    def host_function(self, function: Function, *, on_error: Function | None = None) -> None:
        self.functions.append(function)

    @contextmanager
    def _record(self, pool: Any) -> Iterator[Any]:
        self.functions = []
        with super()._record(pool) as graph:
            yield Late(graph, self.functions)


class RunsTwice(EmulatedBackend):
    def host_function(self, function: Function, *, on_error: Function | None = None) -> None:
        super().host_function(function, on_error=on_error)
        super().host_function(function, on_error=on_error)


class StopsAtErrors(EmulatedBackend):
    broken = False

    def host_function(self, function: Function, *, on_error: Function | None = None) -> None:
        super().host_function(lambda: self.call(function), on_error=on_error)

    def call(self, function: Function) -> None:
        if self.broken:
            return
        self.broken = True
        function()
        self.broken = False


class FailsOpen(EmulatedBackend):
    def host_function(self, function: Function, *, on_error: Function | None = None) -> None:
        super().host_function(function)


class AlwaysFailsClosed(EmulatedBackend):
    def host_function(self, function: Function, *, on_error: Function | None = None) -> None:
        super().host_function(function, on_error=on_error)
        super().host_function(on_error or nothing)


class MarksTellNothing(EmulatedBackend):
    def ready(self) -> Any:
        mark: Any = super().ready()
        return attrs.evolve(mark, claim=None)


@attrs.define(eq=False)
class OnceMark:
    """A mark that tells once."""

    mark: Any

    def wait(self) -> None:
        try:
            self.mark.wait()
        finally:
            self.mark = attrs.evolve(self.mark, claim=None)

    def done(self) -> bool:
        return bool(self.mark.done())


class MarksTellOnce(EmulatedBackend):
    def ready(self) -> Any:
        return OnceMark(super().ready())


@attrs.define(eq=False)
class EagerMark(OnceMark):
    """A mark that tells whatever there is to tell."""

    turns: Any

    def wait(self) -> None:
        self.turns.tell_all()


class MarksTellAll(EmulatedBackend):
    def ready(self) -> Any:
        return EagerMark(super().ready(), self._turns)


class HasOneMark(EmulatedBackend):
    mark: Any = None

    def ready(self) -> Any:
        self.mark = self.mark or super().ready()
        return self.mark


class Silent(Turns):
    def begin(self, functions: Sequence[HostFunction]) -> Turn | None:
        return self.add(functions) if functions else None


class ReplaysTellNothing(EmulatedBackend):
    def __init__(self) -> None:
        super().__init__()
        self._turns = Silent()


class Talkative(Turns):
    def begin(self, functions: Sequence[HostFunction]) -> Turn | None:
        self.tell_all()
        return super().begin(functions)


class ReplaysTellAll(EmulatedBackend):
    def __init__(self) -> None:
        super().__init__()
        self._turns = Talkative()


class SynchronizesSilently(EmulatedBackend):
    def synchronize(self) -> None:
        with suppress(HostFunctionFailed):
            super().synchronize()


class ForbidsNothing(EmulatedBackend):
    def host_function(self, function: Function, *, on_error: Function | None = None) -> None:
        super().host_function(lambda: self.elsewhere(function), on_error=on_error)

    def elsewhere(self, function: Function) -> None:
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()


class KeepsForEver(EmulatedBackend):
    kept: Any = ()

    def host_function(self, function: Function, *, on_error: Function | None = None) -> None:
        self.kept = (*self.kept, function)
        super().host_function(function, on_error=on_error)


class KeepsNothing(EmulatedBackend):
    def host_function(self, function: Function, *, on_error: Function | None = None) -> None:
        alive = weakref.ref(function)
        super().host_function(lambda: (alive() or nothing)(), on_error=on_error)  # noqa: PLW0108 - asked when called


HOST_FAULTS: dict[str, Any] = {
    "host_functions_run_at_replays": RunsWhileRecording,
    "host_functions_run_in_order": RunsLate,
    "host_functions_run_once_alone": RunsTwice,
    "host_errors_stop_nothing": StopsAtErrors,
    "host_errors_fail_closed": FailsOpen,
    "wait_tells_host_errors": MarksTellNothing,
    "wait_tells_host_errors_again": MarksTellOnce,
    "wait_spares_earlier_steps": MarksTellAll,
    "host_errors_are_told_once": HasOneMark,
    "replay_tells_host_errors": ReplaysTellNothing,
    "replay_leaves_errors_to_marks": ReplaysTellAll,
    "synchronize_tells_host_errors": SynchronizesSilently,
    "host_functions_may_not_call": ForbidsNothing,
    "host_functions_live_as_long": KeepsForEver,
}
MORE_HOST_FAULTS: list[tuple[str, Any]] = [
    ("host_errors_fail_closed", AlwaysFailsClosed),
    ("host_functions_live_as_long", KeepsNothing),
]
