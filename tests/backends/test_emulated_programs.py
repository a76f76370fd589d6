"""Generated programs: what a replay computes is, bit for bit, what the same program computes eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tsgraph.backends.emulated import EmulatedBackend

ROWS, COLUMNS = 4, 6


@attrs.define
class World:
    """What a program works on: ROWS × COLUMNS floats that it changes and adds to, and fixed operands."""

    floats: list[torch.Tensor]
    rows: torch.Tensor
    mask: torch.Tensor
    weight: torch.Tensor
    scalar: torch.Tensor  # zero-dimensional, on the host

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The tensors that a replay reads afresh."""
        return [*self.floats[:2], self.rows, self.mask]


def fresh_inputs(seed: int) -> list[torch.Tensor]:
    """Random inputs, as `World.inputs`."""
    numbers = torch.Generator().manual_seed(seed)
    floats = [torch.randn(ROWS, COLUMNS, generator=numbers) for _ in range(2)]
    rows = torch.randperm(ROWS, generator=numbers)
    return [*floats, rows, torch.randn(ROWS, COLUMNS, generator=numbers) > 0]


def world_of(inputs: list[torch.Tensor], weight: torch.Tensor) -> World:
    """A world over exactly these tensors."""
    return World(list(inputs[:2]), inputs[2], inputs[3], weight, torch.tensor(0.75))


def heads(x: torch.Tensor) -> torch.Tensor:
    """As queries, keys or values of two heads."""
    return x.view(1, ROWS, 2, COLUMNS // 2).transpose(1, 2) if x.is_contiguous() else heads(x.contiguous())


def attend(x: torch.Tensor, y: torch.Tensor, causal: bool) -> torch.Tensor:
    """Attention of the rows of `x` to those of `y`."""
    seen = functional.scaled_dot_product_attention(heads(x), heads(y), heads(y), is_causal=causal)
    return seen.transpose(1, 2).reshape(ROWS, COLUMNS)


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, as models write it."""
    angles = torch.arange(ROWS, device=x.device)[:, None] * torch.arange(COLUMNS // 2, device=x.device) * 0.1
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def assign(target: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """`target[index] = value` as an expression."""
    target[index] = value
    return target


PURE: dict[str, Callable[[World, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda w, x, y: x + y,
    "add scalar": lambda w, x, y: x + 1.5,
    "host scalar": lambda w, x, y: x * w.scalar - y,
    "mul row": lambda w, x, y: x * y[0],
    "where": lambda w, x, y: torch.where(w.mask, x, y),
    "where scalar": lambda w, x, y: torch.where(w.mask, x, 0.5),
    "masked_fill": lambda w, x, y: x.masked_fill(w.mask, float("-inf")).clamp(min=-3),
    "clamp": lambda w, x, y: x.clamp(-1, 1),
    "triu": lambda w, x, y: x.triu(1) + y.tril(),
    "matmul": lambda w, x, y: x @ w.weight,
    "matmul transposed": lambda w, x, y: x.t().contiguous().t() @ w.weight.t(),
    "linear": lambda w, x, y: functional.linear(x, w.weight, y[0]),
    "bmm": lambda w, x, y: torch.bmm(x[None], w.weight[None])[0],
    "einsum": lambda w, x, y: torch.einsum("bi,oi->bo", x, w.weight),
    "softmax": lambda w, x, y: x.softmax(-1),
    "log_softmax": lambda w, x, y: functional.log_softmax(x, dim=0),
    "layer_norm": lambda w, x, y: functional.layer_norm(x, (COLUMNS,), y[0], y[1]),
    "rms_norm": lambda w, x, y: functional.rms_norm(x, (COLUMNS,), y[0]),
    "own rms_norm": lambda w, x, y: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "silu": lambda w, x, y: functional.silu(x) * y,
    "gelu": lambda w, x, y: functional.gelu(x),
    "cumsum": lambda w, x, y: x.cumsum(0),
    "sort": lambda w, x, y: x.sort(dim=1, descending=True).values,
    "argsort": lambda w, x, y: y.gather(1, x.argsort(1)),
    "topk": lambda w, x, y: torch.zeros_like(x).scatter(1, x.topk(2, dim=1).indices, 1.0),
    "argmax": lambda w, x, y: functional.one_hot(x.argmax(-1), COLUMNS).to(x.dtype),
    "rows": lambda w, x, y: x[w.rows],
    "index_select": lambda w, x, y: x.index_select(0, w.rows),
    "embedding": lambda w, x, y: functional.embedding(w.rows, x),
    "gather": lambda w, x, y: x.gather(0, w.rows[:, None].expand(ROWS, COLUMNS)),
    "attention": lambda w, x, y: attend(x, y, causal=False),
    "causal attention": lambda w, x, y: attend(x, y, causal=True),
    "rotate": lambda w, x, y: rotate(x),
    "cat": lambda w, x, y: torch.cat([x[:2], y[2:]]),
    "stack": lambda w, x, y: torch.stack([x, y]).sum(0),
    "split": lambda w, x, y: torch.cat(x.split([1, 3])[::-1]),
    "unbind": lambda w, x, y: torch.stack(list(x)[::-1]),
    "mean": lambda w, x, y: x.mean(dim=0).expand(ROWS, COLUMNS) - x.amax(dim=1, keepdim=True),
    "var": lambda w, x, y: x / (x.var(dim=1, keepdim=True) + 1),
    "half": lambda w, x, y: (x.to(torch.bfloat16) @ w.weight.to(torch.bfloat16)).float(),
    "integers": lambda w, x, y: ((x * 10).to(torch.int32) // 3 % 5).to(x.dtype),
    "compare": lambda w, x, y: ((x > y) & w.mask).to(torch.float32),
    "roll": lambda w, x, y: x.roll(1, 0).flip(1),
    "pad": lambda w, x, y: functional.pad(x[:, :-1], (1, 0)),
    "arange": lambda w, x, y: x + torch.arange(COLUMNS, device=x.device),
    "full": lambda w, x, y: torch.full((ROWS, COLUMNS), 2.0, device=x.device) - x,
    "ones_like": lambda w, x, y: torch.ones_like(x).sub_(y),
    "new_zeros": lambda w, x, y: x.new_zeros(ROWS, COLUMNS).add_(x),
    "host table": lambda w, x, y: x * torch.tensor([2.0, 3.0])[1],
    "out": lambda w, x, y: torch.add(x, y, out=torch.empty(ROWS, COLUMNS, device=x.device)),
    "empty out": lambda w, x, y: torch.mul(x, y, out=torch.empty(0, device=x.device)),
    "clone": lambda w, x, y: x.clone(memory_format=torch.contiguous_format),
}
VIEWS: dict[str, Callable[[World, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "reshape": lambda w, x, y: x.reshape(COLUMNS, ROWS).reshape(ROWS, COLUMNS),
    "transposed": lambda w, x, y: x.t().reshape(ROWS, COLUMNS),
    "expanded": lambda w, x, y: x[1].expand(ROWS, COLUMNS),
    "sliced": lambda w, x, y: x[:, :],
    "flat": lambda w, x, y: x.reshape(-1)[: ROWS * COLUMNS].view(ROWS, COLUMNS),
    "detached": lambda w, x, y: x.detach(),
}
IN_PLACE: dict[str, Callable[[World, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add_": lambda w, x, y: x.add_(y),
    "mul_": lambda w, x, y: x.mul_(w.scalar),
    "copy_": lambda w, x, y: x.copy_(y),
    "row": lambda w, x, y: assign(x, 1, y[0]),
    "column scalar": lambda w, x, y: assign(x, (slice(None), 2), 0.5),
    "masked scalar": lambda w, x, y: assign(x, w.mask, -1.0),
    "indexed": lambda w, x, y: assign(x, w.rows, y),
    "index_put_": lambda w, x, y: x.index_put_((w.rows,), y, accumulate=True),
    "index_copy_": lambda w, x, y: x.index_copy_(0, w.rows, y),
    "index_add_": lambda w, x, y: x.index_add_(0, w.rows, y),
    "index_fill_": lambda w, x, y: x.index_fill_(0, w.rows[:2], 3.0),
    "scatter_": lambda w, x, y: x.scatter_(0, w.rows[None].expand(COLUMNS, ROWS).t(), y),
    "masked_fill_": lambda w, x, y: x.masked_fill_(w.mask, 0.25),
    "augmented": lambda w, x, y: x.__iadd__(1),
    "relu_": lambda w, x, y: x.relu_(),
    "rows zero_": lambda w, x, y: (x[:2].zero_(), x)[1],
}
RANDOM: dict[str, Callable[[World, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rand_like": lambda w, x, y: torch.rand_like(x),
    "randn": lambda w, x, y: torch.randn(ROWS, COLUMNS, device=x.device) + y,
    "dropout": lambda w, x, y: functional.dropout(x, 0.5, training=True),
    "bernoulli": lambda w, x, y: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda w, x, y: y[torch.multinomial(x.nan_to_num().softmax(-1)[0, :ROWS], ROWS, replacement=True)],
    "exponential": lambda w, x, y: x / torch.empty_like(x).exponential_(),
}
OPERATIONS = PURE | VIEWS | IN_PLACE | RANDOM
Program = list[tuple[str, int, int]]
programs: st.SearchStrategy[Program] = st.lists(
    st.tuples(
        st.one_of([st.sampled_from(sorted(table)) for table in (PURE, VIEWS, IN_PLACE, RANDOM)]),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    min_size=1,
    max_size=8,
)


def run(program: Program, world: World) -> list[torch.Tensor]:
    """Run it in `world`: every result is one more float for the operations after it."""
    for name, first, second in program:
        floats = world.floats
        floats.append(OPERATIONS[name](world, floats[first % len(floats)], floats[second % len(floats)]))
    return world.floats


def run_eagerly(program: Program, inputs: list[torch.Tensor], weight: torch.Tensor) -> list[torch.Tensor]:
    """What it computes from copies of `inputs`; random numbers start anew."""
    torch.manual_seed(7)
    return run(program, world_of([tensor.clone() for tensor in inputs], weight))


def assert_same_bits(expected: list[torch.Tensor], actual: list[torch.Tensor]) -> None:
    """Equal shapes, strides, dtypes and bytes; NaN equals itself."""
    for place, (one, other) in enumerate(zip(expected, actual, strict=True)):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride()), place
        as_bytes = [tensor.contiguous().view(torch.uint8) for tensor in (one, other)]
        assert torch.equal(*as_bytes), f"result {place}: {one} != {other}"


def check_program(program: Program, inference: bool) -> None:
    """Record it once, then replay it on new inputs against eager runs."""
    backend, weight = EmulatedBackend(), torch.randn(COLUMNS, COLUMNS, generator=torch.Generator().manual_seed(0))
    static = fresh_inputs(0)
    backend.adopt([weight, *static])
    with torch.inference_mode(inference), torch.no_grad():
        with backend.record(backend.pool()) as graph:
            recorded = run(program, world_of(static, weight))
        assert_same_bits(fresh_inputs(0), static)
        for seed in (1, 2):
            for tensor, value in zip(static, fresh_inputs(seed), strict=True):
                tensor.copy_(value)
            torch.manual_seed(7)
            graph.replay()
            assert_same_bits(run_eagerly(program, fresh_inputs(seed), weight), recorded)


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_each_operation_replays_as_eager(name: str, inference: bool) -> None:
    """One operation alone gives the bits and strides of eager, on every replay, whatever mode it was recorded in."""
    check_program([(name, 0, 1)], inference)


@given(programs, st.booleans())
@settings(max_examples=60)
def test_programs_replay_as_eager(program: Program, inference: bool) -> None:
    """So do programs of them that share, view and overwrite each other's tensors."""
    try:
        with torch.no_grad():
            run_eagerly(program, fresh_inputs(1), torch.zeros(COLUMNS, COLUMNS))
    except (RuntimeError, UserWarning):  # such as an in-place change of an expanded tensor: no program
        return
    check_program(program, inference)
