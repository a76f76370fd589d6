"""Calls that the layer of operators would not see, or not understand, on CPU tensors; each with what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from tsgraph.backends.emulated.copies import refuse_blocking, refuse_pageable
from tsgraph.backends.emulated.dispatcher import parse_to, unseen_by_operators
from tsgraph.backends.emulated.memory import poison
from tsgraph.backends.emulated.operation import Call, Function, name_of
from tsgraph.backends.emulated.refusal import FILL, ON_DEVICE, refuse
from tsgraph.backends.emulated.trees import describe, tensors_in

if TYPE_CHECKING:
    from tsgraph.backends.emulated.functions import FunctionMode

Arguments = tuple[Any, ...]
Options = Mapping[str, Any]


def _read(mode: FunctionMode, function: Function, args: Arguments, options: Options) -> Any:
    if any(map(mode.residence.holds, tensors_in([args, dict(options)]))):
        raise refuse(name_of(function), "the host reads a device tensor, and would wait for the device", ON_DEVICE)
    return function(*args, **options)


def _read_number(mode: FunctionMode, function: Function, args: Arguments, options: Options) -> Any:
    """Torch refuses several elements, and an index that is no integer, before it reads them."""
    tensor = args[0]
    is_integer = not (tensor.is_floating_point() or tensor.is_complex())
    if tensor.numel() == 1 and (is_integer or function is not torch.Tensor.__index__):
        return _read(mode, function, args, options)
    return function(*args, **options)


def _copy_back(mode: FunctionMode, function: Function, args: Arguments, options: Options) -> Any:
    if mode.residence.holds(args[0]):
        raise refuse_pageable(name_of(function), f"the host reads {describe(args[0])} by a copy to pageable memory")
    return function(*args, **options)


def _read_sections(mode: FunctionMode, function: Function, args: Arguments, options: Options) -> Any:
    """The composition of `tensor_split` reads a tensor of sections without any operator."""
    if any(map(mode.residence.holds, tensors_in([args[1:], dict(options)]))):
        raise refuse(name_of(function), "the host reads where to split", "give the sections as Python integers")
    return function(*args, **options)


def _export(mode: FunctionMode, function: Function, args: Arguments, options: Options) -> Any:
    if mode.residence.holds(args[0]):
        why = "hands the memory of a device tensor to code that the recording does not see"
        raise refuse(name_of(function), why, "use operators that are registered with torch.library; clone() copies")
    return function(*args, **options)


def _make_from_data(mode: FunctionMode, function: Function, args: Arguments, options: Options) -> Any:
    data = next((options[name] for name in ("data", "obj") if name in options), args[-1])
    follows = function is torch.Tensor.new_tensor and mode.residence.holds(args[0])
    device = options.get("device", args[0].device if follows else None)
    on_device = any(map(mode.residence.holds, tensors_in(data)))
    if on_device and not isinstance(data, torch.Tensor):
        raise refuse(name_of(function), "the host reads device tensors to build another", "use torch.stack")
    if device is not None and not on_device:
        raise refuse_pageable(name_of(function), "copies from pageable host memory to the device", FILL)
    return function(*args, **options)


def _move(mode: FunctionMode, function: Function, args: Arguments, options: Options) -> Any:
    tensor, target = args[0], options.get("device", args[1] if len(args) > 1 else options.get("other"))
    here, there = mode.residence.holds(tensor), names_device(mode, target)
    if there is None or here == there:
        return function(*args, **options)
    dtype, non_blocking = parse_to(*args[1:], **options)
    move = _upload if there else _download
    return move(mode, tensor, dtype or tensor.dtype, non_blocking)


def names_device(mode: FunctionMode, target: object) -> bool | None:
    """Whether `target` of a `to` is the device or, as the literal "cpu", the host; None if it names no place."""
    if isinstance(target, torch.Tensor):
        return mode.residence.holds(target)
    if isinstance(target, str):
        return False if target == "cpu" else None
    return True if isinstance(target, torch.device) and target.type == "cpu" else None


def _upload(mode: FunctionMode, tensor: torch.Tensor, dtype: torch.dtype, non_blocking: bool) -> torch.Tensor:
    if mode.residence.place(tensor) != "pinned":
        why = f"copies a host tensor {describe(tensor)} to the device, but it is not pinned"
        raise refuse_pageable("torch.Tensor.to", why)
    if not non_blocking:
        why = f"a host→device copy that blocks the host, of the pinned tensor {describe(tensor)}"
        raise refuse_blocking("torch.Tensor.to", why)
    with mode.making():
        made = torch.empty_like(tensor, dtype=dtype)
    return made.copy_(tensor, non_blocking=True)


def _download(mode: FunctionMode, tensor: torch.Tensor, dtype: torch.dtype, non_blocking: bool) -> torch.Tensor:
    if not non_blocking:
        raise refuse_pageable("torch.Tensor.to", f"the host reads {describe(tensor)} by a copy to pageable memory")
    with mode.calling(Call()):  # no device takes part: host memory, which other modes may see coming
        made = torch.empty(tensor.shape, dtype=dtype)
    with unseen_by_operators():
        poison(made)
    mode.residence.add(made, "pinned")
    return made.copy_(tensor, non_blocking=True)


def _one_hot(mode: FunctionMode, function: Function, args: Arguments, options: Options) -> Any:
    """As on a GPU: the CPU's own composition checks the classes' range on the host."""
    classes = options.get("num_classes", args[1] if len(args) > 1 else -1)
    if classes < 0 or not mode.residence.holds(args[0]):
        return function(*args, **options)
    return args[0].unsqueeze(-1).eq(torch.arange(classes, device=args[0].device)).to(torch.int64)


def _is_pinned(mode: FunctionMode, function: Function, args: Arguments, options: Options) -> Any:
    return mode.residence.place(args[0]) == "pinned" or function(*args, **options)


Handler = Callable[["FunctionMode", Function, Arguments, Options], Any]
_BY_HANDLER: dict[Handler, tuple[Function, ...]] = {
    _read: (
        torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__repr__, torch.Tensor.__format__,
        torch.Tensor.__contains__,
    ),
    _read_number: (
        torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__,
        torch.Tensor.__complex__, torch.Tensor.__index__,
    ),
    _copy_back: (torch.Tensor.tolist, torch.Tensor.cpu),
    _read_sections: (torch.tensor_split, torch.Tensor.tensor_split),
    _export: (torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__, torch.Tensor.__dlpack__),
    _make_from_data: (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor),
    _move: (torch.Tensor.to,),
    _one_hot: (torch.nn.functional.one_hot,),
    _is_pinned: (torch.Tensor.is_pinned,),
}  # fmt: skip
HOST_READS = frozenset(_BY_HANDLER[_read] + _BY_HANDLER[_copy_back])
"""Calls that read a device tensor, and run no operator on it where it lies on the host."""
HANDLERS: Mapping[Function, Handler] = {
    function: handler for handler, functions in _BY_HANDLER.items() for function in functions
}
