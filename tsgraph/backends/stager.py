"""What backends share in bringing rows to static buffers: the host's side of it. Only the kernel is a device's own."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import attrs
import numpy as np
import torch

from tsgraph.backends.ring import CONTROL, HEAD, Ring, keep_until_read, wait_for
from tsgraph.backends.trays import MIRRORED, NOTHING, Form, Layout
from tsgraph.errors import CaptureUnsupported, InternalError
from tsgraph.protocols.backend import Backend, Lane

SOURCE = struct.Struct("<Qqiiii")
CALL = struct.Struct("<qiiQQ")
"""A call begins with the head of a tray, the tray's address and as much unused; a source for each lane follows."""

_NUMBER, _TRAY = 0, 2  # words of a call


class Load:
    """What calls of `live` rows bring for slots of one size. Implements `tsgraph.protocols.backend.Load`.

    `call` is what a launch is told, `head` what a node finds in the tray behind its number. `packed`: whether rows come
    in the tray. `start` launches it.
    """

    __slots__ = ("_columns", "_packed", "call", "head", "layout", "live", "packed", "rooms", "size", "start", "words")

    def __init__(self, layout: Layout, live: int, sources: int) -> None:
        self.layout, self.live, self.rooms, self.size = layout, live, layout.rooms, layout.size
        call: Any = np.zeros(CALL.size + sources * SOURCE.size, np.uint8)
        self.call, self.words = call, memoryview(call).cast("q")
        self.start: Callable[[], None] = _unprepared
        CALL.pack_into(call, 0, 0, layout.size, live, 0, 0)
        self._columns = [NOTHING] * len(layout.forms)
        self._packed = [False] * len(layout.forms)
        for lane in range(len(layout.forms)):
            self.leave(lane)

    def address_of(self, lane: int) -> int:
        """Which of the `words` is the address of the rows of `lane`."""
        return (CALL.size + lane * SOURCE.size) // 8

    def bring(self, lane: int, columns: int, at: int = 0, strides: tuple[int, int, int] = (0, 0, 0)) -> None:
        """The rows of `lane` lie in the tray (`at` 0), or on the device at that address with strides in bytes."""
        self._packed[lane] = at == 0
        self._tell(lane, columns, at, strides)

    def leave(self, lane: int) -> None:
        """No rows are brought for `lane`: those that it mirrors are, or what is there stays."""
        self._packed[lane] = False
        mirrors = self.layout.forms[lane].lane.mirrors
        self._tell(lane, NOTHING if mirrors is None else MIRRORED, 0, (0, 0, 0))

    def _tell(self, lane: int, columns: int, at: int, strides: tuple[int, int, int]) -> None:
        SOURCE.pack_into(self.call, CALL.size + lane * SOURCE.size, at, *strides, columns, 0)
        self._columns[lane] = columns
        self.packed = any(self._packed)
        self.words[_NUMBER] = 0
        self.head = struct.pack(f"<ii{len(self._columns)}i", self.layout.size, self.live, *self._columns)


def _unprepared() -> None:
    raise InternalError("a load was launched that no kernel was prepared for")


class Kernel(Protocol):
    """The kernels of `staging.cu` on one device, put on the caller's current stream."""

    @property
    def hidden(self) -> bool:
        """Whether torch takes tensors of the device for the host's."""

    @property
    def sources(self) -> int:
        """How many lanes a call can tell of."""

    def prepare(self, stager: Stager, load: Load) -> Callable[[], None]:
        """What brings `load`, as its `call` says when it is called. Its number 0: without a tray."""

    def take(self, stager: Stager, layout: Layout) -> None:
        """Take the next tray: a node, in a recording."""

    def copy(self, target: torch.Tensor, address: int, count: int) -> None:
        """Copy `count` bytes of pinned memory to the beginning of `target`, without waiting."""

    def watch(self) -> Callable[[], bool]:
        """What says whether all that is queued on the device by now is done."""


class Stager:
    """The lanes of one runtime. Implements `tsgraph.protocols.backend.Stager`.

    `recording`: the graph that the backend is recording, if any. `state`: where the device counts trays. `landing`:
    where nodes find the tray, if not in the ring.

    `tray` is the ring's `free`, and `send` its `fill` unless the tray must land: a call more would be as dear as they.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        rows: int,
        backend: Backend,
        kernel: Kernel,
        recording: Callable[[], Any],
        reads: Literal["ring", "landing"],
    ) -> None:
        _check_count(len(lanes), kernel.sources)
        self.forms = tuple(Form.of(lane) for lane in lanes)
        self._kernel, self._backend, self._recording = kernel, backend, recording
        self._layouts: dict[int, tuple[Layout, torch.Tensor]] = {}
        stride = Layout.of(self.forms, rows).stride
        stride += -stride % CONTROL
        self.ring = Ring(backend.pin((Ring.bytes_for(stride),), torch.uint8), stride, kernel.watch)
        self.state = backend.allocate((2,), torch.int64, 0)
        self.landing = backend.allocate((stride,), torch.uint8, 0) if reads == "landing" else None
        self.hidden = kernel.hidden
        self.tray = self.ring.free
        self.send = self.ring.fill if self.landing is None else self._send_to_landing
        keep_until_read(self, self.ring)

    def lay_out(self, size: int) -> None:
        """Make what slots of `size` rows need on the device."""
        if size not in self._layouts:
            layout = Layout.of(self.forms, size)
            table = self._backend.allocate((len(layout.table),), torch.uint8, 0)
            with torch.inference_mode(mode=False):
                table.copy_(torch.frombuffer(bytearray(layout.table), dtype=torch.uint8))
            self._layouts[size] = layout, table
            wait_for(self._kernel.watch())  # whichever stream reads it first

    def table(self, layout: Layout) -> torch.Tensor:
        """What the kernels are told of the lanes, on the device."""
        return self._layouts[layout.size][1]

    def load(self, size: int, live: int) -> Load:
        """What calls of `live` rows bring for a slot of `size` rows: as yet, no rows for any lane."""
        self.lay_out(size)
        load = Load(self._layouts[size][0], live, self._kernel.sources)
        load.start = self._kernel.prepare(self, load)
        return load

    def room(self, load: Load, lane: int, shape: Sequence[int]) -> torch.Tensor:
        """The rows of `lane` in the tray to fill, as a tensor of its dtype."""
        dtype, start = self.forms[lane].lane.target.dtype, self.ring.place() + load.rooms[lane]
        with torch.inference_mode(mode=False):
            taken = self.ring.memory[start : start + math.prod(shape) * dtype.itemsize]
            return taken.view(dtype).view(tuple(shape))

    def launch(self, load: Load) -> None:
        """Bring what is in the tray and on the device now, in one launch on the caller's current stream."""
        ring = self.ring
        ring.filled = 0  # what an earlier call sent, and nothing replayed, is void
        if not load.packed:
            load.start()
            return
        words = load.words
        words[_TRAY], words[_NUMBER] = ring.tray, ring.number
        load.start()
        ring.advance()

    def _send_to_landing(self, load: Load) -> None:
        self.ring.fill(load)
        if self.landing is not None:
            self._kernel.copy(self.landing, self.ring.tray, load.layout.stride)

    def send_nothing(self, size: int) -> None:
        """The next replay of a graph with a node for this size brings nothing."""
        self.ring.fill_empty(size)
        if self.landing is not None:
            self._kernel.copy(self.landing, self.ring.tray, HEAD.size)

    def withdraw(self) -> None:
        """What was sent, and nothing replayed, is void."""
        self.ring.filled = 0

    def record(self, size: int) -> None:
        """Put a node into the recording under way. Raises: CaptureUnsupported outside of one of the backend's."""
        graph = self._recording()
        if graph is None or not self._backend.recording:
            raise CaptureUnsupported("a staging node belongs into a recording", hint="record with Backend.record")
        self._kernel.take(self, self._layouts[size][0])
        graph.feed = Feed(self, self.ring, size)

    def memory(self) -> Mapping[str, torch.Tensor]:
        """The ring and what the device counts in, the landing if there is one, and the tables of sizes, by name."""
        return dict(self._memory())

    def _memory(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "staging ring", self.ring.memory
        yield "staging state", self.state
        if self.landing is not None:
            yield "staging landing", self.landing
        for size, (_, table) in self._layouts.items():
            yield f"staging lanes of {size}", table


@attrs.define(eq=False, slots=True)
class Feed:
    """What a graph with a staging node does around its replays: each takes one tray of the `ring`."""

    stager: Stager
    ring: Ring
    size: int

    def offer(self) -> None:
        """Before a replay: an empty tray, unless one was sent for it. Raises: InternalError, like `Ring.free`."""
        if self.ring.filled != self.size:
            self.stager.send_nothing(self.size)

    def recount(self) -> None:
        """The replay is over, well or not, on a device that works at once."""
        self.ring.resume()


def _check_count(lanes: int, most: int) -> None:
    if lanes > most:
        what = f"{lanes} static buffers are more than the {most} that one launch can bring rows to"
        raise CaptureUnsupported(what, hint='declare staging = "copies" in the policy')
