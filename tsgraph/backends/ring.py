"""Pinned trays in a circle, through which rows of the host reach kernels: filled by the host, taken by the device.

Trays are numbered from 1. Each launch that takes one takes the next, in the order of launches; a graph with a staging
node is such a launch, so one is filled before every replay, an empty one if nothing is staged. The device counts what
it takes and says in pinned memory how far it is. So a tray is never filled before it was read (fault D4), no launch can
meet the rows of another, and as long as the host is less than a circle ahead nobody waits.

A launch that fails took nothing: the next call fills the same tray again. A replay past the backend finds no tray of
its number, leaves the buffers as they are and counts as missed, which the next call tells.
"""

from __future__ import annotations

import ctypes
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from tsgraph.errors import InternalError

TRAYS = 8
"""How many replays the host may be ahead of the device without waiting. A power of two."""

HEAD = struct.Struct("<qii")
"""A tray begins with its number, the size of the slot that it is for, and the live rows; see `staging.cu`."""

CONTROL = 64
"""Bytes before the trays: two numbers that the device writes."""

_TAKEN, _MISSED = 0, 1
_WORD, _LAST = 8, TRAYS - 1
_ALIGNED = 64
_SHORTEST, _LONGEST = 20e-6, 1e-3

Watch = Callable[[], Callable[[], bool]]
"""Makes what says whether all work that is queued on the device by now is done. That call raises what the work did."""


def bytes_at(count: int) -> Callable[[int], Any]:
    """What gives the `count` bytes at an address. To set their `raw` is the cheapest way to copy: no call of C's."""
    kind: Any = ctypes.c_char * count
    found: Callable[[int], Any] = kind.from_address
    return found


class Filling(Protocol):
    """What is told of a tray."""

    @property
    def size(self) -> int:
        """The size of the slot that it is for."""

    @property
    def head(self) -> bytes:
        """What follows its number."""


class _Empty(NamedTuple):
    size: int
    head: bytes = struct.pack("<ii", 0, -1)


class Ring:
    """The trays of one runtime, of `stride` bytes each. `memory`: pinned and zeroed, as long as `bytes_for` says.

    `base` is the address of the control words, `trays_at` that of the first tray. `number` is that of the next tray,
    and `filled` the size of the slot that it was filled for, 0 if it was not.
    """

    def __init__(self, memory: torch.Tensor, stride: int, watch: Watch) -> None:
        land()
        self.memory, self.stride = memory, stride
        self.number, self.filled = 1, 0
        start = -memory.data_ptr() % _ALIGNED
        self.base = memory.data_ptr() + start
        self.trays_at = self.base + CONTROL
        whole: Any = memory.numpy()
        self._bytes = memoryview(whole)[start : start + CONTROL + TRAYS * stride]
        self._words = self._bytes.cast("q")
        starts = range(CONTROL, CONTROL + TRAYS * stride, stride)
        self._numbers = tuple(start // _WORD for start in starts)
        self._trays = tuple(self.base + start for start in starts)
        self._heads = tuple(bytes_at(stride - _WORD)(tray + _WORD) for tray in self._trays)
        self._watch = watch
        self._missed = 0

    @classmethod
    def bytes_for(cls, stride: int) -> int:
        """Bytes of memory for trays of `stride` bytes, wherever that memory begins."""
        return _ALIGNED + CONTROL + TRAYS * stride

    def free(self) -> int:
        """The address of the next tray, once the device has read what was in it.

        Raises: InternalError where a replay found no tray; what the device's work raised, while waiting for it.
        """
        words, number = self._words, self.number
        if words[_TAKEN] < number - TRAYS:
            self._wait(number - TRAYS)
        if words[_MISSED] != self._missed:
            raise self._surprise()
        return self._trays[number & _LAST]

    def fill(self, filling: Filling) -> None:
        """What is in the next tray is for the next launch, of a slot of that size."""
        number = self.number
        place = number & _LAST
        self._heads[place].raw = filling.head
        self._words[self._numbers[place]] = number  # last: by it the device knows the tray
        self.filled = filling.size

    def fill_empty(self, size: int) -> None:
        """The next launch, of a slot of `size`, takes a tray without rows. Raises as `free` does."""
        self.free()
        self.fill(_Empty(size))

    def advance(self) -> None:
        """The next tray was handed to a launch."""
        self.number += 1
        self.filled = 0

    def resume(self) -> None:
        """Count anew from what the device has taken, once nothing of what was launched is left on it."""
        self.number, self.filled = self._words[_TAKEN] + 1, 0

    @property
    def tray(self) -> int:
        """The address of the next tray, whether it is free or not."""
        return self._trays[self.number & _LAST]

    def place(self) -> int:
        """Where in `memory` the next tray begins, in bytes."""
        return self.tray - self.memory.data_ptr()

    def read(self) -> bool:
        """Whether the device has taken every tray that was handed to a launch."""
        return bool(self._words[_TAKEN] >= self.number - 1)

    def _wait(self, number: int) -> None:
        """Sleep until tray `number` was taken, or nothing is left on the device that could take it."""
        done, pause = self._watch(), _SHORTEST
        while self._words[_TAKEN] < number:
            if done() and self._words[_TAKEN] < number:
                raise self._surprise()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    def _surprise(self) -> InternalError:
        """Trays and launches do not match: say so, and count anew from where the device is."""
        wait_for(self._watch())
        missed, left = self._words[_MISSED] - self._missed, self.number - 1 - self._words[_TAKEN]
        what = f"{missed} replays found no rows staged for them, and {left} that were staged did not run"
        self._missed = self._words[_MISSED]
        self.resume()
        hint = "replay graphs through the runtime, one after the other; what was computed since is wrong"
        return InternalError(what, hint=hint, missed=missed, left=left)


def wait_for(done: Callable[[], bool]) -> None:
    """Sleep until it is so."""
    while not done():
        time.sleep(_SHORTEST)


_FLYING: deque[Ring] = deque()  # rings whose runtime is gone, and that the device still reads


def keep_until_read(owner: object, ring: Ring) -> None:
    """Keep the memory of `ring` beyond `owner`, until the device has taken what was handed to it."""
    weakref.finalize(owner, _FLYING.append, ring).atexit = False


def land() -> None:
    """Let go of rings that nobody reads any more."""
    for _ in range(len(_FLYING)):
        ring = _FLYING.popleft()
        if not ring.read():
            _FLYING.append(ring)
