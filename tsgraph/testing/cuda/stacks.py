"""Torch's stacks of modes, of this thread: modes put at the bottom and taken from anywhere.

The one place here that uses torch's private names for them. Valid for torch 2.11 to 2.13.
"""

# ruff: noqa: SLF001 - torch has no public way to reach below the top of a stack

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch
from torch.utils._python_dispatch import _push_mode as _push_dispatch


def sink_functions(mode: TorchFunctionMode) -> None:
    """Put `mode` at the bottom of the stack of function modes, or above that of a default device, which wants it."""

    def sunk(modes: list[Any]) -> list[Any]:
        default = modes[:1] if modes and isinstance(modes[0], DeviceContext) else []
        return [*default, mode, *modes[len(default) :]]

    _restack(_pop_functions(), sunk, _push_mode)


def raise_functions(mode: TorchFunctionMode) -> None:
    """Put `mode` on top of the stack of function modes."""
    _push_mode(mode)


def drop_functions(mode: TorchFunctionMode) -> None:
    """Take `mode` out of the stack of function modes, wherever it is."""
    _restack(_pop_functions(), lambda modes: [each for each in modes if each is not mode], _push_mode)


def sink_operators(mode: TorchDispatchMode) -> None:
    """Put `mode` at the bottom of the stack of dispatch modes."""
    _restack(_pop_operators(), lambda modes: [mode, *modes], _push_dispatch)


def drop_operators(mode: TorchDispatchMode) -> None:
    """Take `mode` out of the stack of dispatch modes, wherever it is."""
    _restack(_pop_operators(), lambda modes: [each for each in modes if each is not mode], _push_dispatch)


def faking() -> bool:
    """Whether a mode for fake tensors is on: then nothing lives anywhere."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def _restack(popped: list[Any], change: Callable[[list[Any]], list[Any]], push: Callable[[Any], object]) -> None:
    for mode in change(popped[::-1]):
        push(mode)


def _pop_functions() -> list[Any]:
    return [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]


def _pop_operators() -> list[Any]:
    """Infrastructure modes (fake tensors, tracing) have places of their own, above the others."""
    return [_pop_dispatch() for _ in range(torch._C._len_torch_dispatch_stack())]
