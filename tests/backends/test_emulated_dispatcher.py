"""What is read off an operator's schema and kernels."""

from __future__ import annotations

import pytest
import torch

from tsgraph.backends.emulated.dispatcher import (
    Operator,
    is_composite,
    is_view,
    makes_tensor,
    out_names,
    out_variant,
    returns_facts,
    written_names,
    written_returns,
)

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "variant", "outs"),
    [
        (aten.add.Tensor, aten.add.out, ("out",)),
        (aten.topk.default, aten.topk.values, ("values", "indices")),
        (aten.sum.dim_IntList, aten.sum.IntList_out, ("out",)),
        (aten.index.Tensor, aten.index.Tensor_out, ("out",)),
        (aten.zeros.default, aten.zeros.out, ("out",)),
        (aten.arange.start_step, aten.arange.start_out, ("out",)),
        (aten.rand.generator, aten.rand.generator_out, ("out",)),
    ],
    ids=str,
)
def test_finds_the_variant_that_writes_into_given_tensors(
    operator: Operator, variant: Operator, outs: tuple[str, ...]
) -> None:
    """It takes the same arguments, but for what a given tensor settles, and its outputs in order."""
    assert variant is out_variant(operator)
    assert outs == out_names(variant)


@pytest.mark.parametrize("operator", [aten.add_.Tensor, aten.add.out, aten.split.Tensor, aten.equal.default], ids=str)
def test_finds_none_where_nothing_is_to_be_written(operator: Operator) -> None:
    """In-place operators, out variants and operators that return no single tensors have none."""
    assert out_variant(operator) is None


def test_tells_roles_apart() -> None:
    """Compositions, views, factories and questions about metadata."""
    assert is_composite(aten.linear.default)
    assert not is_composite(aten.add.Tensor)
    assert all(map(is_view, (aten.view.default, aten.split.Tensor, aten.t_.default, aten._unsafe_view.default)))
    assert not any(map(is_view, (aten.clone.default, aten.add_.Tensor)))
    assert all(map(makes_tensor, (aten.zeros.default, aten.rand_like.default, aten.new_empty.default)))
    assert not any(map(makes_tensor, (aten._to_copy.default, aten.add.Tensor)))
    assert returns_facts(aten.is_same_size.default)
    assert not any(map(returns_facts, (aten.equal.default, aten.add.Tensor, aten._assert_async.default)))


def test_tells_what_is_written() -> None:
    """The arguments that an operator writes, and which of its returns they are."""
    normalise = aten._native_batch_norm_legit.default
    assert {"running_mean", "running_var"} == written_names(normalise)
    assert (None, None, None) == written_returns(normalise)
    assert ("self",) == written_returns(aten.add_.Tensor)
    assert ("values", "indices") == written_returns(aten.topk.values)
