"""The ledger of host functions: whose error it is, who is told, and when functions are let go of."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from tsgraph.backends import turns as turns_module
from tsgraph.backends.turns import HostFunction, Turn, Turns, land
from tsgraph.errors import HostFunctionFailed


@pytest.fixture
def turns() -> Iterator[Turns]:
    """An empty ledger; what a test leaves under way is forgotten."""
    turns_module._FLYING.clear()
    yield Turns()
    turns_module._FLYING.clear()


def fails(why: object = "planted") -> None:
    """A host function that raises."""
    raise ValueError(why)


def begun(turns: Turns, *functions: HostFunction) -> Turn:
    """A turn of these functions."""
    turn = turns.begin(functions)
    assert turn is not None
    return turn


def raised(turns: Turns) -> str:
    """The first line of what there is to tell."""
    with pytest.raises(HostFunctionFailed) as caught:
        turns.tell_all()
    return str(caught.value).partition("\n")[0]


class TestHostFunction:
    def test_is_called_for_the_turn_that_waited_longest(self, turns: Turns) -> None:
        """The first call of a graph's function belongs to its first replay, whenever that comes."""
        why = [1, 2]
        function = HostFunction(turns, lambda: fails(why.pop(0)))
        first, second = begun(turns, function), begun(turns, function)
        function()
        assert (True, False) == (first.over, second.over)
        function()
        assert [["1"], ["2"]] == [[str(failure.error) for failure in turn.failures] for turn in (first, second)]

    @pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
    def test_raises_nothing(self, turns: Turns, error: type[BaseException]) -> None:
        """Its caller is the device, which can do nothing with an exception: it is returned, and the turn has it."""

        def function() -> None:
            raise error

        called = HostFunction(turns, function)
        begun(turns, called)
        assert error is type(called())
        assert error.__name__ in raised(turns)

    def test_both_errors_are_told_if_on_error_fails(self, turns: Turns) -> None:
        """The function's first, that of `on_error` in a note."""
        function = HostFunction(turns, partial(fails, "first"), partial(fails, "second"))
        begun(turns, function)
        function()
        with pytest.raises(HostFunctionFailed, match="first") as caught:
            turns.tell_all()
        assert ["second"] == [line.rpartition(": ")[2] for line in caught.value.__notes__]

    def test_has_a_name_and_a_line(self, turns: Turns) -> None:
        """Also as a partial of a partial, and as an object that can be called."""

        class Callable:
            def __call__(self) -> None: ...

        named = [HostFunction(turns, each).name for each in (fails, partial(partial(fails, 1)), Callable(), print)]
        assert ["fails", "fails", f"{type(self).__name__}.{self.test_has_a_name_and_a_line.__name__}"] == [
            *named[:2],
            named[2].partition(".<locals>")[0],
        ]
        assert "print" == named[3]
        assert "test_turns.py:" in HostFunction(turns, fails).line

    def test_a_graph_launched_past_its_backend_is_told_of(self, turns: Turns) -> None:
        """No turn waits, yet the function is called: its error is not lost."""
        HostFunction(turns, fails)()
        assert "planted" in raised(turns)

    def test_its_error_keeps_no_turn(self, turns: Turns) -> None:
        """Frames would make a cycle, and keep what they and their callers hold, those of chained errors included."""

        def chains() -> None:
            try:
                fails()
            except ValueError as error:
                raise TypeError("chained") from error

        function = HostFunction(turns, chains)
        turn = begun(turns, function)
        function()
        alive = weakref.ref(function)
        gc.disable()
        try:
            turns.take(lambda _: True)
            del function, turn
            assert alive() is None
        finally:
            gc.enable()


class TestTelling:
    def test_the_error_has_the_facts(self, turns: Turns) -> None:
        """Name, line and traceback as text, the error chained, what to do; and it can be pickled, as any."""
        function = HostFunction(turns, fails)
        begun(turns, function)
        function()
        with pytest.raises(HostFunctionFailed, match=r"host function fails at \S+: ValueError: planted") as caught:
            turns.tell_all()
        assert isinstance(caught.value.__cause__, ValueError)
        assert {"function": "fails", "line": function.line} == {
            name: caught.value.context[name] for name in ("function", "line")
        }
        assert "in fails" in caught.value.context["traceback"]
        assert "in fails" in str(caught.value)

    def test_all_are_told_and_once(self, turns: Turns) -> None:
        """The first is raised, the others are notes; then there is nothing to tell."""
        functions = [HostFunction(turns, partial(fails, number)) for number in range(3)]
        begun(turns, *functions)
        for function in functions:
            function()
        with pytest.raises(HostFunctionFailed, match="ValueError: 0") as caught:
            turns.tell_all()
        assert ["1", "2"] == [line.rpartition(": ")[2] for line in caught.value.__notes__]
        turns.tell_all()

    def test_a_turn_under_way_has_nothing_to_tell_yet(self, turns: Turns) -> None:
        """Its other functions may be running; it tells when it is over."""
        first, second = HostFunction(turns, fails), HostFunction(turns, gc.isenabled)
        begun(turns, first, second)
        first()
        turns.tell_all()
        second()
        assert "planted" in raised(turns)

    def test_a_turn_that_went_well_is_forgotten(self, turns: Turns) -> None:
        """The ledger does not grow with replays."""
        function = HostFunction(turns, gc.isenabled)
        for _ in range(100):
            begun(turns, function)
            function()
        assert len(turns.open) <= 2

    def test_a_beginning_tells_what_no_mark_will(self, turns: Turns) -> None:
        """And nothing is begun; with a living mark it is left to that."""
        function = HostFunction(turns, fails)
        begun(turns, function)
        claim = turns.claim()
        function()
        begun(turns, function)
        function()
        with pytest.raises(HostFunctionFailed) as caught:
            turns.begin([function])
        assert (0, False) == (len(function.turns), hasattr(caught.value, "__notes__"))
        assert claim is not None
        with pytest.raises(HostFunctionFailed):
            claim.tell()

    def test_a_mark_that_is_dropped_gives_its_claim_back(self, turns: Turns) -> None:
        """An engine that does not look at `ready` learns at its next step."""
        function = HostFunction(turns, fails)
        begun(turns, function)
        turns.claim()
        function()
        with pytest.raises(HostFunctionFailed):
            turns.begin([])

    def test_there_is_no_claim_without_a_turn(self, turns: Turns) -> None:
        """Marks of steps without host functions cost nothing."""
        assert turns.claim() is None


class TestClaims:
    def test_a_claim_tells_its_own_whenever_asked(self, turns: Turns) -> None:
        """Like the result of a future, and in a new error each time."""
        function = HostFunction(turns, fails)
        begun(turns, function)
        claim = turns.claim()
        function()
        assert claim is not None
        for _ in range(3):
            with pytest.raises(HostFunctionFailed, match="planted") as caught:
                claim.tell()
            assert not hasattr(caught.value, "__notes__")
        turns.tell_all()

    def test_a_later_claim_tells_what_was_not(self, turns: Turns) -> None:
        """Whoever waits for the second step alone learns of the first; who asks the first learns it all the same."""
        function = HostFunction(turns, fails)
        begun(turns, function)
        first = turns.claim()
        function()
        second = turns.claim()
        assert first is not None
        assert second is not None
        for claim in (second, first):
            with pytest.raises(HostFunctionFailed):
                claim.tell()
        second.tell()

    def test_an_earlier_claim_does_not_tell_what_came_later(self, turns: Turns) -> None:
        """The step before the one that failed is good."""
        good, bad = HostFunction(turns, gc.isenabled), HostFunction(turns, fails)
        begun(turns, good)
        claim = turns.claim()
        good()
        begun(turns, bad)
        bad()
        assert claim is not None
        claim.tell()
        assert "planted" in raised(turns)

    def test_work_that_the_mark_did_not_wait_for_is_given_back(self, turns: Turns) -> None:
        """On another stream, it may end later: then the next replay tells."""
        function = HostFunction(turns, fails)
        begun(turns, function)
        claim = turns.claim()
        assert claim is not None
        claim.tell()
        function()
        with pytest.raises(HostFunctionFailed):
            turns.begin([])


class TestLifetime:
    def test_a_cancelled_turn_is_as_if_it_had_never_been(self, turns: Turns) -> None:
        """The device did not take it: the function's next call belongs to the next turn. What was raised is noted."""
        first, second, error = HostFunction(turns, fails), HostFunction(turns, fails), RuntimeError("no launch")
        turn = begun(turns, first, second)
        first()
        turns.cancel(turn, error)
        assert (["also"], 0, 0) == ([note[:4] for note in error.__notes__], len(first.turns), len(second.turns))
        turns.tell_all()

    def test_functions_under_way_outlive_graph_and_ledger(self, turns: Turns) -> None:
        """Nothing that the device may still call is freed; once it has run, it is, at the next look."""
        function = HostFunction(turns, gc.isenabled)
        begun(Turns(), function)
        alive = weakref.ref(function)
        call = function.__call__
        del function
        gc.collect()
        call()
        del call
        assert (True, None) == (land(), alive())

    def test_functions_are_let_go_of_in_the_order_of_their_turns(self, turns: Turns) -> None:
        """One that is not over keeps those after it, until it is."""
        first, second = HostFunction(turns, gc.isenabled), HostFunction(turns, gc.isenabled)
        begun(turns, first)
        late = begun(turns, second)
        second()
        assert (False, (second,)) == (land(), late.functions)
        first()
        assert (True, ()) == (land(), late.functions)

    def test_other_threads_may_call_while_turns_begin_and_tell(self, turns: Turns) -> None:
        """Calls come from the device's threads at any moment: each turn has its own errors, and none is lost."""
        rounds, waiting = 2_000, threading.Semaphore(0)
        function = HostFunction(turns, fails)

        def device() -> None:
            for _ in range(rounds):
                waiting.acquire()
                function()

        thread = threading.Thread(target=device)
        thread.start()
        told = 0
        for _ in range(rounds):
            turns.add((function,))
            waiting.release()
            told += len(turns.take(lambda _: True))
        thread.join()
        told += len(turns.take(lambda _: True))
        assert (rounds, 0, True) == (told, len(function.turns), land())
        assert 0 == len(turns_module._FLYING)
