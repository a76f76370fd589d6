"""Batches for the buffers of a runtime: what live rows hold, how many there are, and how that changes.

A batch is drawn as a few numbers, a `Recipe`, from which every row follows: quick to draw, and simple to make smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd
from typing import Any

import attrs
import torch
from hypothesis import strategies as st

from tsgraph.buffers.contract import Field, resolve_fields
from tsgraph.errors import BadBatch
from tsgraph.keys import Geometry
from tsgraph.spec.model import Spec

Sources = dict[str, Any]
"""What a call passes: a tensor for each buffer, or a dict of tensors by group."""

FLOATS = (1.0, 0.0, -1.0, 0.5, -0.0, 3.0, 1e-3, -2.5, 1e4, 1e-40, -65504.0)
"""Floats that have shown faults: zeros of both signs, a subnormal, numbers that absorb others, the largest half."""


@attrs.frozen
class Values:
    """What elements of a buffer may be in live rows: from `least` to `most`; `distinct`: no two the same in a batch."""

    least: float
    most: float
    distinct: bool = False


@attrs.frozen
class Recipe:
    """A batch in numbers: live `rows`, and the `start` and `stride` at which its values are picked."""

    rows: int = 1
    start: int = 0
    stride: int = 1


def rows_around(sizes: Sequence[int]) -> st.SearchStrategy[int]:
    """Live rows at, just below and just above each size: 1, the sizes, one less, one more."""
    near = {rows for size in sizes for rows in (size - 1, size, size + 1)}
    return st.sampled_from(sorted({1, *near} - {0}))


def recipes(sizes: Sequence[int]) -> st.SearchStrategy[Recipe]:
    """Batches of rows around `sizes`."""
    return st.builds(Recipe, rows_around(sizes), st.integers(0, 30), st.integers(1, 6))


def sequences(sizes: Sequence[int], *, most: int = 4) -> st.SearchStrategy[list[Recipe]]:
    """Up to `most` batches one after the other, growing and shrinking."""
    return st.lists(recipes(sizes), min_size=1, max_size=most)


def batches(
    spec: Spec, geometry: Geometry, sizes: Sequence[int], values: Mapping[str, Values] | None = None
) -> st.SearchStrategy[Sources]:
    """Sources of whole batches for the buffers of `spec` (restricted), as a runtime of `geometry` takes them."""
    fields = resolve_fields(spec.buffers, geometry)
    return recipes(sizes).map(lambda recipe: make_sources(fields, recipe, values or {}))


def make_sources(fields: Iterable[Field], recipe: Recipe, values: Mapping[str, Values]) -> Sources:
    """The host tensors that a recipe stands for. Mirrors take what they mirror, and are left out."""
    sources: Sources = {}
    for number, field in enumerate(fields):
        if field.mirrors is not None:
            continue
        tensor = _make(field, attrs.evolve(recipe, start=recipe.start + number), values.get(field.name))
        if field.group is None:
            sources[field.name] = tensor
        else:
            sources.setdefault(field.name, {})[field.group] = tensor
    return sources


def _make(field: Field, recipe: Recipe, values: Values | None) -> torch.Tensor:
    if field.source == "engine":
        raise BadBatch(f"buffer {field.name!r} is written in place; batches can be made for buffers that calls pass")
    shape = (recipe.rows * field.rows_per_request, *field.shape)
    count = torch.Size(shape).numel()
    palette = _palette(field.dtype, values or _default(field.dtype), count)
    stride = recipe.stride
    while gcd(stride, len(palette)) > 1:  # so that no value comes twice before all have come once
        stride += 1
    picked = [palette[(recipe.start + place * stride) % len(palette)] for place in range(count)]
    return torch.tensor(picked, dtype=field.dtype).reshape(shape)


def _default(dtype: torch.dtype) -> Values:
    if dtype.is_floating_point:
        return Values(-65504.0, 65504.0)
    return Values(0, 1 if dtype is torch.bool else 7)


def _palette(dtype: torch.dtype, values: Values, count: int) -> Sequence[float]:
    if dtype.is_floating_point:
        return [value for value in (*FLOATS, values.least, values.most) if values.least <= value <= values.most]
    palette = list(range(int(values.least), int(values.most) + 1))
    if values.distinct and len(palette) < count:
        raise BadBatch(f"{count} distinct values are needed, but there are {len(palette)}", hint="widen the values")
    return palette[: max(count, 512)] if len(palette) > 512 else palette


def geometries(spec: Spec, sizes: Sequence[int] = (1, 2, 4)) -> st.SearchStrategy[Geometry]:
    """Small geometries for `spec` (restricted): every extent, group and sink that its buffers name."""
    buffers = spec.buffers.values()
    grouped = {name: buffer.grouped for buffer in buffers for name in buffer.shape if isinstance(name, str)}
    group = st.dictionaries(st.sampled_from(("full", "window")), st.integers(1, 4), min_size=1)
    extents = {name: group if many else st.integers(1, 4) for name, many in grouped.items()}
    sinks = {buffer.pad.sink: st.integers(0, 3) for buffer in buffers if buffer.pad.sink is not None}
    conventions = tuple(n for n in ("paged_groups", "flat_groups") if n in {buffer.needs for buffer in buffers})
    return st.builds(
        Geometry,
        rows=st.integers(max(sizes), max(sizes) + 2),
        tokens_per_request=st.integers(1, 3),
        extents=st.fixed_dictionaries(extents),
        sinks=st.fixed_dictionaries(sinks),
        conventions=st.just(conventions),
    )
