"""Calls that bring data from host to device, back, and into pinned memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tsgraph.testing.cuda.facts import on_device
from tsgraph.testing.cuda.places import DEVICE, HOST, Place, check_device, check_index, place_of

if TYPE_CHECKING:
    from tsgraph.backends.emulated.operation import Function
    from tsgraph.testing.cuda.functions import Arguments, EmulatedFunctions, Options

_NO_NUMPY = (
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
)


def to(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`Tensor.to` in all its forms."""
    tensor, told = args[0], _told(*args[1:], **options)
    place = _target(mode, told)
    if place is None or tensor.device != HOST:
        return mode.pass_on(function, args, options)
    return move(mode, tensor, place, told)


def move(mode: EmulatedFunctions, tensor: torch.Tensor, place: Place, told: Options) -> Any:
    """`tensor` at `place`, converted as `told`."""
    told = {name: value for name, value in told.items() if name not in ("device", "other")}
    here: Place = "device" if on_device(mode, tensor) else "host"
    if here == place:
        return mode.pass_on(torch.Tensor.to, (tensor,), told | {"dtype": told.get("dtype") or tensor.dtype})
    if mode.watched:
        told.pop("copy", None)
        return mode.pass_on(torch.Tensor.to, (tensor, HOST if place == "device" else "cpu"), told)
    return _cross(mode, tensor, place, told)


def _cross(mode: EmulatedFunctions, tensor: torch.Tensor, place: Place, told: Options) -> torch.Tensor:
    dtype, blocks = told.get("dtype") or tensor.dtype, not told.get("non_blocking", False)
    layout = told.get("memory_format") or torch.preserve_format
    with mode.hosting():
        moved: torch.Tensor = tensor.to(HOST, dtype, copy=True, memory_format=layout)
    if place == "device":
        mode.residence.add(moved)
    elif not blocks:
        mode.residence.add(moved, "pinned")
    return moved


def _told(*args: Any, **options: Any) -> Options:
    """The arguments of `to` by name."""
    if not args:
        return dict(options)
    if isinstance(args[0], torch.dtype):
        names: tuple[str, ...] = ("dtype", "non_blocking", "copy")
    elif isinstance(args[0], torch.Tensor):
        names = ("other", "non_blocking", "copy")
    else:
        names = ("device", "dtype", "non_blocking", "copy")
    return dict(zip(names, args, strict=False)) | options


def _target(mode: EmulatedFunctions, told: Options) -> Place | None:
    other = told.get("other")
    if other is None:
        return place_of(told.get("device"))
    told["dtype"] = other.dtype
    if other.device != HOST:
        return None
    return "device" if on_device(mode, other) else "host"


def cuda(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`Tensor.cuda`."""
    told = dict(zip(("device", "non_blocking"), args[1:], strict=False)) | options
    named = told.pop("device", None)
    check_device(named) if isinstance(named, str | torch.device) else check_index(named)
    return move(mode, args[0], "device", told)


def cpu(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`Tensor.cpu`, a copy to pageable memory: a recording refuses it."""
    if mode.watched or not on_device(mode, args[0]):
        return mode.pass_on(function, args, options)
    return move(mode, args[0], "host", options)


def numpy(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`Tensor.numpy`, of host tensors alone."""
    if on_device(mode, args[0]):
        raise TypeError(_NO_NUMPY)
    return function(*args, **options)


def pin(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`Tensor.pin_memory`: a pinned copy of a host tensor."""
    tensor = args[0]
    if on_device(mode, tensor):
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
    if mode.residence.place(tensor) == "pinned":
        return tensor
    pinned = mode.run_on_host(torch.clone, (tensor.detach(),), {"memory_format": torch.contiguous_format})
    mode.residence.add(pinned, "pinned")
    return pinned


def type_(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`Tensor.type`: the legacy name of a tensor's type, or a conversion to one."""
    tensor, wanted = args[0], args[1] if len(args) > 1 else options.get("dtype")
    if wanted is None:
        name: str = function(tensor)
        return name.replace("torch.", "torch.cuda.", 1) if on_device(mode, tensor) else name
    if not isinstance(wanted, str):
        return mode.pass_on(function, args, options)
    host = wanted.replace("torch.cuda.", "torch.", 1)
    dtype = torch.empty(0).type(host).dtype
    return move(mode, tensor, "host" if host == wanted else "device", {"dtype": dtype})


def type_as(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`Tensor.type_as`: dtype and place of another tensor."""
    other = args[1] if len(args) > 1 else options["other"]
    return to(mode, torch.Tensor.to, (args[0], other), {})


def device_named(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`torch.device`: a bare number is a device of the accelerator."""
    if len(args) == 1 and not options and isinstance(args[0], int):
        return torch.device(DEVICE.type, args[0])
    return function(*args, **options)


def parse_to(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """What `Module.to` parses its arguments with: a bare number is a device of the accelerator."""
    named = tuple(torch.device(DEVICE.type, each) if _is_index(each) else each for each in args)
    return function(*named, **options)


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def from_data(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`torch.tensor` and its like: a copy of data, or the data themselves if they may stay."""
    data = args[0] if args else options.get("data", options.get("obj"))
    place = place_of(options.get("device"))
    if function in _ALIASING and isinstance(data, torch.Tensor) and data.device == HOST and place is not None:
        return move(mode, data, place, _conversion(options))
    if mode.watched:
        options |= {"device": HOST} if place == "device" else {}
        return mode.run(function, args, options) if place == "host" else mode.pass_on(function, args, options)
    return _make(mode, function, args, options, place or _follow(mode, function, args, data))


_ALIASING = {torch.as_tensor, torch.asarray}


def _conversion(options: Options) -> Options:
    return {name: options[name] for name in ("dtype", "copy") if options.get(name) is not None}


def _follow(mode: EmulatedFunctions, function: Function, args: Arguments, data: Any) -> Place:
    """Where the result lives if no place is named: with the data, or with the tensor whose method it is."""
    leader = args[0] if function is torch.Tensor.new_tensor else data
    return "device" if isinstance(leader, torch.Tensor) and on_device(mode, leader) else "host"


def _make(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options, place: Place) -> Any:
    pinned = options.pop("pin_memory", False)
    if "device" in options:
        options["device"] = HOST
    with mode.hosting():
        made = function(*args, **options)
        if place == "device":
            made = made.clone() if function in _ALIASING and not mode.residence.holds(made) else made
    if place == "device":
        mode.residence.add(made)
    elif pinned:
        mode.residence.add(made, "pinned")
    return made


def split(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """`tensor_split`: a tensor that says where must be the host's."""
    places = (*args[1:2], *options.values())
    if any(isinstance(each, torch.Tensor) and on_device(mode, each) for each in places):
        raise RuntimeError(f"tensor_split expected tensor_indices_or_sections to be on cpu, but it's on {DEVICE}")
    return mode.run(function, args, options)


def copied(mode: EmulatedFunctions, function: Function, args: Arguments, options: Options) -> Any:
    """Copies that are made without operators."""
    made = mode.pass_on(function, args, options)
    if on_device(mode, args[0]):
        mode.residence.add(made)
    return made
