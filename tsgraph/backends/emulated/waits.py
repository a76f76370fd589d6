"""Operations whose CUDA kernels wait for the device though the shape of what they return is known, and why.

Measured on a GPU with torch 2.11, and told by its sources. Later versions may wait less: torch 2.13 has `isin` without.
"""

# ruff: noqa: SLF001 - an underscore is part of many an operator's name

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tsgraph.backends.emulated.copies import refuse_pageable
from tsgraph.backends.emulated.operation import Operation
from tsgraph.backends.emulated.operators import BOUNDED_BY_TENSORS
from tsgraph.backends.emulated.refusal import ON_DEVICE, refuse

aten = torch.ops.aten

Given = Mapping[str, Any]
When = Callable[[Given], bool]


def _always(_: Given) -> bool:
    return True


def _sorts(given: Given) -> bool:
    """Whether `isin` sorts, and so counts what differs, rather than compare each with each."""
    among, count = given["test_elements"], given["elements"].numel() if "elements" in given else 1
    return count > 0 and among.numel() >= int(10 * count**0.145) and not given.get("assume_unique", False)


def _has_elements(given: Given) -> bool:
    return bool(given["self"].numel() > 0)


def _lacks_bounds(given: Given) -> bool:
    return _has_elements(given) and given.get("min", 0) == given.get("max", 0)


_WAITS: dict[object, When] = {
    aten._linalg_check_errors.default: _always,
    aten._linalg_svd.default: _always,
    aten._linalg_eigh.default: _always,
    aten.normal.Tensor_Tensor: _always,
    aten.normal.float_Tensor: _always,
    aten.cholesky.default: _has_elements,
    aten.cholesky.out: _has_elements,
    aten.isin.Tensor_Tensor: _sorts,
    aten.isin.Tensor_Tensor_out: _sorts,
    aten.isin.Scalar_Tensor: _sorts,
    aten.isin.Scalar_Tensor_out: _sorts,
    aten._to_sparse.default: _always,
    aten._to_sparse.sparse_dim: _always,
    **dict.fromkeys(BOUNDED_BY_TENSORS, _always),
}

_BOUNDS = "give it min and max"
_LENGTHS = "give the lengths as Python integers"

# They bring what they want to know to the host by a copy, which torch refuses before CUDA sees it; and what to do.
_COPIES: dict[object, tuple[When, str]] = {
    aten.histc.default: (_lacks_bounds, _BOUNDS),
    aten.histc.out: (_lacks_bounds, _BOUNDS),
    aten._ctc_loss.Tensor: (_always, _LENGTHS),
}


def refuse_waiting(operation: Operation) -> None:
    """Raises: CaptureUnsupported for an operation with such a kernel."""
    given = operation.arguments()
    if operation.operator in _WAITS and _WAITS[operation.operator](given):
        raise refuse(operation, "it checks a value on the host", ON_DEVICE)
    copies, hint = _COPIES.get(operation.operator, (None, ""))
    if copies is not None and copies(given):
        why = "the host reads what it was given by a copy to pageable memory"
        raise refuse_pageable(operation, why, hint)


def knows_answer(operation: Operation) -> bool:
    """Whether it compares tensors that shapes tell apart, or that hold nothing: no kernel runs."""
    if operation.operator is not aten.equal.default:
        return False
    one, other = operation.args
    return bool(one.shape != other.shape or one.numel() == 0)
