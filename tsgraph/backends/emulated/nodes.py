"""One recorded operation: what it was, and how to run it again on the same storages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import torch

from tsgraph.backends.emulated import operators
from tsgraph.backends.emulated.dispatch_state import DispatchState
from tsgraph.backends.emulated.dispatcher import handle, out_names, out_variant, taken
from tsgraph.backends.emulated.kernels import KERNELS, device_kernel
from tsgraph.backends.emulated.operation import Operation
from tsgraph.backends.emulated.trace import Node
from tsgraph.backends.emulated.trees import describe, tensors_in
from tsgraph.errors import ReplayFailed

Run = Callable[[], object]


@attrs.frozen
class Launch:
    """A recorded operation, for the machine.

    `run` writes into the recorded outputs. `prove` does the same and checks that the operator returns what its fake
    kernel said; it serves the first replay.
    """

    node: Node
    state: DispatchState
    run: Run
    prove: Run


def compile_run(operation: Operation, fresh: Sequence[Any]) -> tuple[Run, Run]:
    """`run` and `prove` of a launch. `fresh` has an entry for each return: the tensors to fill, or None."""
    operator, args, kwargs = operation.operator, operation.args, operation.kwargs
    again = partial(device_kernel(operator), *args, **kwargs)
    if not any(True for _ in tensors_in(list(fresh))):
        return again, again
    prove = partial(_refill, again, fresh, str(operator))
    if operator.overloadpacket in operators.COPY_OUT:
        return partial(fresh[0].copy_, args[0]), prove
    variant = out_variant(operator) if operator not in KERNELS else None
    if variant is None:
        return partial(_refill, again, fresh), prove
    outs = dict(zip(out_names(variant), fresh, strict=True))
    return partial(handle(variant), *args, **taken(variant, kwargs), **outs), prove


def _refill(again: Run, fresh: Sequence[Any], proving: str = "") -> None:
    returned = again()
    values: Any = returned if len(fresh) > 1 else (returned,)
    for targets, results in zip(fresh, values, strict=True):
        if targets is None or results is None:  # an operator may leave out what only a backward pass would read
            continue
        for target, result in zip(tensors_in(targets), tensors_in(results), strict=True):
            if proving:
                _compare(proving, target, result)
            target.copy_(result)


def _compare(operator: str, promised: torch.Tensor, result: torch.Tensor) -> None:
    if promised.shape != result.shape or promised.dtype != result.dtype:
        raise ReplayFailed(
            f"{operator} returned {describe(result)} where its fake kernel promised {describe(promised)}",
            hint="correct the operator's fake kernel: a recording has nothing else to go by",
        )
