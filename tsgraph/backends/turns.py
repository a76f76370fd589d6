"""What host functions did, and who is told of their errors: the one law of all backends.

A *turn* is one replay of a graph that has host functions, or one host function on a stream alone. The device calls the
functions of a turn in its own time and threads. What they raise is kept, and raised once: by the claim that a mark has
on the turn (again and again, like the result of a future), by a later mark's claim, by the next replay if no living
mark has a claim, or by a synchronisation. What threads share are deques, whose steps are atomic; there is no lock that
a finaliser could meet.
"""

from __future__ import annotations

import functools
import textwrap
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import attrs

from tsgraph.backends.blame import user_line
from tsgraph.errors import HostFunctionFailed

HINT = "correct the function; what came after it has run, and the graph can be replayed again"


@attrs.frozen(eq=False)
class Failure:
    """What a host function raised: its `name`, the `line` that put it on its stream, and the `traceback` as text.

    The `error` itself has none: its frames would keep whatever they and their callers hold.
    """

    name: str
    line: str
    error: BaseException
    traceback: str

    def __str__(self) -> str:
        return f"host function {self.name} at {self.line}: {type(self.error).__name__}: {self.error}"


@attrs.define(eq=False)
class Turn:
    """One replay, or one function alone. `claim` is that of the mark made next, as long as somebody has the mark."""

    number: int
    functions: tuple[HostFunction, ...]
    left: deque[object] = attrs.field(init=False)
    failures: deque[Failure] = attrs.field(factory=deque, init=False)
    claim: Callable[[], Claim | None] = attrs.field(default=lambda: None, init=False)

    @left.default
    def _all_of_them(self) -> deque[object]:
        return deque(self.functions)

    @property
    def over(self) -> bool:
        """Whether all of its functions have run."""
        return not self.left

    def drop(self) -> None:
        """End it, whatever has run: no function waits for it any more."""
        for function in self.functions:
            with suppress(ValueError):
                function.turns.remove(self)
        self.left.clear()


@attrs.define(eq=False, weakref_slot=True)
class HostFunction:
    """A function that the device calls, and what is done if it raises. `turns` are those that wait for it, in order."""

    ledger: Turns
    function: Callable[[], object]
    on_error: Callable[[], object] | None = None
    name: str = attrs.field(init=False)
    line: str = attrs.field(factory=user_line, init=False)
    turns: deque[Turn] = attrs.field(factory=deque, init=False)

    @name.default
    def _qualified(self) -> str:
        function: Any = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return getattr(function, "__qualname__", None) or type(function).__qualname__

    def __call__(self) -> BaseException | None:
        """Run it, for the turn that has waited longest. Raises nothing: returns what it raised, which the turn has.

        Where none waits, somebody has launched the graph past its backend: that is a turn, too.
        """
        turn = self.turns[0] if self.turns else self.ledger.add((self,))
        error = self._attempt(self.function, turn)
        if error is not None and self.on_error is not None:
            self._attempt(self.on_error, turn)
        self.turns.popleft()
        turn.left.pop()
        return error

    def _attempt(self, call: Callable[[], object], turn: Turn) -> BaseException | None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - nothing may leave it: its caller is the device
            text = _traceback_of(error)
            turn.failures.append(Failure(self.name, self.line, _without_frames(error), text))
            return error
        return None


def _traceback_of(error: BaseException) -> str:
    """As text, from the function on: without the frame that called it."""
    trace = error.__traceback__ and error.__traceback__.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _without_frames(error: BaseException) -> BaseException:
    chained: BaseException | None
    for chained in (error.__cause__, error.__context__):
        if chained is not None and chained.__traceback__ is not None:
            _without_frames(chained)
    return error.with_traceback(None)


_FLYING: deque[Turn] = deque()  # keeps functions until they have run, also where their graph and backend are gone


def land() -> bool:
    """Let go of functions that have run, in this thread: finalisers must not run in the device's. Whether all have."""
    while True:
        try:
            turn = _FLYING.popleft()
        except IndexError:
            return True
        if not turn.over:
            _FLYING.appendleft(turn)
            return False
        turn.functions = ()


class Turns:
    """The turns of one backend. `open`: those that may have something to tell, the oldest first."""

    def __init__(self) -> None:
        self.open: deque[Turn] = deque()
        self._numbers = count(1)

    def begin(self, functions: Sequence[HostFunction]) -> Turn | None:
        """A new turn, just before its functions are handed to the device. None if there are none.

        Raises: HostFunctionFailed for earlier turns that no mark has a claim on; no turn is begun.
        """
        if self.open:
            self.tell(lambda turn: turn.claim() is None)
        return self.add(functions) if functions else None

    def add(self, functions: Sequence[HostFunction]) -> Turn:
        """The same without a look at earlier turns."""
        turn = Turn(next(self._numbers), tuple(functions))
        self.open.append(turn)
        _FLYING.append(turn)
        for function in turn.functions:
            function.turns.append(turn)
        return turn

    def cancel(self, turn: Turn, error: BaseException) -> None:
        """End a turn that the device did not take, or gave up with `error`, which has what was raised till then."""
        turn.drop()
        land()
        with suppress(ValueError):
            self.open.remove(turn)
        note(error, turn.failures)

    def claim(self) -> Claim | None:
        """What a mark that is made now has to tell. None if it is nothing."""
        if not self.open:
            return None
        mine = tuple(turn for turn in tuple(self.open) if turn.claim() is None)
        claim = Claim(self, mine, self.open[-1].number)
        for turn in mine:
            turn.claim = weakref.ref(claim)
        return claim

    def tell(self, chosen: Callable[[Turn], bool]) -> None:
        """Raise what the `chosen` turns that are over have to tell.

        Raises: HostFunctionFailed.
        """
        failures = self.take(chosen)
        if failures:
            raise report(failures) from failures[0].error

    def tell_all(self) -> None:
        """The same of all turns. Raises: HostFunctionFailed."""
        self.tell(lambda _: True)

    def take(self, chosen: Callable[[Turn], bool]) -> list[Failure]:
        """The same as a list: they are told now. Turns that went well are forgotten."""
        land()
        taken: list[Failure] = []
        for _ in range(len(self.open)):
            turn = self.open.popleft()
            if turn.over and (not turn.failures or chosen(turn)):
                taken += turn.failures
            else:
                self.open.append(turn)
        return taken


@attrs.frozen(eq=False, weakref_slot=True)
class Claim:
    """What a mark tells when it is waited for: always of its own turns; of older ones, up to `last`, what is not told.

    Its own are those since the mark before it, and those whose marks nobody has any more.
    """

    ledger: Turns
    turns: tuple[Turn, ...]
    last: int

    def tell(self) -> None:
        """Called when all that was queued before the mark is done.

        Raises: HostFunctionFailed.
        """
        older = self.ledger.take(lambda turn: turn.number <= self.last)
        failures = [failure for turn in self.turns if turn.over for failure in turn.failures]
        failures += [failure for failure in older if failure not in failures]
        for turn in self.turns:
            if not turn.over:  # on a stream that the mark's never waited for
                turn.claim = lambda: None
        if failures:
            raise report(failures) from failures[0].error


def report(failures: Sequence[Failure]) -> HostFunctionFailed:
    """The error to raise from the first of `failures`, with its traceback; the others are in the notes."""
    first = failures[0]
    facts = {"function": first.name, "line": first.line, "traceback": first.traceback}
    error = HostFunctionFailed(f"{first}\n{textwrap.indent(first.traceback, '  ')}", hint=HINT, **facts)
    note(error, list(failures)[1:])
    return error


def note(error: BaseException, failures: Sequence[Failure] | deque[Failure]) -> None:
    """Tell `failures` beside `error`, which is raised."""
    for failure in failures:
        error.add_note(f"also {failure}")
