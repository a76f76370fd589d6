"""What torch itself offers for calling one step as a graph: the host time of these, on the same step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tsgraph.bench.settings import read_all
from tsgraph.bench.turns import Action

WARM_UPS = 5


def rivals(tensors: Mapping[str, Tensor], say: Callable[[str], None]) -> dict[str, Action]:
    """Calls of the step on `tensors`, device tensors of exactly one size: nobody pads here.

    What does not run is told, and left out.
    """
    found: dict[str, Action] = {}
    for name, make in (("make_graphed_callables", _graphed), ("torch.compile, reduce-overhead", _compiled)):
        say(f"preparing {name}")
        try:
            found[name] = make(tensors)
        except Exception as error:  # noqa: BLE001 - a rival that does not run here is no reason to lose the rest
            say(f"{name} does not run here: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    return found


def _graphed(tensors: Mapping[str, Tensor]) -> Action:
    samples = tuple(tensor.clone() for tensor in tensors.values())
    call = torch.cuda.make_graphed_callables(_positional(tensors), samples)
    return _called(call, tensors)


def _compiled(tensors: Mapping[str, Tensor]) -> Action:
    call = torch.compile(_positional(tensors), mode="reduce-overhead", fullgraph=True, dynamic=False)
    return _called(call, tensors)


def _positional(tensors: Mapping[str, Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """The step as torch wants it: tensors one by one, and a tuple back."""
    labels = tuple(tensors)

    def step(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(read_all(dict(zip(labels, given, strict=True))).values())

    return step


def _called(call: Any, tensors: Mapping[str, Tensor]) -> Action:
    given = tuple(tensors.values())
    action = partial(_without_gradients, call, given)
    for _ in range(WARM_UPS):
        action()
    return action


def _without_gradients(call: Callable[..., Any], given: tuple[Tensor, ...]) -> Any:
    with torch.no_grad():
        return call(*given)
