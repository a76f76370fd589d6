"""The ring of trays, with a device that lags: it takes what was launched when the test lets it."""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.backends import ring as ring_module
from tsgraph.backends.ring import CONTROL, HEAD, TRAYS, Ring, keep_until_read, land
from tsgraph.errors import InternalError

STRIDE = 64
SIZE = 4


class Told(NamedTuple):
    """A tray with live rows for a slot of `size`."""

    size: int
    live: int

    @property
    def head(self) -> bytes:
        """What follows its number."""
        return struct.pack("<ii", self.size, self.live)


class Device:
    """Takes trays as `staging.cu` does: the next in number, if it was filled for the right size."""

    def __init__(self) -> None:
        self.memory = torch.zeros(Ring.bytes_for(STRIDE), dtype=torch.uint8)
        self.queue: list[Callable[[], None]] = []
        self.taken = 0
        self.got: list[int] = []
        self.ring = Ring(self.memory, STRIDE, self.watch)
        self.words = self.ring._words

    def watch(self) -> Callable[[], bool]:
        return lambda: not self.queue

    def launch(self) -> None:
        """Queue a node."""
        self.queue.append(self.take)

    def take(self) -> None:
        start = CONTROL + (self.taken + 1) % TRAYS * STRIDE
        number, size, live = HEAD.unpack_from(self.ring._bytes, start)
        if number != self.taken + 1 or (size != SIZE and live >= 0):
            self.words[1] += 1
            return
        if live >= 0:
            self.got.append(self.ring._words[start // 8 + 2])
        self.taken += 1
        self.words[0] = self.taken

    def run(self, count: int = 1) -> None:
        """Do the oldest of what is queued."""
        for _ in range(count):
            self.queue.pop(0)()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """One whose oldest work is done while the host sleeps."""
    device = Device()
    monkeypatch.setattr("time.sleep", lambda seconds: device.run())
    return device


def send(device: Device, payload: int) -> None:
    """Fill the next tray with a number, and launch a node for it."""
    ring = device.ring
    at = ring.free() - ring.base
    ring._words[at // 8 + 2] = payload
    ring.fill(Told(SIZE, 1))
    device.launch()
    ring.advance()


def send_nothing(device: Device) -> None:
    """Launch a node with an empty tray."""
    device.ring.fill_empty(SIZE)
    device.launch()
    device.ring.advance()


def test_a_tray_is_filled_again_only_when_it_was_read(device):
    """A circle ahead the host waits for the device's oldest; what arrives is what was sent, in order (fault D4)."""
    for payload in range(3 * TRAYS):
        send(device, payload)
        assert len(device.queue) <= TRAYS
    assert TRAYS == len(device.queue)
    device.run(TRAYS)
    assert list(range(3 * TRAYS)) == device.got


def test_within_a_circle_nobody_waits(device, monkeypatch):
    """Not even asking whether one would have to."""
    monkeypatch.setattr(device.ring, "_wait", None)
    for turn in range(4):
        for payload in range(TRAYS):
            send(device, TRAYS * turn + payload)
        device.run(TRAYS)
    assert list(range(4 * TRAYS)) == device.got


@given(st.lists(st.sampled_from(["send", "nothing", "fail", "device"]), max_size=60))
def test_every_replay_gets_its_own(steps):
    """Whatever comes between: launches that fail, empty trays, and a device that is as far as it likes."""
    device, sent, numbers = Device(), [], count()
    for step in steps:
        if step == "device":
            device.run(min(1, len(device.queue)))
            continue
        if len(device.queue) == TRAYS:
            device.run()
        if step == "nothing":
            send_nothing(device)
        else:
            payload = next(numbers)
            send(device, payload)
            if step == "fail":  # it was filled, and nothing was launched
                device.queue.pop()
                device.ring.number -= 1
            else:
                sent.append(payload)
    device.run(len(device.queue))
    assert (sent, 0) == (device.got, device.words[1])


def test_a_replay_past_the_backend_is_told_and_all_goes_on(device):
    """It found no tray of its number. The next call says so; then trays and launches match again."""
    send(device, 1)
    device.run()
    device.take()
    with pytest.raises(InternalError, match="1 replays found no rows staged for them, and 0 that were staged did not"):
        send(device, 2)
    send(device, 3)
    device.run()
    assert [1, 3] == device.got


def test_trays_that_nobody_takes_do_not_make_the_host_wait_for_ever(device):
    """Once nothing is left on the device, a circle of trays without launches is an error, with how many."""
    for payload in range(TRAYS):
        send(device, payload)
    device.queue.clear()
    with pytest.raises(InternalError, match=f"0 replays found .*, and {TRAYS} that were staged did not run"):
        device.ring.free()
    send(device, 9)
    device.run()
    assert [9] == device.got


def test_a_tray_of_another_size_is_missed(device):
    """A node takes no rows that were packed for another slot."""
    device.ring.fill(Told(SIZE + 1, 1))
    device.take()
    assert ([], 1) == (device.got, device.words[1])


def test_memory_may_begin_anywhere():
    """Trays are aligned as kernels read them."""
    memory = torch.zeros(Ring.bytes_for(STRIDE) + 8, dtype=torch.uint8)
    for start in range(8):
        ring = Ring(memory[start:], STRIDE, lambda: lambda: True)
        assert 0 == ring.free() % 64
        assert ring.free() == memory[start:].data_ptr() + ring.place()
        ring.fill(Told(1, 2))
        assert (1, 1, 2) == HEAD.unpack(bytes(memory[start + ring.place() :][: HEAD.size].tolist()))


class Owner:
    """Whoever has a ring."""


@pytest.mark.parametrize("read", [False, True])
def test_a_ring_outlives_its_owner_until_it_is_read(device, read):
    """What is pinned must not be given to somebody else while a kernel may read it, or write how far it is."""
    owner: Any = Owner()
    keep_until_read(owner, device.ring)
    send(device, 1)
    if read:
        device.run()
    del owner
    gc.collect()
    land()
    assert (not read) == (device.ring in ring_module._FLYING)
    device.run(len(device.queue))
    land()
    assert device.ring not in ring_module._FLYING
