"""Where the rows of one call lie in a tray, and what a kernel is told of each static buffer; see `staging.cu`."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import attrs
import torch

from tsgraph.backends.ring import HEAD
from tsgraph.errors import CaptureUnsupported
from tsgraph.protocols.backend import Lane

NOTHING, MIRRORED = -1, -2
"""What is said of a lane in place of the bytes of its lines: no rows are brought; those of the lane it mirrors are."""

LANE = struct.Struct("<16s16sQIIIIIIIi8x")
_WIDEST, _MOST = 16, 1 << 31
_HINT = 'declare staging = "copies" in the policy'


@attrs.frozen
class Form:
    """The bytes of one lane: of an `entry`, of a `line` of it (its last dimension), of an `item`, and pads as items."""

    lane: Lane
    entry: int
    line: int
    item: int
    pad: bytes
    column_pad: bytes

    @classmethod
    def of(cls, lane: Lane) -> Form:
        """That of `lane`. Raises: CaptureUnsupported for a buffer that no kernel can address so."""
        item, shape = lane.target.dtype.itemsize, lane.target.shape[1:]
        if not lane.target.is_contiguous() or lane.target.nbytes >= _MOST or lane.target.data_ptr() % item:
            what = f"static buffer {lane.name!r} is not contiguous, not aligned, or has 2 GiB or more"
            raise CaptureUnsupported(what, hint=_HINT)
        column_pad = lane.pad if lane.column_pad is None else lane.column_pad
        pads = (_bytes_of(pad, lane.target.dtype) for pad in (lane.pad, column_pad))
        return cls(lane, math.prod(shape) * item, (shape[-1] if shape else 1) * item, item, *pads)

    def extent(self, rows: int) -> int:
        """Bytes of so many rows."""
        return rows * self.lane.per_row * self.entry

    @property
    def unit(self) -> int:
        """The most bytes that can be written at once wherever a line begins."""
        start = self.lane.target.data_ptr() | self.line | _WIDEST
        return max(start & -start, 1) if self.line else 1

    def packed(self, room: int, rows: int) -> bytes:
        """What the kernel is told of it, for slots of `rows` rows."""
        lane, repeats = self.lane, _WIDEST // self.item
        pads, mirrors = (self.pad * repeats, self.column_pad * repeats), -1 if lane.mirrors is None else lane.mirrors
        sizes = (self.extent(rows), self.entry, self.line, self.item, lane.per_row, self.unit)
        return LANE.pack(*pads, lane.target.data_ptr(), room, *sizes, mirrors)


@attrs.frozen(eq=False)
class Layout:
    """All lanes for slots of `size` rows. `rooms`: where in a tray the rows of each begin (0: nowhere).

    `stride`: bytes of a tray. `units`: how many threads can write one each, of all lanes. `longest`: of the lane that
    has most of them.
    """

    size: int
    forms: tuple[Form, ...]
    rooms: tuple[int, ...]
    stride: int
    table: bytes
    units: int
    longest: int

    @classmethod
    def of(cls, forms: Sequence[Form], size: int) -> Layout:
        """The rows of each lane behind those of the one before, each where any kernel can read them."""
        rooms, end = [], _aligned(HEAD.size + 4 * len(forms))
        for form in forms:
            rooms.append(0 if form.lane.in_place else end)
            end = _aligned(end + (0 if form.lane.in_place else form.extent(size)))
        table = b"".join(form.packed(room, size) for form, room in zip(forms, rooms, strict=True))
        units = [form.extent(size) // form.unit for form in forms]
        return cls(size, tuple(forms), tuple(rooms), end, table, sum(units), max(units, default=0))


def _aligned(end: int) -> int:
    return end + -end % _WIDEST


def _bytes_of(value: float, dtype: torch.dtype) -> bytes:
    with torch.inference_mode(mode=False):
        return bytes(torch.full((1,), value, dtype=dtype, device="cpu").view(torch.uint8).numpy())
