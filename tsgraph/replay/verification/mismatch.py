"""Where two tensors differ: in which rows, in how many elements, and by how much."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

SHOWN = 8
"""How many rows are named."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@attrs.frozen(kw_only=True)
class Mismatch:
    """How one tensor differs from what was expected.

    `rows`: the first of the `count` rows (along dimension 0) that differ. `elements` differ of `of`, by up to `largest`
    (NaN where one of them is no number); none are counted where only rows are known. `example`: the first of them.
    `form`: dtype and shape, where those differ. `discrete`: they are integers or booleans.
    """

    rows: tuple[int, ...] = ()
    count: int = 0
    elements: int = 0
    of: int = 0
    largest: float = 0.0
    example: str = ""
    form: str = ""
    discrete: bool = False

    def __str__(self) -> str:
        if self.form:
            return self.form
        more = f" and {self.count - len(self.rows)} more" if self.count > len(self.rows) else ""
        rows = f"row{'s' if self.count > 1 else ''} {', '.join(map(str, self.rows))}{more}"
        return (
            f"{rows}: {self.elements} of {self.of} elements, by up to {self.largest:.3g}, {self.example}"
            if self.of
            else rows
        )


def compare(
    expected: torch.Tensor,
    actual: torch.Tensor,
    *,
    tolerance: float | None = None,
    rows: Sequence[int] | None = None,
) -> Mismatch | None:
    """How `actual` differs from `expected`, bit by bit; None where it does not.

    `tolerance`: floats may differ by so much of the largest finite magnitude in either tensor; NaN is then NaN, and
    infinities must be the same. `rows`: what the rows of both are called (None: by their place).
    """
    if (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        return Mismatch(form=f"{_form(actual)} instead of {_form(expected)}")
    one, other = _plain(expected), _plain(actual)
    exact = tolerance is None or not one.is_floating_point()
    wrong = _other_bits(one, other) if exact else _beyond(one, other, tolerance or 0.0)
    return _told(one, other, wrong, rows) if bool(wrong.any()) else None


@attrs.define(eq=False)
class Seen:
    """What tensors of one name have held: whether ever more than one number."""

    first: torch.Tensor | None = None
    varied: bool = False

    def look(self, tensor: torch.Tensor) -> None:
        """Look at one more of them."""
        if not self.varied and tensor.numel():
            words = bits_of(_plain(tensor)).flatten()
            self.first = words[:1].clone() if self.first is None else self.first
            self.varied = bool(words.ne(self.first.to(words.device)).any())


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a contiguous real tensor as integers of their size."""
    return tensor.view(_WORDS[tensor.element_size()])


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Real, contiguous, with rows."""
    plain = tensor.detach()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return (plain if plain.dim() else plain.reshape(1)).contiguous()


def _other_bits(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return bits_of(one).ne(bits_of(other))


def _beyond(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> torch.Tensor:
    first, second = one.double(), other.double()
    finite = first.isfinite() & second.isfinite()
    scale = torch.where(finite, torch.maximum(first.abs(), second.abs()), 0.0).amax() if one.numel() else 0.0
    off = (first - second).abs() > tolerance * scale
    alike = first.eq(second) | (first.isnan() & second.isnan())
    return torch.where(finite, off, ~alike)


def _told(one: torch.Tensor, other: torch.Tensor, wrong: torch.Tensor, names: Sequence[int] | None) -> Mismatch:
    places: list[int] = wrong.reshape(len(wrong), -1).any(1).nonzero().flatten().tolist()
    called = places[:SHOWN] if names is None else [names[place] for place in places[:SHOWN]]
    off = (one[wrong].double() - other[wrong].double()).abs()
    return Mismatch(
        rows=tuple(called),
        count=len(places),
        elements=int(wrong.sum()),
        of=wrong.numel(),
        largest=float("nan") if bool(off.isnan().any()) else float(off.max()),
        example=_example(one, other, wrong, names),
        discrete=not one.is_floating_point(),
    )


def _example(one: torch.Tensor, other: torch.Tensor, wrong: torch.Tensor, names: Sequence[int] | None) -> str:
    at = tuple(wrong.nonzero()[0].tolist())
    called = [at[0] if names is None else names[at[0]], *at[1:]]
    return f"first at {called}: {one[at].item():.6g} expected, {other[at].item():.6g} got"
