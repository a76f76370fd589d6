"""A run as a straight-line program: what a machine does are lines of Python, kept as they are executed.

So what is printed is what was run. A line that fails, or a check that does not hold, is the program's last.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from types import CodeType
from typing import Any

import attrs


class Disagreement(AssertionError):
    """What happened is not what should have. The program that shows it ends with this very check."""


@lru_cache(maxsize=4096)
def _compiled(text: str, mode: str) -> CodeType:
    return compile(text, f"<{text[:60]}>", mode)


@attrs.define(eq=False)
class Program:
    """Lines, and the names that they have bound. `given`: names that the reader has to bind first."""

    given: dict[str, Any] = attrs.field(factory=dict)
    lines: list[str] = attrs.field(factory=list)
    _names: dict[str, Any] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._names = {"__name__": "program", **self.given}

    def run(self, line: str) -> None:
        """Execute `line` and keep it."""
        self.lines.append(line)
        exec(_compiled(line, "exec"), self._names)  # noqa: S102  a line that a machine wrote

    def value(self, expression: str) -> Any:
        """What `expression` is now. Keeps no line."""
        return eval(_compiled(expression, "eval"), self._names)  # noqa: S307  likewise

    def check(self, expected: Any, expression: str, *, keep: bool = False, when: bool = True) -> None:
        """Demand that `expression` equals `expected`, a plain value. The check is a line if it fails, or to `keep`.

        Raises: Disagreement.
        """
        if not when:
            return
        if keep:
            self.lines.append(f"assert {expected!r} == {expression}")
        actual = self.value(expression)
        if expected != actual:
            self.lines += [] if keep else [f"assert {expected!r} == {expression}"]
            raise Disagreement(f"expected {expected!r}, got {actual!r}: {expression}")

    def check_parts(self, expected: dict[str, Any], expression: str) -> None:
        """As `check`, of nested dicts: the line that fails names the smallest part that differs."""
        actual = self.value(expression)
        while isinstance(expected, dict) and isinstance(actual, dict) and expected.keys() == actual.keys():
            differing = [key for key in expected if expected[key] != actual[key]]
            if not differing:
                return
            key = differing[0]
            expected, actual, expression = expected[key], actual[key], f"{expression}[{key!r}]"
        self.check(expected, expression)

    def demand(self, assertion: str) -> None:
        """Demand that `assertion`, a line, holds; it is kept only where it does not. Raises: Disagreement."""
        try:
            exec(_compiled(assertion, "exec"), self._names)  # noqa: S102  likewise
        except BaseException as error:
            self.lines.append(assertion)
            if isinstance(error, AssertionError):
                raise Disagreement(*error.args) from None
            raise

    def since(self, mark: int) -> str:
        """The lines from number `mark` on."""
        return "\n".join(self.lines[mark:])

    def __str__(self) -> str:
        return "\n".join([*self._head(), *self.lines, ""])

    def _head(self) -> Iterable[str]:
        return (f"# given: {name}" for name in self.given)
