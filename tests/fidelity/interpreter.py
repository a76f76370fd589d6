"""Runs programs against `torch.cuda` and notes what can be observed.

The same code runs on a GPU and under emulation. A program sees torch, `F`, and what `Interpreter` gives it: `see` notes
the values of a tensor by name, `fact` a value of plain Python, `attempt` an error in the block under it and what was
left behind, `elsewhere` runs something in another thread.
"""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from tests.fidelity.program import Program
from tests.fidelity.verdicts import PROGRAM, coarse, judge

Observation = dict[str, Any]
MOST_VALUES = 48


class Planted(Exception):
    """What a program raises on purpose."""


class Attempt:
    """A block of a program that may fail; it goes on after it. `at(stage)` tells how far the block came."""

    def __init__(self, interpreter: Interpreter, label: str) -> None:
        self._interpreter, self._label = interpreter, label
        self._stage, self._line = "begin", 0

    def __enter__(self) -> Callable[[str], None]:
        self._interpreter.depth += 1
        self._line = sys._getframe(1).f_lineno
        return self._at

    def _at(self, stage: str) -> None:
        self._stage = stage

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._interpreter.depth -= 1
        if error is None:
            self._interpreter.note(self._line, self._label, "error", first=None)
            return True
        if not isinstance(error, Exception):
            return False
        self._interpreter.note_error(self._line, self._label, error, self._stage)
        return True


class Interpreter:
    """Runs one program, which may use `names` too. `recover` puts the device right after an error."""

    def __init__(self, recover: Callable[[dict[str, Any]], None], **names: Any) -> None:
        self._recover = recover
        self.depth = 0  # of attempts
        self._observations: list[Observation] = []
        self._scope: dict[str, Any] = {
            "torch": torch, "F": torch.nn.functional, "Planted": Planted, "see": self.see, "fact": self.fact,
            "attempt": lambda label: Attempt(self, label), "elsewhere": elsewhere, **names,
        }  # fmt: skip

    def run(self, program: Program) -> list[Observation]:
        """What was observed. An error outside every `attempt` ends the program and is the last observation."""
        code = compile(program.source(), PROGRAM, "exec")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(code, self._scope)  # noqa: S102 - this is the interpreter
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was observed
            self.note_error(0, "program", error, "end")
        finally:
            observations = self._observations
            self._scope.clear()
        return observations

    def see(self, name: str, tolerance: str = "exact") -> None:
        """Note the values of the tensor that the program calls `name`."""
        line = sys._getframe(1).f_lineno
        tensor = self._scope.get(name)
        if tensor is None:
            self.note(line, name, "value", values="unbound")
            return
        if not isinstance(tensor, torch.Tensor):
            self.note(line, name, "fact", value=_told(tensor))
            return
        try:
            torch.cuda.synchronize()
            values = _values(tensor, tolerance)
        except Exception as error:  # noqa: BLE001
            self.note_error(line, name, error, "see")
            return
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.note(line, name, "value", dtype=dtype, shape=list(tensor.shape), tolerance=tolerance, values=values)

    def fact(self, label: str, tell: Callable[[], Any]) -> None:
        """Note what `tell` returns: numbers, strings, None, and lists of them."""
        line = sys._getframe(1).f_lineno
        try:
            self.note(line, label, "fact", value=_told(tell()))
        except Exception as error:  # noqa: BLE001
            self.note_error(line, label, error, "fact")

    def note(self, line: int, label: str, kind: str, **what: Any) -> None:
        """Add an observation."""
        self._observations.append({"line": line, "of": label, "is": kind, **what})

    def note_error(self, line: int, label: str, error: Exception, stage: str) -> None:
        """Add an error, with how the device was left, and put that right."""
        verdict = judge(error)
        outcome = {"stage": stage, "first": verdict.first, "last": verdict.last, "at": verdict.line}
        says, back = (
            f"{type(error).__name__}: {verdict.words}",
            torch.cuda.current_stream() == torch.cuda.default_stream(),
        )
        self.note(line, label, "error", **outcome, says=says, on_default_stream=back)
        error.__traceback__ = None
        if self.depth == 0:  # inside a capture, what is open has to stay open
            self._recover(self._scope)


def elsewhere(work: Callable[[], object]) -> str:
    """Run `work` in another thread; "fine", or the class of its error."""
    outcome = ["fine"]

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001
            outcome[0] = coarse(judge(error).first)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome[0]


def _values(tensor: torch.Tensor, tolerance: str) -> list[Any]:
    flat = tensor.detach().reshape(-1)[:MOST_VALUES].cpu()
    flat = torch.view_as_real(flat.resolve_conj()).reshape(-1) if flat.is_complex() else flat
    return [plain(value, tolerance) for value in flat.tolist()]


def plain(value: Any, tolerance: str) -> Any:
    """A number as it is noted."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return str(value)  # JSON has no nan and no infinity
    return value if tolerance == "exact" else float(f"{value:.7g}")


def _told(value: Any) -> Any:
    return [_told(each) for each in value] if isinstance(value, list | tuple | torch.Size) else value
