"""Fills in the places of `operators`' lines with what a program has."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from tests.fidelity.builder import Builder, Rejected, Value
from tests.fidelity.choices import pick
from tests.fidelity.operators import IN_PLACE, PURE, SEVERAL, Operator

TRIES = 12
SCALARS = ("0.5", "2.0", "-1.25", "3", "1")


def compute(builder: Builder, families: Sequence[str] = tuple(PURE)) -> list[Value]:
    """Add a line that makes tensors, of an operator of one of `families`."""
    for _ in range(TRIES):
        operators = PURE[pick(builder.choices, families)]
        try:
            return _add(builder, pick(builder.choices, operators))
        except Rejected:
            continue
    return []


def compute_several(builder: Builder) -> list[Value]:
    """Add a line that makes more than one tensor."""
    for _ in range(TRIES):
        try:
            return _add(builder, pick(builder.choices, SEVERAL))
        except Rejected:
            continue
    return []


def change(builder: Builder) -> None:
    """Add a line that changes a tensor in place."""
    for _ in range(TRIES):
        operator = pick(builder.choices, IN_PLACE)
        try:
            builder.do(fill(builder, operator), exact=operator.exact)
        except Rejected:
            continue
        return


def _add(builder: Builder, operator: Operator) -> list[Value]:
    return builder.let(fill(builder, operator), exact=operator.exact, count=operator.count)


def fill(builder: Builder, operator: Operator) -> str:
    """The operator's line with names of the program in its places. Raises Rejected where something is missing."""
    chosen: dict[str, Value] = {}
    places = set(re.findall(r"\{(\w+)\}", operator.line))
    for place in _FINDERS:
        if place in places:
            chosen[place] = builder.find(lambda value, p=place: _FINDERS[p](value, chosen))  # type: ignore[misc]
    if operator.firm and any(value.tensor.is_floating_point() and not value.exact for value in chosen.values()):
        raise Rejected(operator.line)
    names = {place: value.name for place, value in chosen.items()}
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1]) or _other(builder, match[1], chosen), operator.line)


def _other(builder: Builder, place: str, chosen: dict[str, Value]) -> str:
    subject = next(iter(chosen.values()), None)
    rows = subject.tensor.shape[0] if subject is not None and subject.tensor.dim() else 1
    match place:
        case "s":
            return pick(builder.choices, SCALARS)
        case "d":
            return str(builder.choices.number(0, max(0, subject.tensor.dim() - 1)) if subject else 0)
        case "rows":
            return "rows" if rows >= 4 else f"(rows % {rows})"
        case "distinct":
            return "distinct"
        case "cells":
            return "cells" if rows >= 4 else f"(cells % {rows})"
        case _:
            return place


def _is_float(value: Value) -> bool:
    return value.tensor.is_floating_point()


def _is_integer(value: Value) -> bool:
    return not value.fixed and value.tensor.dtype in (torch.int64, torch.int32)


def _like(value: Value, other: Value | None) -> bool:
    return other is None or (value.tensor.shape == other.tensor.shape and value.tensor.dtype == other.tensor.dtype)


# In the order in which they are chosen: later ones go by earlier ones.
_FINDERS = {
    "x": lambda value, chosen: _is_float(value) and not value.fixed and value.name != "w",
    "y": lambda value, chosen: _is_float(value) and not value.fixed and _like(value, chosen.get("x")),
    "i": lambda value, chosen: _is_integer(value),
    "j": lambda value, chosen: _is_integer(value) and _like(value, chosen.get("i")),
    "b": lambda value, chosen: value.tensor.dtype == torch.bool,
    "m": lambda value, chosen: value.tensor.dtype == torch.bool and value.tensor.shape == chosen["x"].tensor.shape,
    "a": lambda value, chosen: not value.fixed,
    "w": lambda value, chosen: value.name == "w",
}
