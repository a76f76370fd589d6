"""The documented examples as programs: what each returns is what is observed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fidelity.examples import examples
from tests.fidelity.grounds import Ground
from tests.fidelity.interpreter import Interpreter, Observation
from tests.fidelity.program import Program

MOST_RESULTS = 16
PROGRAM = Program("example", 0, [
    ['with attempt("example") as at:', ['results = run("cuda")']],
    "globals().update(spread(results))",
    *(f'see("r{number}", "float")' for number in range(MOST_RESULTS)),
])  # fmt: skip


def names() -> list[str]:
    """The examples that there are."""
    return list(_examples())


def observe(name: str, ground: Ground) -> list[Observation]:
    """Run an example on a ground."""
    return Interpreter(ground.recover, run=_examples()[name], spread=_spread).run(PROGRAM)


def _examples() -> dict[str, Callable[[str], Any]]:
    return {example.__name__.removeprefix("example_"): example for example in examples()}


def _spread(results: list[Any]) -> dict[str, Any]:
    return {f"r{number}": result for number, result in enumerate(results)}
