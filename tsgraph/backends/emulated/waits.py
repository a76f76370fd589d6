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
from tsgraph.backends.emulated.refusal import ON_DEVICE, UNSUPPORTED, refuse

aten = torch.ops.aten

Given = Mapping[str, Any]
When = Callable[[Given], bool]

_LONGEST_SLICE = 2048  # of those in which one block of threads finds the mode


def _always(_: Given) -> bool:
    return True


def _sorts(given: Given) -> bool:
    """Whether `isin` sorts, and so counts what differs, rather than compare each with each."""
    among, count = given["test_elements"], given["elements"].numel() if "elements" in given else 1
    return count > 0 and among.numel() >= int(10 * count**0.145) and not given.get("assume_unique", False)


def _first(given: Given) -> torch.Tensor:
    tensor: torch.Tensor = next(iter(given.values()))
    return tensor


def _has_elements(given: Given) -> bool:
    return bool(_first(given).numel() > 0)


def _lacks_bounds(given: Given) -> bool:
    return _has_elements(given) and given.get("min", 0) == given.get("max", 0)


def _is_oblong(given: Given) -> bool:
    rows, columns = _first(given).shape[-2:]
    return _has_elements(given) and rows != columns


def _has_several(given: Given) -> bool:
    """Whether it is asked for more than one matrix."""
    batches = (tensor.shape[:-2] for tensor in (given["self"], given.get("input2")) if tensor is not None)
    return bool(torch.broadcast_shapes(*batches).numel() > 1)


def _has_entries(given: Given) -> bool:
    """Matrices of one entry are exponentials of numbers."""
    return _has_elements(given) and _first(given).shape[-1] > 1


def _is_symmetric(given: Given) -> bool:
    return _has_elements(given) and bool(given.get("hermitian", False))


def _is_any_matrix(given: Given) -> bool:
    return _has_elements(given) and not given.get("hermitian", False)


def _checks_lengths(given: Given) -> bool:
    return given.get("lengths") is not None and not given.get("unsafe", False)


def _has_long_slices(given: Given) -> bool:
    x = _first(given)
    return bool(x.dim() > 0 and x.shape[given.get("dim", -1)] > _LONGEST_SLICE)


_WAITS: dict[object, When] = {
    aten._linalg_check_errors.default: _always,
    aten._linalg_eigh.default: _has_elements,
    aten._linalg_eigh.eigenvalues: _has_elements,
    aten.linalg_eig.default: _always,
    aten.linalg_eig.out: _always,
    aten._linalg_eigvals.default: _always,
    aten.linalg_eigvals.out: _always,
    aten.linalg_lu_factor_ex.default: _is_oblong,
    aten.linalg_lu_factor_ex.out: _is_oblong,
    aten.linalg_lu.default: _is_oblong,
    aten.linalg_lu.out: _is_oblong,
    aten.linalg_ldl_factor_ex.default: _has_elements,
    aten.linalg_ldl_factor_ex.out: _has_elements,
    aten.linalg_ldl_solve.default: _has_elements,
    aten.linalg_ldl_solve.out: _has_elements,
    aten.linalg_pinv.atol_rtol_tensor: _is_symmetric,
    aten.linalg_pinv.atol_rtol_tensor_out: _is_symmetric,
    aten.cholesky.default: _has_elements,
    aten.cholesky.out: _has_elements,
    aten.cholesky_inverse.default: _has_several,
    aten.cholesky_inverse.out: _has_several,
    aten.cholesky_solve.default: _has_several,
    aten.cholesky_solve.out: _has_several,
    aten.normal.Tensor_Tensor: _always,
    aten.normal.Tensor_Tensor_out: _always,
    aten.normal.float_Tensor: _always,
    aten.normal.float_Tensor_out: _always,
    aten.isin.Tensor_Tensor: _sorts,
    aten.isin.Tensor_Tensor_out: _sorts,
    aten.isin.Scalar_Tensor: _sorts,
    aten.isin.Scalar_Tensor_out: _sorts,
    aten.mode.default: _has_long_slices,
    aten.mode.values: _has_long_slices,
    aten.segment_reduce.default: _checks_lengths,
    aten._to_sparse.default: _always,
    aten._to_sparse.sparse_dim: _always,
    **dict.fromkeys(BOUNDED_BY_TENSORS, _always),
}

# They read the number that they fill with, where it is a tensor on the device.
_READ_THE_VALUE: set[object] = {
    aten.masked_fill.Tensor,
    aten.masked_fill_.Tensor,
    aten.index_fill.int_Tensor,
    aten.index_fill_.int_Tensor,
}

_VALUE = "use torch.where or index_copy, which read it on the device, or give a Python number"
_BOUNDS = "give it min and max"
_LENGTHS = "give the lengths as Python integers"
_BEFORE = "compute it outside the recording"

# They bring what they want to know to the host by a copy, which torch refuses before CUDA sees it; and what to do.
_COPIES: dict[object, tuple[When, str]] = {
    aten._linalg_svd.default: (_has_elements, _BEFORE),
    aten._linalg_svd.U: (_has_elements, _BEFORE),
    aten.linalg_pinv.atol_rtol_tensor: (_is_any_matrix, _BEFORE),
    aten.linalg_pinv.atol_rtol_tensor_out: (_is_any_matrix, _BEFORE),
    aten.linalg_matrix_exp.default: (_has_entries, _BEFORE),
    aten.bincount.default: (_has_elements, "count into a fixed size, with scatter_add_ or index_add_"),
    aten.histc.default: (_lacks_bounds, _BOUNDS),
    aten.histc.out: (_lacks_bounds, _BOUNDS),
    aten._ctc_loss.Tensor: (_always, _LENGTHS),
}


def refuse_waiting(operation: Operation, on_device: Callable[[torch.Tensor], bool]) -> None:
    """Raises: CaptureUnsupported for an operation with such a kernel."""
    given = operation.arguments()
    if operation.operator in _WAITS and _WAITS[operation.operator](given):
        raise refuse(operation, "it checks a value on the host", ON_DEVICE)
    if operation.operator in _READ_THE_VALUE and on_device(given["value"]):
        raise refuse(operation, "the host reads the value to fill with", _VALUE, cuda=UNSUPPORTED)
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
