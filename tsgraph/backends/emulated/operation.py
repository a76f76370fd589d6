"""What is being recorded: the call that the user made, and an operation that came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import attrs
import torch
from torch.overrides import resolve_name

from tsgraph.backends.emulated.dispatcher import Keys, Operator, named
from tsgraph.backends.emulated.kernels import KERNELS
from tsgraph.backends.emulated.trees import map_leaves, tensors_in

Function = Callable[..., Any]


def name_of(function: Function) -> str:
    """The public name, such as `torch.Tensor.tolist`."""
    return str(resolve_name(function) or getattr(function, "__name__", repr(function)))


@attrs.frozen
class Call:
    """What the user called, and in which state of torch.

    `makes`: tensors that it makes live on the device, since one was named or a device tensor takes part. `grad`,
    `autocast` (devices, each with a dtype) and `keys` are the user's: in the layer of operators they read otherwise.
    """

    function: Function | None = None
    makes: bool = False
    grad: bool = False
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    keys: Keys | None = None


@attrs.frozen
class Operation:
    """One operator with its arguments, and the call that it is part of. Prints as both."""

    operator: Operator
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    call: Call

    def __str__(self) -> str:
        function = self.call.function
        return f"{self.operator} (called by {name_of(function)})" if function is not None else str(self.operator)

    def run(self) -> Any:
        """Run it as the host does, at once."""
        return self.operator(*self.args, **self.kwargs)

    def run_on_device(self) -> Any:
        """Run it as the device does, at once."""
        return KERNELS.get(self.operator, self.operator)(*self.args, **self.kwargs)

    def arguments(self) -> Mapping[str, Any]:
        """The arguments that were given, by name."""
        return self._arguments

    @cached_property
    def _arguments(self) -> Mapping[str, Any]:
        return dict(named(self.operator, self.args, self.kwargs))

    def operands(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Its tensors, each with the name of its argument."""
        for name, value in self.arguments().items():
            yield from ((name, tensor) for tensor in tensors_in(value))

    def with_leaves(self, change: Callable[[Any], Any]) -> Operation:
        """The same operation with `change` applied to each leaf of its arguments."""
        kwargs = {name: map_leaves(change, value) for name, value in self.kwargs.items()}
        return attrs.evolve(self, args=map_leaves(change, self.args), kwargs=kwargs)
