"""Eager work, such as a warm-up, with its eyes on where tensors live: nothing is recorded or refused.

What eager code makes of device tensors, or with `device=`, lives on the device from then on, as on a GPU. So a buffer
that a warm-up leaves behind is a device tensor in the recording after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.aliases import Aliases
from tsgraph.backends.emulated.calls import Arguments, Options, names_device
from tsgraph.backends.emulated.dispatcher import is_operator, unseen_by_operators
from tsgraph.backends.emulated.functions import FunctionMode
from tsgraph.backends.emulated.operation import Function
from tsgraph.backends.emulated.operations import OperationMode
from tsgraph.backends.emulated.residence import Residence
from tsgraph.backends.emulated.stance import STANCE
from tsgraph.errors import InternalError

_MAY_SHARE = (torch.as_tensor, torch.asarray)
_TAKE_DATA = (torch.tensor, torch.Tensor.new_tensor, *_MAY_SHARE)


@contextmanager
def tracking(residence: Residence) -> Iterator[None]:
    """Run the block eagerly, and note in `residence` what it makes on the device."""
    functions = _Functions(residence)
    with STANCE.eager(), _Operations(functions, _record_nothing, Aliases()), functions:
        yield


class _Functions(FunctionMode):
    """Moves between host and device are copies, and the host may read what it likes."""

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: Arguments = (), kwargs: Options | None = None
    ) -> Any:
        """Run `func` as the user called it."""
        options = kwargs or {}
        if current.of_thread() is not None:
            return func(*args, **options)
        call = self._understand(func, args, options)
        with self.calling(call):
            if func in (torch.Tensor.cpu, torch.Tensor.to):
                return self._move(func, args, options)
            made = func(*args, **options)
            return self._place(func, made) if func in _TAKE_DATA and call.makes else made

    def _move(self, func: Function, args: Arguments, options: Options) -> Any:
        tensor, target = args[0], options.get("device", args[1] if len(args) > 1 else options.get("other"))
        there = False if func is torch.Tensor.cpu else names_device(self, target)
        if there is None or there == self.residence.holds(tensor):
            return func(*args, **options)
        with unseen_by_operators():
            moved = func(*args, **options)
            moved = moved.clone() if moved is tensor else moved
        if there:
            self.residence.add(moved)
        return moved

    def _place(self, func: Function, made: torch.Tensor) -> torch.Tensor:
        if self.residence.holds(made) or made.device.type != "cpu":
            return made
        made = made.clone() if func in _MAY_SHARE else made
        self.residence.add(made)
        return made


class _Operations(OperationMode):
    """Runs every operator, since the stream takes no part in a recording."""

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run it, at once."""
        if current.of_thread() is not None or not is_operator(func):
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _record_nothing(like: torch.Tensor) -> torch.Tensor:
    raise InternalError(f"memory for {tuple(like.shape)} was asked for outside of a recording")
