"""The machinery of the suites: every promise is tried, on a part of its own, and all that are broken are told."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
from typing import Protocol

import attrs
import pytest

from tsgraph.errors import ContractViolation
from tsgraph.testing.conformance import Nonconformance, Promises

SUITES = "tsgraph.testing.conformance"


class Door(Protocol):
    """Something with two members."""

    def open(self) -> None:
        """Open it."""

    def close(self) -> None:
        """Close it."""


@attrs.define
class Trial:
    """A subject that counts itself."""

    part: object


class Good:
    """Has both members."""

    open = close = lambda self: None


class Wall:
    """Cannot be opened."""

    close = None


@pytest.fixture
def promises() -> Promises[Trial]:
    """Three promises: one is kept, one is broken, one raises."""
    made: Promises[Trial] = Promises(Door)
    made.promise("open", "to be kept")(lambda trial: None)
    made.promise("open", "a door")(lambda trial: "a wall")

    @made.promise("close", "an answer")
    def raises(trial: Trial) -> str | None:
        raise KeyError("key")

    return made


def test_all_broken_promises_are_told(promises: Promises[Trial]):
    """The error is a ContractViolation with the fields of the first, a message of all, and the cause of each."""
    with pytest.raises(ContractViolation) as caught:
        promises.check(lambda: Trial(Good()))
    assert isinstance(caught.value, Nonconformance)
    error = caught.value
    assert ("Door", "open", "a door", "a wall") == (error.protocol, error.member, error.expected, error.got)
    assert (
        "Door: 2 promises broken\n"
        "  Door.open: expected a door, got a wall\n"
        "  Door.close: expected an answer, got KeyError: 'key'"
    ) == str(caught.value)
    assert [None, KeyError] == [v.__cause__ and type(v.__cause__) for v in caught.value.violations]


def test_the_error_travels(promises: Promises[Trial]):
    """Pickled, it keeps its message and its violations."""
    with pytest.raises(Nonconformance) as caught:
        promises.check(lambda: Trial(Good()))
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - it was pickled just now
    assert (str(caught.value), 2) == (str(again), len(again.violations))


def test_each_promise_has_a_fresh_subject(promises: Promises[Trial]):
    """One to look at its members, and one for each promise."""
    made: list[Trial] = []

    def make() -> Trial:
        made.append(Trial(Good()))
        return made[-1]

    with pytest.raises(Nonconformance):
        promises.check(make)
    assert 1 + 3 == len(made) == len(set(map(id, made)))


def test_a_missing_member_is_told_first(promises: Promises[Trial]):
    """Without its members a part is not tried any further."""
    with pytest.raises(Nonconformance, match=r"1 promise broken\n  Door\.open: expected a member, got none on Wall$"):
        promises.check(lambda: Trial(Wall()))


def test_the_suites_need_no_test_framework():
    """No module of theirs imports pytest or hypothesis, and of `tsgraph.testing` they import only each other."""
    sources = [inspect.getsource(module) for name, module in sys.modules.items() if name.startswith(SUITES)]
    imported = {
        word for source in sources for word in re.findall(r"^\s*(?:from|import) ([\w.]+)", source, re.MULTILINE)
    }
    assert len(sources) > 10
    assert not {word for word in imported if word.startswith(("pytest", "hypothesis"))}
    assert not {word for word in imported if word.startswith("tsgraph.testing") and not word.startswith(SUITES)}
