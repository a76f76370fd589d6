"""Calls that CPU tensors would answer otherwise than those of the device, each with what answers instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tsgraph.backends.emulated.operation import Function
from tsgraph.testing.cuda import facts, moves

Handler = Callable[..., Any]


def _getter(name: str) -> Function:
    """What torch calls to read this attribute of a tensor."""
    getter: Function = getattr(torch.Tensor, name).__get__
    return getter


# ruff: noqa: SLF001 - what Module.to and the array interfaces call has an underscore
HANDLERS: Mapping[Function, Handler] = {
    _getter("device"): facts.device,
    _getter("is_cuda"): facts.is_cuda,
    _getter("is_cpu"): facts.is_cpu,
    torch.Tensor.get_device: facts.get_device,
    torch.get_device: facts.get_device,
    torch.Tensor.is_pinned: facts.is_pinned,
    torch.Tensor.__repr__: facts.text,
    _getter("__cuda_array_interface__"): facts.no_address,
    torch.Tensor.__dlpack__: facts.no_address,
    torch.Tensor.__dlpack_device__: facts.no_address,
    torch.Tensor.to: moves.to,
    torch.Tensor.cuda: moves.cuda,
    torch.Tensor.cpu: moves.cpu,
    torch.Tensor.numpy: moves.numpy,
    torch.Tensor.__array__: moves.numpy,
    torch.Tensor.pin_memory: moves.pin,
    torch.Tensor.type: moves.type_,
    torch.Tensor.type_as: moves.type_as,
    torch.Tensor.__deepcopy__: moves.copied,
    torch.tensor_split: moves.split,
    torch.Tensor.tensor_split: moves.split,
    torch.tensor: moves.from_data,
    torch.as_tensor: moves.from_data,
    torch.asarray: moves.from_data,
    torch.Tensor.new_tensor: moves.from_data,
    torch.device: moves.device_named,
    torch._C._nn._parse_to: moves.parse_to,
}
