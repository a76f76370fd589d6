"""Operators that return something else on CUDA than on the CPU, as compositions that return what CUDA does.

They are run in the place of the CPU's kernels, and on fake tensors in the place of fake ones. Where values are the
CPU's, they are so bit by bit. Where nothing else is said, what CUDA returns is what torch's fake kernels say of it.
"""

# ruff: noqa: SLF001 - an underscore is part of many an operator's name

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tsgraph.backends.emulated.dispatcher import Operator, handle, named, out_names

aten = torch.ops.aten

Kernel = Callable[..., Any]
_HALVES = (torch.float16, torch.bfloat16)
_MAX_MODE = 2
_ROW = 8  # elements to which flash attention pads a row
_WIDEST_ROW = 256  # elements of the widest row that it takes


def _layer_norm(
    x: torch.Tensor, shape: list[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, ...]:
    """Statistics are float32 for half precision (measured, torch 2.11)."""
    made = aten.native_layer_norm.default(x, shape, weight, bias, eps)
    if x.dtype not in _HALVES:
        return tuple(made)
    return (made[0], *aten.native_layer_norm.default(x.float(), shape, None, None, eps)[1:])


def _batch_norm(operator: Operator, x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    """Statistics are float32 for half precision; without training they are those that it was given, not empty."""
    *_, training, _, eps = args
    made = operator(x, *args)
    if training and x.dtype in _HALVES:
        return (made[0], *aten.native_batch_norm.default(x.float(), None, None, None, None, True, 0.0, eps)[1:])
    return tuple(made) if training else (made[0], *_given_statistics(x, args[2], args[3], eps))


def _batch_norm_without_training(
    x: torch.Tensor, weight: Any, bias: Any, mean: torch.Tensor, variance: torch.Tensor, momentum: float, eps: float
) -> tuple[torch.Tensor, ...]:
    made = aten._native_batch_norm_legit_no_training.default(x, weight, bias, mean, variance, momentum, eps)
    return made[0], *_given_statistics(x, mean, variance, eps)


def _filling(operator: Operator, kernel: Kernel) -> Kernel:
    """`kernel` for an operator that fills given outputs, which take the shapes of what is made."""
    names = out_names(operator)

    def fill(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        outs = tuple(kwargs.pop(name) for name in names)
        for out, made in zip(outs, kernel(*args, **kwargs), strict=True):
            if out.shape != made.shape:
                out.resize_(made.shape)
            out.copy_(made)
        return outs

    return fill


def _geqrf(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Torch has no fake kernel for it: matrices column by column, and a factor for each column or row."""
    if not isinstance(x, FakeTensor):
        return tuple(aten.geqrf.default(x))
    columns = x.new_empty((*x.shape[:-2], x.shape[-1], x.shape[-2])).mT
    return columns, x.new_empty((*x.shape[:-2], min(x.shape[-2:])))


def _given_statistics(
    x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.float32 if x.dtype in _HALVES else x.dtype
    return mean.to(dtype, copy=True), (variance.to(dtype) + eps).rsqrt()


def _layer_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, shape: Any, mean: torch.Tensor, rstd: torch.Tensor, weight: Any, *rest: Any
) -> Any:
    statistics = _as_the_cpu_has_them(x, weight, mean, rstd)
    return aten.native_layer_norm_backward.default(grad, x, shape, *statistics, weight, *rest)


def _batch_norm_backward(grad: torch.Tensor, x: torch.Tensor, weight: Any, *args: Any) -> Any:
    mean, variance, *saved = args[:4]
    statistics = _as_the_cpu_has_them(x, weight, *saved)
    return aten.native_batch_norm_backward.default(grad, x, weight, mean, variance, *statistics, *args[4:])


def _as_the_cpu_has_them(x: torch.Tensor, weight: torch.Tensor | None, *statistics: Any) -> list[Any]:
    """Statistics in the dtype that the CPU's backward kernels want."""
    dtype = x.dtype if weight is None else weight.dtype
    return [each if each is None else each.to(dtype) for each in statistics]


def _embedding_bag(
    operator: Operator, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, ...]:
    """All facts about the bags, whatever the mode and the dtype; those of the highest elements for that mode alone."""
    output, _, _, highest = operator(weight, indices, offsets, *args, **kwargs)
    given = dict(named(operator, (weight, indices, offsets, *args), kwargs))
    dtype = torch.promote_types(indices.dtype, offsets.dtype)
    starts = offsets[: len(offsets) - given.get("include_last_offset", False)].contiguous()
    places = torch.arange(len(indices), dtype=offsets.dtype)
    bags = (torch.searchsorted(starts, places, right=True) - 1).to(dtype)
    counted = (indices != given.get("padding_idx", -1)).to(dtype)
    sizes = torch.zeros_like(offsets, dtype=dtype).index_add(0, bags, counted)
    is_max = given.get("mode", 0) == _MAX_MODE
    return output, bags, sizes, highest.to(dtype) if is_max else indices.new_empty(0, dtype=dtype)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is not finite reaches masked places, too (measured, torch 2.11); rows are laid out as flash attention's."""
    given = {"attn_mask": attn_mask, "scale": scale}
    operator = aten._scaled_dot_product_flash_attention_for_cpu.default
    output, logsumexp = operator(query, key, value, dropout_p, is_causal, **given)
    if not all(map(_is_finite, (query, key, value))):
        grouped = query.shape[-3] != key.shape[-3]
        by_the_book = partial(aten._scaled_dot_product_attention_math.default, query, key, value, dropout_p=dropout_p)
        exact = by_the_book(is_causal=is_causal, enable_gqa=grouped, **given)[0]
        output = torch.where(exact.isnan(), exact, output)
    if _is_flash(query, key, value, is_causal, attn_mask):
        output = _as_rows_of(query, output)
    return output, logsumexp


def _is_finite(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or bool(tensor.isfinite().all())


def _is_flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, mask: Any) -> bool:
    """Whether CUDA takes flash attention, or cuDNN's, which lays out its output alike."""
    plain = mask is None and query.dtype in _HALVES and not (is_causal and query.shape[-2] != key.shape[-2])
    return plain and query.shape[-1] == value.shape[-1] <= _WIDEST_ROW


def _as_rows_of(query: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """`output` in the layout of `query` once its rows are padded."""
    width = query.shape[-1]
    padding = -width % _ROW
    padded = torch.nn.functional.pad(query, (0, padding)) if padding else query
    return torch.empty_like(padded)[..., :width].copy_(output)


_BATCH_NORMS = (aten.native_batch_norm, aten._native_batch_norm_legit)

KERNELS: dict[Operator, Kernel] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_without_training,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten.geqrf.default: _geqrf,
    aten.geqrf.a: _filling(aten.geqrf.a, _geqrf),
    **{each.default: partial(_batch_norm, each.default) for each in _BATCH_NORMS},
    **{each.out: _filling(each.out, partial(_batch_norm, each.default)) for each in _BATCH_NORMS},
    **{each: partial(_embedding_bag, each) for each in (
        aten._embedding_bag.default, aten._embedding_bag_forward_only.default,
    )},
}  # fmt: skip


def device_kernel(operator: Operator) -> Kernel:
    """What to call for an operation on the device."""
    return KERNELS.get(operator) or handle(operator)
