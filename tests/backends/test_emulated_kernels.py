"""Operators that return something else on CUDA than on the CPU: what a recording makes is what CUDA makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.backends.conftest import Record
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.kernels import KERNELS
from tsgraph.backends.emulated.trees import tensors_in

HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture
def rows(backend: EmulatedBackend) -> torch.Tensor:
    """Four rows of six numbers on the device."""
    numbers = torch.linspace(-2, 3, 24).view(4, 6)
    backend.adopt([numbers])
    return numbers


def replayed(record: Record, step: Callable[[], object]) -> tuple[torch.Tensor, ...]:
    """What a step returns, replayed."""
    made: list[object] = []
    record(lambda: made.append(step())).replay()
    return tuple(tensors_in(made))


@pytest.mark.parametrize("dtype", HALVES)
def test_layer_norm_keeps_its_statistics_in_float(record: Record, rows: torch.Tensor, dtype: torch.dtype) -> None:
    """In half precision, and they are those of the numbers that it was given; the output is the CPU's."""
    x = rows.to(dtype)
    output, mean, rstd = replayed(record, lambda: torch.native_layer_norm(rows.to(dtype), [6], None, None, 0.1))
    assert torch.equal(torch.native_layer_norm(x, [6], None, None, 0.1)[0], output)
    assert (torch.float32, torch.float32) == (mean.dtype, rstd.dtype)
    assert torch.allclose(x.float().mean(1, keepdim=True), mean)
    assert torch.allclose((x.float().var(1, unbiased=False, keepdim=True) + 0.1).rsqrt(), rstd)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_keeps_its_statistics_in_float(record: Record, rows: torch.Tensor, training: bool) -> None:
    """In half precision; without training they are the running ones, which the CPU leaves out."""
    mean, variance = rows[0].half(), rows[3].half()

    def step() -> object:
        x, given = rows.half(), (rows[0].half(), rows[3].half())
        return torch.native_batch_norm(x, None, None, *given, training, 0.1, 0.1)

    output, *statistics = replayed(record, step)
    expected = torch.native_batch_norm(rows.half(), None, None, mean, variance, training, 0.1, 0.1)[0]
    assert torch.equal(expected, output)
    assert [(torch.float32, (6,))] * 2 == [(each.dtype, tuple(each.shape)) for each in statistics]
    wanted = rows.half().float().mean(0) if training else rows[0].half().float()
    assert torch.allclose(wanted, statistics[0], rtol=1e-3)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("operator", [torch.native_batch_norm, torch._native_batch_norm_legit])
def test_batch_norm_into_given_outputs(
    record: Record, rows: torch.Tensor, operator: Callable[..., object], training: bool
) -> None:
    """They get what it returns, and those that are empty the shape, too."""

    def step(**out: object) -> object:
        return operator(rows, None, None, rows[0].clone(), rows[3].clone(), training, 0.1, 0.1, **out)

    def fill() -> object:
        return step(out=tuple(rows.new_empty(shape) for shape in ((4, 6), 0, 0)))

    made = replayed(record, fill)
    assert [(4, 6), (6,), (6,)] == [tuple(each.shape) for each in made]
    for expected, actual in zip(replayed(record, step), made, strict=True):
        assert torch.equal(expected, actual)


@pytest.mark.parametrize("count", [0, 2])
def test_geqrf_is_recorded(record: Record, rows: torch.Tensor, count: int) -> None:
    """Though torch has no fake kernel for it: matrices are laid out column by column, as eagerly."""

    def step() -> object:
        return torch.geqrf(rows.expand(2, 4, 6)[:count])

    made, factors = replayed(record, step)
    expected, tau = torch.geqrf(rows.expand(2, 4, 6)[:count])
    assert torch.equal(expected, made)
    assert torch.equal(tau, factors)
    assert count == 0 or expected.stride() == made.stride()


def test_group_norm_keeps_its_statistics_as_the_cpu(record: Record, rows: torch.Tensor) -> None:
    """In the dtype of what it was given: torch has one composition for both."""
    *_, mean, rstd = replayed(record, lambda: torch.native_group_norm(rows.half(), None, None, 4, 6, 1, 2, 0.1))
    assert (torch.float16, torch.float16) == (mean.dtype, rstd.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
def test_embedding_bag_in_any_dtype(
    backend: EmulatedBackend, record: Record, rows: torch.Tensor, dtype: torch.dtype, mode: str, last: bool
) -> None:
    """It is recorded whichever way the CPU would go, and tells of each index its bag, and of each bag its size."""
    places, starts = torch.tensor([3, 1, 0, 2, 2]), torch.tensor([0, 3, 5] if last else [0, 3])
    backend.adopt([places, starts])
    options: Any = {"mode": ("sum", "mean", "max").index(mode), "include_last_offset": last}
    output, bags, sizes, _ = replayed(record, lambda: torch.embedding_bag(rows.to(dtype), places, starts, **options))
    expected = functional.embedding_bag(places, rows.to(dtype), starts, mode=mode, include_last_offset=last)
    assert torch.equal(expected, output)
    assert ([0, 0, 0, 1, 1], [3, 2]) == (bags.tolist(), sizes.tolist()[:2])
    assert len(starts) == len(sizes)


@pytest.mark.parametrize(("dtype", "row"), [(torch.float16, 8), (torch.bfloat16, 8), (torch.float32, 6)])
def test_attention_pads_its_rows(record: Record, rows: torch.Tensor, dtype: torch.dtype, row: int) -> None:
    """To 8 elements in half precision, where CUDA takes flash attention."""

    def step() -> torch.Tensor:
        x = rows.to(dtype)[None, None]
        return functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    (output,) = replayed(record, step)
    assert ((1, 1, 4, 6), (row, 1)) == (tuple(output.shape), output.stride()[2:])
    assert torch.equal(step(), output)


def test_attention_lays_out_as_its_query(record: Record, rows: torch.Tensor) -> None:
    """In half precision: heads before places, where the query has them so, and the other way round."""

    def step(swap: bool) -> torch.Tensor:
        x = torch.zeros(2, 3, 4, 8, dtype=torch.float16, device=rows.device)
        x = x.transpose(1, 2) if swap else x
        return functional.scaled_dot_product_attention(x, x, x)

    for swap, strides in ((False, (96, 32, 8, 1)), (True, (96, 8, 32, 1))):
        assert strides == replayed(record, partial(step, swap))[0].stride()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_lets_nothing_infinite_hide(
    record: Record, rows: torch.Tensor, value: float, dtype: torch.dtype
) -> None:
    """A number that is not finite leads to nan in every row, also where it is masked; the CPU hides some of it."""

    def step() -> torch.Tensor:
        x = rows.to(dtype)[None, None]
        return functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    rows.zero_()
    rows[1, 0] = value
    (output,) = replayed(record, step)
    assert bool(output.isnan().all())
    assert not bool(step().isnan().all())


def test_an_empty_output_is_laid_out_as_the_operands(record: Record, rows: torch.Tensor) -> None:
    """Elementwise operators lay out an empty `out=` as they lay out what they make; other operators, row by row."""
    columns = rows.t()

    def into_nothing(operator: Callable[..., torch.Tensor]) -> torch.Tensor:
        return operator(columns, columns, out=rows.new_empty(0))

    for operator in (torch.mul, torch.add):
        (made,) = replayed(record, partial(into_nothing, operator))
        assert ((6, 4), (1, 6)) == (tuple(made.shape), made.stride())
        assert torch.equal(operator(columns, columns), made)
    (made,) = replayed(record, lambda: torch.cumsum(columns, 0, out=rows.new_empty(0)))
    assert (4, 1) == made.stride()


def test_every_kernel_stands_for_an_operator() -> None:
    """Of this version of torch."""
    assert all(isinstance(operator, torch._ops.OpOverload) for operator in KERNELS)
