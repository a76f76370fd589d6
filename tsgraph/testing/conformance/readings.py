"""Reading what an implementation holds: any nesting of tensors and plain values, compared bit by bit and by address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

Place = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]
"""Where a tensor lies and how: address, shape, strides, dtype."""


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors of `tree`, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def values_in(tree: Any) -> list[Any]:
    """All other leaves of `tree`: what a recording would bake in."""
    return [leaf for leaf in pytree.tree_leaves(tree) if not isinstance(leaf, torch.Tensor)]


def copy_of(tree: Any) -> Any:
    """`tree` with its tensors copied."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), tree)


def places_of(tree: Any) -> list[Place]:
    """Where each tensor of `tree` lies."""
    return [(t.data_ptr(), tuple(t.shape), tuple(t.stride()), t.dtype) for t in tensors_in(tree)]


def difference(expected: Any, got: Any) -> str | None:
    """The first leaf of `got` that is not bitwise that of `expected`, in words; None where all are."""
    wanted, form = pytree.tree_flatten_with_path(expected)
    found, other = pytree.tree_flatten_with_path(got)
    if form != other:
        return f"another structure: {other} instead of {form}"
    pairs = zip(wanted, found, strict=True)
    return next((told for (path, a), (_, b) in pairs if (told := _leaf_difference(pytree.keystr(path), a, b))), None)


def moved(before: Sequence[Place], after: Sequence[Place]) -> str | None:
    """The first tensor that does not lie where it lay, in words; None where all do."""
    if len(before) != len(after):
        return f"{len(after)} tensors instead of {len(before)}"
    for index, (one, other) in enumerate(zip(before, after, strict=True)):
        if one != other:
            what = "another address" if one[0] != other[0] else "another shape, stride or dtype"
            return f"{what} for tensor {index}"
    return None


def _leaf_difference(where: str, expected: Any, got: Any) -> str | None:
    if not isinstance(expected, torch.Tensor) or not isinstance(got, torch.Tensor):
        alike = type(expected) is type(got) and expected == got
        return None if alike else f"{got!r} instead of {expected!r}{_at(where)}"
    if expected.shape != got.shape or expected.dtype is not got.dtype:
        return f"{_form(got)} instead of {_form(expected)}{_at(where)}"
    if torch.equal(_bytes(expected), _bytes(got)):
        return None
    return f"{_shown(got)} instead of {_shown(expected)}{_at(where)}"


def _at(where: str) -> str:
    return f" at {where}" if where else ""


def _form(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def _shown(tensor: torch.Tensor) -> str:
    return str(tensor.tolist()) if tensor.numel() <= 8 else f"other values of {_form(tensor)}"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """So that NaN equals itself."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
