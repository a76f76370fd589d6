"""What both machines have in common: actions that can be done again, and a program that grows with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from hypothesis.errors import HypothesisException
from hypothesis.stateful import RuleBasedStateMachine

from tsgraph.testing.stateful.program import Program

Action = tuple[str, dict[str, Any]]
"""A rule's name, and the values that were drawn for it."""

M = TypeVar("M", bound="ProgramMachine")


class ProgramMachine(RuleBasedStateMachine):
    """A machine whose rules are lines of a program, and whose runs can be done again, without hypothesis.

    `actions`: what was done, the configuration first. `on_error` is told of every run that ends in an error.
    """

    on_error: ClassVar[Callable[[ProgramMachine, Exception], None] | None] = None

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.program = Program(given)
        self.actions: list[Action] = []
        self._shown = 0

    @classmethod
    def warm_up(cls) -> None:
        """Do once what only the first run would do, such as importing."""

    def possible(self, drawn: dict[str, Any]) -> bool:  # noqa: ARG002  machines say
        """Whether an action with these values can be done now; asked when actions before it were dropped."""
        return True

    def _repr_step(self, rule: Any, data: Any, result: Any) -> str:  # noqa: ARG002  hypothesis prints what it returns
        shown, self._shown = self._shown, len(self.program.lines)
        return self.program.since(shown) or f"# {rule.function.__name__}: nothing to do"

    def teardown(self) -> None:
        """Tell of an error. Hypothesis tears down while it is on its way."""
        error = sys.exc_info()[1]
        if self.on_error is not None and isinstance(error, Exception) and not isinstance(error, HypothesisException):
            type(self).on_error(self, error)  # type: ignore[misc]


def as_rule(name: str, decorator: Any, function: Callable[..., Any]) -> Any:
    """`function` as a rule called `name`. Each machine needs its own: hypothesis marks the function."""

    def step(self: ProgramMachine, **drawn: Any) -> Any:
        self.actions.append((name, drawn))
        return function(self, **drawn)

    step.__name__ = step.__qualname__ = name
    step.__doc__ = function.__doc__
    marked = decorator(step)
    marked.plain = step
    return marked


def do_again(kind: type[M], actions: Sequence[Action]) -> M | tuple[M, Exception]:
    """A new machine that has done `actions`, but for those that are not possible; with the error that ended it."""
    machine = kind()
    try:
        for name, drawn in actions:
            if machine.possible(drawn):
                getattr(kind, name).plain(machine, **drawn)
    except Exception as error:  # noqa: BLE001  whatever it is, the caller compares it
        return machine, error
    return machine
