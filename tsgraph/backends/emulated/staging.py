"""`staging.cu` on the emulated device: the same tables, trays and calls, read by address and brought by numpy."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
import numpy as np
import torch

from tsgraph.backends.blame import user_line
from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.dispatch_state import DispatchState
from tsgraph.backends.emulated.dispatcher import unseen_by_functions, unseen_by_operators
from tsgraph.backends.emulated.hazards import Access
from tsgraph.backends.emulated.nodes import Launch
from tsgraph.backends.emulated.refusal import refuse
from tsgraph.backends.emulated.streams import access, current_stream
from tsgraph.backends.emulated.trace import Node
from tsgraph.backends.ring import CONTROL, HEAD, TRAYS
from tsgraph.backends.stager import CALL, SOURCE, Load, Stager
from tsgraph.backends.trays import LANE, MIRRORED, NOTHING, Layout

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_STATE = struct.Struct("<qq")
_TAKE = "tsgraph.take"


@attrs.frozen
class _Lane:
    """One row of a table, in the words of `staging.cu`."""

    pad: bytes
    column_pad: bytes
    target: int
    room: int
    bytes: int
    entry: int
    line: int
    item: int
    entries: int
    unit: int
    mirrors: int


@attrs.frozen
class _Source:
    """Where the rows of a lane lie: an address and strides in bytes, of which `columns` of each line are brought."""

    at: int
    entry: int
    line: int
    element: int
    columns: int

    @classmethod
    def dense(cls, lane: _Lane, at: int, columns: int) -> _Source:
        return cls(at, lane.entry // lane.line * columns if lane.line else 0, columns, lane.item, columns)


class EmulatedKernel:
    """Implements `tsgraph.backends.stager.Kernel`. Work is done where it is asked for, or recorded."""

    sources = 120
    hidden = True

    def prepare(self, stager: Stager, load: Load) -> Callable[[], None]:
        """What brings `load`, as its `call` then says. It raises CaptureUnsupported in a recording or host function."""

        def launch() -> None:
            current.refuse_inside("staging a call", "serve it before or after the recording")
            self.bring_now(stager, load)

        return launch

    def take(self, stager: Stager, layout: Layout) -> None:
        """Record the node, with the memory that it touches."""
        stream = current_stream()
        capture, run = stream.capture, partial(self.take_now, stager, layout)
        if capture is None:
            raise refuse(_TAKE, "it belongs into a recording", "record with EmulatedBackend.record")
        capture.refuse_if_invalid(_TAKE)
        state = DispatchState(inference=False, grad=True, default=torch.get_default_dtype(), autocast=())
        with unseen_by_functions(), unseen_by_operators():
            node = capture.append(stream, Node(_TAKE, user_line()), _touched(stager, layout))
        capture.launches.append(Launch(node, state, run, run))

    def bring_now(self, stager: Stager, load: Load) -> None:
        """What a launch runs."""
        _bring(stager, load)

    def take_now(self, stager: Stager, layout: Layout) -> None:
        """What the node runs, at each replay."""
        _take(stager, layout)

    def copy(self, target: torch.Tensor, address: int, count: int) -> None:
        """Copy the bytes."""
        _bytes(target.data_ptr(), (count,), (1,))[:] = _bytes(address, (count,), (1,))

    def watch(self) -> Callable[[], bool]:
        """Everything that was asked for is done."""
        return _always


def _always() -> bool:
    return True


def _touched(stager: Stager, layout: Layout) -> Iterator[Access]:
    for memory in stager.memory().values():
        yield from access(memory, writes=memory is stager.state or memory is stager.ring.memory)
    for form in layout.forms:
        yield from access(form.lane.target[: layout.size * form.lane.per_row], writes=True)


def _take(stager: Stager, layout: Layout) -> None:
    """Take the next tray of the ring, or the landing, if it was filled for this size."""
    taken, ring = _STATE.unpack(_memory(stager.state.data_ptr(), _STATE.size))[0], stager.ring
    number = taken + 1
    tray = ring.trays_at + (number & (TRAYS - 1)) * ring.stride
    tray = tray if stager.landing is None else stager.landing.data_ptr()
    found, size, live = HEAD.unpack(_memory(tray, HEAD.size))
    there = found == number and (live < 0 or size == layout.size)
    if there and live >= 0:
        lanes = _lanes(stager, layout)
        told = struct.unpack(f"<{len(lanes)}i", _memory(tray + HEAD.size, 4 * len(lanes)))
        sources = [_Source.dense(lane, tray + lane.room, columns) for lane, columns in zip(lanes, told, strict=True)]
        _bring_all(lanes, sources, live)
    _leave(stager, number, taken=there)


def _bring(stager: Stager, load: Load) -> None:
    number, _, live, tray, _ = CALL.unpack_from(load.call)
    lanes, sources = _lanes(stager, load.layout), []
    for place, lane in enumerate(lanes):
        at, entry, line, element, columns, _ = SOURCE.unpack_from(load.call, CALL.size + place * SOURCE.size)
        source = _Source(at, entry, line, element, columns) if at else _Source.dense(lane, tray + lane.room, columns)
        sources.append(source)
    _bring_all(lanes, sources, live)
    if number:
        _leave(stager, number, taken=True)


def _bring_all(lanes: list[_Lane], sources: list[_Source], live: int) -> None:
    for place, lane in enumerate(lanes):
        source, mirrored = sources[place], lane
        if source.columns == MIRRORED:
            source, mirrored = sources[lane.mirrors], lanes[lane.mirrors]
        if source.columns == NOTHING:
            source = _Source.dense(lane, 0 if mirrored is lane else mirrored.target, lane.line)
        if lane.bytes:
            _bring_lane(lane, source, live)


def _bring_lane(lane: _Lane, source: _Source, live: int) -> None:
    """Live rows, then column margins, then the tail."""
    lines, items = lane.entry // lane.line, lane.line // lane.item
    shape, strides = (lane.bytes // lane.entry, lines, items, lane.item), (lane.entry, lane.line, lane.item, 1)
    target, rows, columns = _bytes(lane.target, shape, strides), live * lane.entries, source.columns // lane.item
    _fill_tail(target, rows, lane.pad)
    if source.at:
        brought = (source.entry, source.line, source.element, 1)
        target[:rows, :, :columns] = _bytes(source.at, (rows, lines, columns, lane.item), brought)
        _fill_margin(target, rows, columns, lane.column_pad)


def _fill_tail(target: _Bytes, rows: int, pad: bytes) -> None:
    target[rows:] = _pattern(pad, target.shape[-1])


def _fill_margin(target: _Bytes, rows: int, columns: int, pad: bytes) -> None:
    target[:rows, :, columns:] = _pattern(pad, target.shape[-1])


def _leave(stager: Stager, number: int, *, taken: bool) -> None:
    """The device counts the tray, and tells the host: how far it is, or that one was missed."""
    told = _memory(stager.ring.base, CONTROL).cast("q")
    if taken:
        _memory(stager.state.data_ptr(), _STATE.size).cast("q")[0] = told[0] = number
    else:
        told[1] += 1


def _lanes(stager: Stager, layout: Layout) -> list[_Lane]:
    table = _memory(stager.table(layout).data_ptr(), len(layout.table))
    return [_Lane(*words) for words in LANE.iter_unpack(table)]


def _pattern(pad: bytes, item: int) -> _Bytes:
    return np.frombuffer(pad, np.uint8, item)


def _memory(address: int, count: int) -> memoryview:
    span: Any = _bytes(address, (count,), (1,))
    return memoryview(span)


def _bytes(address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> _Bytes:
    """Memory by its address, as a kernel sees it."""
    return np.asarray(_Span(address, shape, strides))


@attrs.frozen
class _Span:
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "data": (self.address, False),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": "|u1",
        }
