"""What most programs are made of: inputs, chains of operators, captures, replays, updates, looks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from tests.fidelity.builder import Builder, Value, literal
from tests.fidelity.choices import Choices, chance, pick, some
from tests.fidelity.filling import change, compute, compute_several
from tests.fidelity.operators import PURE

ROWS, COLUMNS = 4, 6
INDICES = ("rows", "distinct", "cells")
DTYPES = {
    "x": torch.float32,
    "f": torch.float16,
    "q": torch.bfloat16,
    "i": torch.int64,
    "n": torch.int32,
    "b": torch.bool,
}


def inputs(builder: Builder, stems: Sequence[str] = ("x", "x", "i", "b"), special: int = 0) -> list[Value]:
    """Device tensors named x0, x1, i2…, by the first letter's dtype; weights, indices, and a host number `h`.

    `special` percent of the float tensors hold infinities and NaN.
    """
    made = [_input(builder, f"{stem}{number}", DTYPES[stem], special) for number, stem in enumerate(stems)]
    _declare(builder, "w", _floats(builder.choices, (COLUMNS, COLUMNS), torch.float32))
    for name in INDICES:
        _declare(builder, name, _index(builder.choices, name), fixed=True)
    builder.line("h = torch.tensor(0.75)")
    builder.values["h"] = Value(
        "h", torch.tensor(0.75), torch.tensor(0.75).double(), exact=True, half=False, fixed=True
    )
    return made


def numbers(choices: Choices, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers that arithmetic keeps exact: quarters, small integers, truth values."""
    if dtype.is_floating_point:
        return _floats(choices, shape, dtype)
    most = 1 if dtype == torch.bool else 9
    least = 0 if dtype == torch.bool else -3
    return _integers(choices, shape, least, most).to(dtype)


def chain(builder: Builder, length: int, families: Sequence[str] = tuple(PURE), changes: int = 14) -> list[Value]:
    """`length` lines of operators; in `changes` percent they write in place. Gives the tensors made and still named."""
    made: list[Value] = []
    for _ in range(length):
        if chance(builder.choices, changes):
            change(builder)
        elif chance(builder.choices, 8):
            made += compute_several(builder)
        else:
            made += compute(builder, families)
        if made and chance(builder.choices, 12):
            dropped = pick(builder.choices, made)
            made.remove(dropped)
            builder.forget([dropped])
    return made


@contextmanager
def capture(builder: Builder, graph: str, options: str = "", *, new: bool = True) -> Iterator[None]:
    """Capture the lines that are added meanwhile into `graph`, in a pool of its own unless `options` name one."""
    if new:
        builder.line(f"{graph} = torch.cuda.CUDAGraph()")
    with builder.block(f'with attempt("{graph}") as at:'), builder.block(f"with torch.cuda.graph({graph}{options}):"):
        builder.line('at("body")')
        yield
        builder.line('at("end")')


def pool(builder: Builder, name: str) -> str:
    """A new pool by that name; what to add to the options of a capture."""
    builder.line(f"{name} = torch.cuda.graph_pool_handle()")
    return f", pool={name}"


def update(builder: Builder, values: Sequence[Value], percent: int = 60) -> None:
    """New numbers for some inputs, brought into the tensors that there are, in one of the ways that engines use."""
    for value in some(builder.choices, values, percent):
        fresh = literal(renewed(builder.choices, value))
        dtype = f", dtype={value.tensor.dtype}"
        ways = [
            f'{value.name}.copy_(torch.tensor({fresh}{dtype}, device="cuda"))',
            f"{value.name}.copy_(torch.tensor({fresh}))",
        ]
        if value.name not in INDICES and value.tensor.dtype != torch.bool:
            ways += [f"{value.name}.add_(1)", f"{value.name}.fill_(2)", f"{value.name}[0] = 1"]
        builder.line(pick(builder.choices, ways))


def renewed(choices: Choices, value: Value) -> torch.Tensor:
    """Other numbers for an input: indices stay within bounds, and without repeats where they were."""
    if value.name in INDICES:
        return _index(choices, value.name)
    return numbers(choices, tuple(value.tensor.shape), value.tensor.dtype)


def look(builder: Builder, values: Sequence[Value], most: int = 4) -> None:
    """Look at the values of some tensors."""
    for value in values[-most:]:
        builder.line(f'see("{value.name}", "{value.tolerance}")')


def facts(builder: Builder, values: Sequence[Value]) -> None:
    """Look at the layout of some tensors, and whose memory they share."""
    for value in some(builder.choices, values, 30):
        name = value.name
        builder.line(f'fact("layout", lambda: ({name}.shape, {name}.stride(), {name}.is_cuda, {name}.device.type))')
        other = pick(builder.choices, list(builder.values.values())).name
        if other not in (name, "h"):
            builder.line(
                f'fact("shares", lambda: {name}.untyped_storage().data_ptr() == {other}.untyped_storage().data_ptr())'
            )


def replay_with_updates(builder: Builder, graph: str, fed: Sequence[Value], seen: Sequence[Value], times: int) -> None:
    """Replay, look, update the inputs, and again."""
    for turn in range(times):
        if turn:
            update(builder, fed)
        builder.line(f"{graph}.replay()")
        look(builder, seen)


def without(builder: Builder, hidden: Sequence[Value], work: Callable[[], list[Value]]) -> list[Value]:
    """Do `work` as if the program had no names for `hidden`."""
    for value in hidden:
        builder.values.pop(value.name, None)
    try:
        return work()
    finally:
        builder.values.update({value.name: value for value in hidden})


def _input(builder: Builder, name: str, dtype: torch.dtype, special: int) -> Value:
    shape = pick(builder.choices, [(ROWS, COLUMNS), (ROWS, COLUMNS), (ROWS, ROWS), (ROWS,)])
    if dtype.is_floating_point:
        shape = (ROWS, COLUMNS)
    data = numbers(builder.choices, shape, dtype)
    if dtype == torch.float32 and chance(builder.choices, special):
        data[1, 2], data[2, 0], data[0, 0] = float("nan"), float("inf"), float("-inf")
    return _declare(builder, name, data)


def _declare(builder: Builder, name: str, data: torch.Tensor, *, fixed: bool = False) -> Value:
    builder.line(f'{name} = torch.tensor({literal(data)}, dtype={data.dtype}, device="cuda")')
    double = data.double() if data.is_floating_point() else data.clone()
    half = data.dtype in (torch.float16, torch.bfloat16)
    value = Value(name, data, double, exact=not half, half=half, fixed=fixed)
    builder.values[name] = value
    return value


def _index(choices: Choices, name: str) -> torch.Tensor:
    """Every row is in `rows` and `distinct`, so that a line that accepts one accepts all that may follow."""
    order = list(range(ROWS))
    for last in range(ROWS - 1, 0, -1):
        other = choices.number(0, last)
        order[last], order[other] = order[other], order[last]
    if name == "rows":
        order.append(choices.number(0, ROWS - 1))
    if name == "cells":
        return torch.tensor(order)[_integers(choices, (ROWS, COLUMNS), 0, ROWS - 1)]
    return torch.tensor(order)


def _floats(choices: Choices, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (_integers(choices, shape, -10, 10).double() / 4).to(dtype)


def _integers(choices: Choices, shape: tuple[int, ...], least: int, most: int) -> torch.Tensor:
    """Numbers from one choice: hypothesis has few to make smaller, and a program few to make."""
    mixed = torch.arange(1, 1 + math.prod(shape)) + 65_537 * choices.number(0, 9_999)
    for factor in (2_654_435_761, 2_246_822_519, 3_266_489_917):
        mixed = mixed * factor % 2**32
        mixed = mixed ^ (mixed >> 15)
    return (mixed % (most - least + 1) + least).reshape(shape)
