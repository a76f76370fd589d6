"""What a tensor says about where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tsgraph.testing.cuda.places import DEVICE, HOST
from tsgraph.testing.cuda.refusals import not_emulated

if TYPE_CHECKING:
    from tsgraph.backends.emulated.operation import Function
    from tsgraph.testing.cuda.functions import Arguments, EmulatedFunctions, Options

_SUFFIXES = (", size=(", ", dtype=", ", grad_fn=", ", requires_grad=", ", tangent=", ", layout=", ")")


def on_device(mode: EmulatedFunctions, tensor: torch.Tensor) -> bool:
    """Whether `tensor` lives on the emulated device."""
    return tensor.device == HOST and mode.residence.holds(tensor)


def device(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`Tensor.device`: cuda:0 for those of the device."""
    return DEVICE if on_device(mode, args[0]) else function(*args, **options)


def is_cuda(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`Tensor.is_cuda`."""
    return on_device(mode, args[0]) or function(*args, **options)


def is_cpu(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`Tensor.is_cpu`."""
    return function(*args, **options) and not on_device(mode, args[0])


def get_device(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`Tensor.get_device`: the index of the device."""
    return 0 if on_device(mode, args[0]) else function(*args, **options)


def is_pinned(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`Tensor.is_pinned`."""
    return mode.residence.place(args[0]) == "pinned" or function(args[0])


def text(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`repr` of a tensor, which names a device other than the default one. It waits for the device."""
    if mode.watched or not on_device(mode, args[0]):
        return mode.pass_on(function, args, options)
    with mode.hosting():
        shown = function(*args, **options)
    return shown if mode.default == DEVICE else _with_device(shown)


def _with_device(shown: str) -> str:
    """`shown` with the device where torch puts it: after the data, before everything else."""
    end = min(at for at in map(shown.rfind, _SUFFIXES) if at >= 0)
    return f"{shown[:end]}, device='{DEVICE}'{shown[end:]}"


def no_address(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """Interfaces that hand the memory of a device tensor to other libraries."""
    if not on_device(mode, args[0]):
        return function(*args, **options)
    raise not_emulated("the CUDA array interface and DLPack", "the memory is no GPU's", "copy to the host first")
