"""What a watch writes down besides memory: values, draws, host work, opaque parts. By line: loops make few entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch

from tsgraph.backends.emulated.dispatcher import unseen_by_functions, unseen_by_operators
from tsgraph.receipts.receipt import Baked, Draw, Once, Opaque

_LIKE_DROPOUT = ("dropout", "rrelu")
_IDLE = {"p": 0, "train": False, "training": False}
"""Arguments with which such an operator draws nothing."""


@attrs.define(eq=False)
class Notes:
    """Collected in the order of the recording."""

    _baked: dict[tuple[str, str, str], list[list[Any]]] = attrs.field(factory=dict, init=False)
    _once: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    _draws: Counter[tuple[str, str, str]] = attrs.field(factory=Counter, init=False)
    _opaque: Counter[tuple[str, str, str]] = attrs.field(factory=Counter, init=False)

    def value(self, operator: str, argument: str, text: str, line: str) -> None:
        """One value."""
        values = self._baked.get((operator, argument, line))
        if values is None:
            self._baked[operator, argument, line] = [[text, 1]]
        elif values[-1][0] == text:
            values[-1][1] += 1
        else:
            values.append([text, 1])

    def host_work(self, operator: str, line: str) -> None:
        """An operator ran on host tensors."""
        self._once[operator, line] += 1

    def draw(self, operator: str, arguments: Mapping[str, Any], line: str) -> None:
        """An operator that may draw random numbers, if it did."""
        if draws(operator, arguments):
            given = arguments.get("generator") is not None
            self._draws[operator, line, "given" if given else "default"] += 1

    def opaque(self, kind: str, name: str, line: str) -> None:
        """A part that cannot be looked into ran."""
        self._opaque[kind, name, line] += 1

    def told(self) -> dict[str, Any]:
        """All of it, as the words of a receipt."""
        return {
            "baked": tuple(self._told_baked()),
            "once": tuple(Once(operator=o, line=line, times=n) for (o, line), n in self._once.items()),
            "draws": tuple(
                Draw(operator=o, line=line, generator=g, times=n) for (o, line, g), n in self._draws.items()
            ),
            "opaque": tuple(Opaque(kind=k, name=o, line=line, times=n) for (k, o, line), n in self._opaque.items()),
        }

    def _told_baked(self) -> Iterator[Baked]:
        for (operator, argument, line), values in self._baked.items():
            runs = tuple((text, times) for text, times in values)
            yield Baked(operator=operator, argument=argument, line=line, values=runs)


def draws(operator: str, arguments: Mapping[str, Any]) -> bool:
    """Whether an operator that may draw random numbers does, with these arguments."""
    if "attention" in operator:
        return bool(arguments.get("dropout_p"))
    if not any(word in operator for word in _LIKE_DROPOUT):
        return True
    return not any(word in arguments and arguments[word] == idle for word, idle in _IDLE.items())


def value_of(tensor: torch.Tensor) -> str:
    """The value of a host tensor with one element, as Python writes it, read past every mode."""
    with unseen_by_operators(), unseen_by_functions():
        return repr(tensor.item())
