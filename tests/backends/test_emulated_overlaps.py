"""Writes into memory that several elements share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.backends.conftest import Record

Step = Callable[[torch.Tensor], torch.Tensor]
REFUSED: dict[str, Step] = {
    "expanded": lambda x: x[:1].expand(3).add_(1),
    "expanded out": lambda x: torch.mul(x[:3], 2, out=x[:1].expand(3)),
    "shifted": lambda x: x[1:].mul_(x[:-1]),
    "copied onto itself": lambda x: x[1:].copy_(x[:-1]),
}
ALLOWED: dict[str, Step] = {
    "filled": lambda x: x[:1].expand(3).fill_(2),
    "beside": lambda x: x[:2].mul_(x[2:]),
    "in turn": lambda x: x[::2].mul_(x[1::2]),
    "the same": lambda x: x.mul_(x),
}


@pytest.mark.parametrize("step", REFUSED.values(), ids=REFUSED)
def test_refuses_what_torch_refuses(record: Record, x: torch.Tensor, step: Step) -> None:
    """With torch's own error, at the operation."""
    with pytest.raises(RuntimeError, match="single memory location"):
        record(lambda: step(x))
    with pytest.raises(RuntimeError, match="single memory location"):
        step(x)


@pytest.mark.parametrize("step", ALLOWED.values(), ids=ALLOWED)
def test_records_what_torch_allows(record: Record, x: torch.Tensor, step: Step) -> None:
    """And leaves the tensor as it is until the replay."""
    x.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    expected = x.clone()
    graph = record(lambda: step(x))
    assert torch.equal(expected, x)
    graph.replay()
    step(expected)
    assert torch.equal(expected, x)
