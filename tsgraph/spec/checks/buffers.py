"""Buffers: every one has a pad, and what it is filled with fits its dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tsgraph.spec.checks.names import undeclared, unneeded
from tsgraph.spec.model import Buffer, Spec

INTEGERS = {f"{sign}int{bits}": (sign, bits) for sign in ("u", "") for bits in (8, 16, 32, 64)}
FLOATS = {
    "float16": (11, 65504.0),
    "bfloat16": (8, float.fromhex("0x1.fep127")),
    "float32": (24, float.fromhex("0x1.fffffep127")),
    "float64": (53, math.inf),
}
"""Bits of precision, and the largest finite number."""


def check_buffers(spec: Spec) -> Iterator[str]:
    """Every buffer has a pad, a known dtype and values that it can hold, and mirrors one that is always there."""
    for buffer in spec.buffers.values():
        at = f"buffers.{buffer.name}"
        yield from unneeded(at, buffer.needs)
        yield from _pad(at, buffer)
        yield from _shape(at, buffer)
        yield from _values(at, buffer)
        yield from _mirror(f"{at}.mirrors", buffer, spec)


def _pad(at: str, buffer: Buffer) -> Iterator[str]:
    pad = buffer.pad
    if pad.value is None and not pad.sink:
        yield f"{at}.pad: missing; rows beyond the live ones would keep what an earlier step left there (B1)"
    elif pad.value is not None and pad.sink:
        yield f"{at}.pad: a value and a sink; only one can be in a row"
    if pad.sink and (buffer.dtype in FLOATS or buffer.dtype == "bool"):
        yield f"{at}.pad.sink: a sink is an index, and {buffer.dtype} cannot hold one"


def _shape(at: str, buffer: Buffer) -> Iterator[str]:
    for extent in buffer.shape:
        if isinstance(extent, int) and extent < 1:
            yield f"{at}.shape: {extent} is no extent"
        elif isinstance(extent, str) and not extent.isidentifier():
            yield f"{at}.shape: {extent!r} is no name of an extent"
    if buffer.column_pad is not None and not buffer.shape:
        yield f"{at}.column_pad: rows without a shape have no columns"
    if not buffer.read_by:
        yield f"{at}.read_by: nobody reads it"


def _values(at: str, buffer: Buffer) -> Iterator[str]:
    yield from undeclared(f"{at}.dtype", "dtype", [buffer.dtype], ["bool", *INTEGERS, *FLOATS])
    for key, value in _written(buffer).items():
        if value is not None and not isinstance(value, str) and not _fits(value, buffer.dtype):
            yield f"{at}.{key}: {value!r} does not fit into {buffer.dtype}"
    for key in ("warm", "probe"):
        if isinstance(getattr(buffer, key), str) and buffer.dtype == "bool":
            yield f"{at}.{key}: a number of tokens does not fit into bool"


def _written(buffer: Buffer) -> dict[str, float | bool | str | None]:
    """What is written into the buffer, by its key."""
    return {"pad": buffer.pad.value, **{key: getattr(buffer, key) for key in ("column_pad", "warm", "probe")}}


def _fits(value: float | bool, dtype: str) -> bool:
    """Whether a tensor of `dtype` holds `value` as it is; fractions may be rounded, whole numbers may not."""
    if dtype == "bool" or isinstance(value, bool):
        return dtype == "bool" and isinstance(value, bool)
    if dtype in INTEGERS:
        return isinstance(value, int) and _fits_integer(value, *INTEGERS[dtype])
    return dtype not in FLOATS or _fits_float(value, *FLOATS[dtype])


def _fits_integer(value: int, sign: str, bits: int) -> bool:
    return 0 <= value < 1 << bits if sign else -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def _fits_float(value: float, precision: int, largest: float) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value) or abs(value) <= largest
    odd = value // (value & -value) if value else 0
    return odd.bit_length() <= precision and abs(value) <= largest


def _mirror(at: str, buffer: Buffer, spec: Spec) -> Iterator[str]:
    if buffer.mirrors is None:
        return
    yield from undeclared(at, "buffer", [buffer.mirrors], spec.buffers)
    other = spec.buffers.get(buffer.mirrors)
    if other is not None:
        yield from (f"{at}: {what}" for what in _mirror_problems(buffer, other))


def _mirror_problems(buffer: Buffer, other: Buffer) -> Iterator[str]:
    if other.mirrors is not None:
        yield f"{other.name!r} is a mirror itself; mirror what it mirrors"
    for key in ("dtype", "per", "shape", "grouped"):
        if getattr(buffer, key) != getattr(other, key):
            yield f"the {key} of {other.name!r} is {getattr(other, key)!r}, not {getattr(buffer, key)!r}"
    if other.needs not in (None, buffer.needs):
        yield f'{other.name!r} is absent without "{other.needs}"; add needs = "{other.needs}"'
