"""Pinned trays in a circle, through which rows of the host reach kernels: filled by the host, taken by the device.

Trays are numbered from 1. Each launch that takes one takes the next, in the order of launches; a graph with a staging
node is such a launch, so one is filled before every replay, an empty one if nothing is staged. The device counts what
it takes and says in pinned memory how far it is. So a tray is never filled before it was read (fault D4), no launch can
meet the rows of another, and as long as the host is less than a circle ahead nobody waits.

A launch that fails took nothing: the next call fills the same tray again. A replay past the backend finds no tray of
its number, leaves the buffers as they are and counts as missed, which the next call tells.
"""

from __future__ import annotations

import struct
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from tsgraph.errors import InternalError

TRAYS = 8
"""How many replays the host may be ahead of the device without waiting. A power of two."""

HEAD = struct.Struct("<qii")
"""A tray begins with its number, the size of the slot that it is for, and the live rows; see `staging.cu`."""

CONTROL = 64
"""Bytes before the trays: two numbers that the device writes."""

_TAKEN, _MISSED = 0, 1
_EMPTY = struct.pack("<ii", 0, -1)
_ALIGNED = 64
_SHORTEST, _LONGEST = 20e-6, 1e-3

Watch = Callable[[], Callable[[], bool]]
"""Makes what says whether all work that is queued on the device by now is done. That call raises what the work did."""


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
        self._starts = tuple(CONTROL + place * stride for place in range(TRAYS))
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
        if self._words[_TAKEN] < self.number - TRAYS:
            self._wait(self.number - TRAYS)
        if self._words[_MISSED] != self._missed:
            raise self._surprise()
        return self.base + self._starts[self.number & (TRAYS - 1)]

    def fill(self, head: bytes, size: int) -> None:
        """What is in the next tray is for the next launch, of a slot of `size`. `head`: what follows the number."""
        start = self._starts[self.number & (TRAYS - 1)]
        self._bytes[start + 8 : start + 8 + len(head)] = head
        self._words[start >> 3] = self.number  # last: by it the device knows the tray
        self.filled = size

    def fill_empty(self, size: int) -> None:
        """The next launch, of a slot of `size`, takes a tray without rows. Raises as `free` does."""
        self.free()
        self.fill(_EMPTY, size)

    def advance(self) -> None:
        """The next tray was handed to a launch."""
        self.number += 1
        self.filled = 0

    def resume(self) -> None:
        """Count anew from what the device has taken, once nothing of what was launched is left on it."""
        self.number, self.filled = self._words[_TAKEN] + 1, 0

    def place(self) -> int:
        """Where in `memory` the next tray begins, in bytes."""
        return self.base - self.memory.data_ptr() + self._starts[self.number & (TRAYS - 1)]

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
