"""Whose line is blamed: the user's, wherever his code comes from, and never that of generated code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import attrs
import pytest

from tsgraph.backends import blame
from tsgraph.backends.blame import failing_line, user_line


@pytest.mark.parametrize("name", ["<program>", "<string>", "<stdin>", "<ipython-input-3>"])
def test_code_that_was_executed_is_the_users(name: str) -> None:
    """A line of a program that was given to `exec`, typed at a prompt or passed with `-c` is blamed by its own name."""
    scope: dict[str, Any] = {"user_line": user_line}
    code = "\n\nline = user_line()\ndef fail():\n    raise ZeroDivisionError\n"
    exec(compile(code, name, "exec"), scope)  # noqa: S102 - that is what is tested
    with pytest.raises(ZeroDivisionError) as caught:
        scope["fail"]()

    assert (f"{name}:3", f"{name}:5") == (scope["line"], failing_line(caught.value))


@attrs.define
class WithAttrs:
    """Its `__init__` is generated, and asks."""

    line: str = attrs.field(factory=user_line)


@dataclass
class WithDataclass:
    """The same in the standard library."""

    line: str = field(default_factory=user_line)


@pytest.mark.parametrize("kind", [WithAttrs, WithDataclass])
def test_generated_code_is_not(kind: type) -> None:
    """What a generated method calls is blamed on the line that called the method."""
    assert kind().line.startswith(f"{__file__}:")


def ask() -> list[str]:
    """Asks at two lines, and at the second one twice."""
    first = user_line()
    return [first, user_line(), user_line()]


def test_each_line_is_its_own_however_often_it_was_asked() -> None:
    """Lines are known by code and instruction: another line of one code is another, and later both are the same."""
    first = ask.__code__.co_firstlineno + 2
    lines = [f"{__file__}:{number}" for number in (first, first + 1, first + 1)]
    assert lines == ask() == ask()


def test_code_that_died_leaves_no_line_to_its_successor() -> None:
    """Codes are known by identity, which a new one may have from one that is gone; an answer is never another's."""
    for number in range(200):
        scope: dict[str, Any] = {"user_line": user_line}
        exec(compile(f"line = user_line()  # {number}", f"<program {number}>", "exec"), scope)  # noqa: S102 - as above
        assert f"<program {number}>:1" == scope["line"]


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that makes codes for ever keeps a few; what was forgotten is found again."""
    known: dict[int, Any] = {}
    monkeypatch.setattr(blame, "_known", known)
    monkeypatch.setattr(blame, "_MOST_CODES", 4)
    for number in range(20):
        scope: dict[str, Any] = {"user_line": user_line}
        exec(compile("line = user_line()", f"<program {number}>", "exec"), scope)  # noqa: S102 - as above
        assert (True, f"<program {number}>:1") == (len(known) <= 4, scope["line"])
