"""The upper layer of a recording: what the user calls.

On CPU tensors some calls never reach an operator (`tolist`, `numpy`, a `to` that has nothing to do), and an operator no
longer knows whether `device=` was given. Both are told here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch.overrides import TorchFunctionMode

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.calls import HANDLERS, Arguments, Options
from tsgraph.backends.emulated.deep_copies import deep_copy
from tsgraph.backends.emulated.dispatch_state import autocasts
from tsgraph.backends.emulated.dispatcher import dispatch_keys
from tsgraph.backends.emulated.operation import Call, Function
from tsgraph.backends.emulated.residence import Residence
from tsgraph.backends.emulated.trees import tensors_in

_HANDLERS = {**HANDLERS, torch.Tensor.__deepcopy__: deep_copy}


class FunctionMode(TorchFunctionMode):
    """Refuses the calls that read a device tensor on the host, and keeps the `call` under way for the layer below.

    `draws_by_default`: the device's random numbers are those of torch's default generator.
    """

    def __init__(self, residence: Residence) -> None:
        super().__init__()
        self.residence = residence
        self.call = Call()
        self.draws_by_default = True

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: Arguments = (), kwargs: Options | None = None
    ) -> Any:
        """Run `func` as the user called it, or refuse it."""
        options = kwargs or {}
        with current.invalidating(), self.calling(self._understand(func, args, options)):
            handler = _HANDLERS.get(func)
            return func(*args, **options) if handler is None else handler(self, func, args, options)

    @contextmanager
    def making(self) -> Iterator[None]:
        """What the block makes lives on the device."""
        with self.calling(attrs.evolve(self.call, makes=True)):
            yield

    def _understand(self, func: Function, args: Arguments, options: Options) -> Call:
        device = options.get("device")
        makes = device is not None or any(map(self.residence.holds, tensors_in([args, dict(options)])))
        return Call(func, makes, torch.is_grad_enabled(), autocasts(), dispatch_keys())

    @contextmanager
    def calling(self, call: Call) -> Iterator[None]:
        """Operators that the block runs are part of `call`."""
        before, self.call = self.call, call
        try:
            yield
        finally:
            self.call = before
