"""Tensors inside the arguments of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among `value` and the lists, tuples and dicts in it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `change` applied to each leaf of its lists and tuples."""
    if isinstance(value, list | tuple):
        return type(value)(map_leaves(change, each) for each in value)
    return change(value)


def describe(tensor: torch.Tensor) -> str:
    """Shape and dtype, for messages."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
