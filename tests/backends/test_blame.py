"""Whose line is blamed: the user's, wherever his code comes from, and never that of generated code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import attrs
import pytest

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
