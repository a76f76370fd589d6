"""Puts programs together line by line, and knows of each name what it will be.

Each line is also run on the CPU as it is added, twice: as it stands, and with every float in double precision. So the
builder knows shapes and dtypes without any rule of its own, leaves out lines that torch refuses, and measures what
rounding does to a value. Where it does nothing the value is `exact`: only such values may be compared, sorted or turned
into integers, where two machines that round differently would part for good.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch

from tests.fidelity.choices import Choices, chance, pick
from tests.fidelity.program import Statement

HALVES = (torch.float16, torch.bfloat16)
MOST_ELEMENTS = 48
WORST_ROUNDING = 1e-4  # a value that rounding changes by more than this part of its largest element is not built on
LARGEST = 1e6


@attrs.define
class Value:
    """A tensor that the program has a name for: as it stands, and in double precision."""

    name: str
    tensor: torch.Tensor
    double: torch.Tensor
    exact: bool
    half: bool  # whether any number that led here had half precision
    fixed: bool = False  # indices and masks, which nothing writes

    @property
    def tolerance(self) -> str:
        """How its numbers are compared."""
        if not self.tensor.is_floating_point():
            return "exact"
        return "half" if self.half else "exact" if self.exact else "float"


class Rejected(Exception):
    """A line that the program is better without."""


class Builder:
    """A program in the making."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.body: list[Statement] = []
        self.values: dict[str, Value] = {}
        self._open = [self.body]
        self._numbers = itertools.count()

    # -- lines

    def line(self, text: str) -> None:
        """Add a line that makes no tensor that others need."""
        self._open[-1].append(text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Put the lines that are added meanwhile under `header`."""
        inner: list[Statement] = []
        self._open[-1].append([header, inner])
        self._open.append(inner)
        try:
            yield
        finally:
            self._open.pop()

    def name(self, stem: str = "v") -> str:
        """A new name."""
        return f"{stem}{next(self._numbers)}"

    # -- tensors

    def let(self, expression: str, *, exact: bool = False, count: int = 1, stem: str = "v") -> list[Value]:
        """Add a line that gives `count` tensors names. Raises Rejected where torch refuses, or results are unfit."""
        names = [self.name(stem) for _ in range(count)]
        made = self._both(expression)
        pairs = [made] if count == 1 else list(zip(*made, strict=True))
        used = self.used(expression)
        values = [self._judge(name, pair, used, exact) for name, pair in zip(names, pairs, strict=True)]
        self.line(f"{', '.join(names)} = {expression}")
        self.values.update({value.name: value for value in values})
        return values

    def do(self, text: str, *, exact: bool = False) -> None:
        """Add a line that writes into tensors that have names: those whose memory it shares, too."""
        copies = {value.name: (value.tensor, value.double) for value in self.values.values()}
        used, exact_inputs = self.used(text), self._exact_inputs()
        if any(_overlaps(value.tensor) for value in used):
            raise Rejected(text)  # which of several writes is last would be open
        before = {name: (tensor.clone(), double.clone()) for name, (tensor, double) in copies.items()}
        try:
            self._both(text)
            for value in self.values.values():
                self._rejudge(value, used, before[value.name], exact)
        except Rejected:
            for name, (tensor, double) in before.items():
                _write(copies[name][0], tensor)
                _write(copies[name][1], double)
            raise
        if exact_inputs != self._exact_inputs():  # the next replay starts from rounded numbers
            for value in self.values.values():
                value.exact = False
        self.line(text)

    def _exact_inputs(self) -> list[str]:
        return [name for name, value in self.values.items() if value.exact and not name.startswith("v")]

    def forget(self, values: Sequence[Value]) -> None:
        """Delete names."""
        if values:
            self.line("del " + ", ".join(value.name for value in values))
        for value in values:
            del self.values[value.name]

    def used(self, text: str) -> list[Value]:
        """The tensors that `text` names."""
        return [self.values[name] for name in dict.fromkeys(re.findall(r"\w+", text)) if name in self.values]

    def find(self, wanted: Callable[[Value], bool]) -> Value:
        """A tensor, later ones more often. Raises Rejected where there is none."""
        found = [value for value in self.values.values() if wanted(value)]
        if not found:
            raise Rejected
        return pick(self.choices, found[-3:] if chance(self.choices, 50) else found)

    # -- what a line does

    def _both(self, text: str) -> tuple[Any, Any]:
        try:
            with _warnings_as_errors():
                made = self._evaluate(text, {name: value.tensor for name, value in self.values.items()})
                doubles = {name: value.double for name, value in self.values.items()}
                with _double_by_default():
                    double = self._evaluate(_in_double(text), doubles)
        except Exception as error:
            raise Rejected(text) from error
        return made, double

    def _evaluate(self, text: str, scope: dict[str, Any]) -> Any:
        names = {"torch": torch, "F": torch.nn.functional, **scope}
        text = text.replace('"cuda"', '"cpu"')
        if _is_expression(text):
            return eval(text, names)  # noqa: S307 - a line of the generator's own
        exec(text, names)  # noqa: S102 - likewise
        return None

    def _judge(self, name: str, pair: tuple[Any, Any], used: Sequence[Value], exact: bool) -> Value:
        tensor, double = pair
        if not isinstance(tensor, torch.Tensor) or tensor.shape != double.shape or tensor.numel() > MOST_ELEMENTS:
            raise Rejected(name)
        if tensor.numel() == 0 or tensor.dtype in (torch.complex64, torch.complex128):
            raise Rejected(name)
        half = tensor.dtype in HALVES or any(value.half for value in used)
        keeps = exact and all(value.exact for value in used) and not half
        value = Value(name, tensor, double, keeps, half)
        self._measure(value)
        return value

    def _rejudge(self, value: Value, used: Sequence[Value], before: tuple[torch.Tensor, ...], exact: bool) -> None:
        if value.tensor.shape != before[0].shape:
            raise Rejected(value.name)
        same = torch.equal(value.tensor, before[0]) and torch.equal(value.double, before[1])
        if same and value not in used:
            return
        if value.fixed and not same:
            raise Rejected(value.name)
        half, keeps = value.half, value.exact
        value.half = half or any(each.half for each in used)
        value.exact = keeps and exact and all(each.exact for each in used)
        try:
            self._measure(value)
        except Rejected:
            value.half, value.exact = half, keeps
            raise

    def _measure(self, value: Value) -> None:
        tensor, double = value.tensor, value.double
        if not tensor.is_floating_point():
            if not _agree(tensor, double) and not value.fixed:
                raise Rejected(value.name)  # an integer that rounding decided
            return
        value.exact = value.exact and _agree(tensor, double)
        real, ideal = tensor.double(), double.double()
        finite = torch.isfinite(ideal)
        if not torch.equal(finite, torch.isfinite(real)):
            raise Rejected(value.name)
        largest = float(ideal[finite].abs().max()) if finite.any() else 0.0
        worst = float((real - ideal)[finite].abs().max()) if finite.any() else 0.0
        if largest > LARGEST or worst > (3e-2 if value.half else WORST_ROUNDING) * max(largest, 1e-3):
            raise Rejected(value.name)


def literal(tensor: torch.Tensor) -> str:
    """The Python list that makes `tensor`."""
    return re.sub(r"\b(nan|inf)\b", r'float("\1")', repr(tensor.tolist()))


def _in_double(text: str) -> str:
    return re.sub(r"torch\.(float32|float16|bfloat16)\b", "torch.float64", text).replace(".float()", ".double()")


@contextmanager
def _warnings_as_errors() -> Iterator[None]:
    """Each time, not once in a process: what is left out must not depend on what came before."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        torch.set_warn_always(before)


@contextmanager
def _double_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _is_expression(text: str) -> bool:
    try:
        compile(text, "<line>", "eval")
    except SyntaxError:
        return False
    return True


def _agree(tensor: torch.Tensor, double: torch.Tensor) -> bool:
    left, right = tensor.double(), double.double()
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether several of its elements share memory."""
    memory = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    places = memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return bool(places.unique().numel() < places.numel())


def _write(tensor: torch.Tensor, back: torch.Tensor) -> None:
    if tensor.shape == back.shape and not torch.equal(tensor, back):
        tensor.copy_(back)
