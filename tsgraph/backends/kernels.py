"""The kernels of `staging.cu` on CUDA: compiled once for a device, and launched without an operator or a tensor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tsgraph.backends import nvrtc
from tsgraph.backends.launches import Driver, LaunchConfig, Parameters
from tsgraph.backends.ring import HEAD, TRAYS
from tsgraph.backends.stager import CALL, SOURCE, Kernel, Load, Stager
from tsgraph.backends.trays import LANE, Layout
from tsgraph.errors import CaptureUnsupported, ReplayFailed
from tsgraph.protocols.backend import Backend

SOURCE_FILE = Path(__file__).with_name("staging.cu")
THREADS, MOST_BLOCKS = 128, 64
"""Threads of a block; blocks that share a lane, at most."""

MOST_THREADS, DEPTH = 1024, 4
"""Threads of a block that serves all lanes by itself, at most; units of each, at most."""

_SOURCES = (24, 120)  # what a launch can tell of: parameters are copied at each, and may have 4096 bytes
_LOADED: dict[tuple[torch.device, int], Kernel] = {}


def load(backend: Backend, lanes: int) -> Kernel:
    """The kernels on the device of `backend`, for so many lanes. Raises: CaptureUnsupported, saying what is missing."""
    key = backend.device, next((count for count in _SOURCES if count >= lanes), _SOURCES[-1])
    if key not in _LOADED:
        _LOADED[key] = CudaKernel(backend, key[1])
    return _LOADED[key]


class CudaKernel:
    """Implements `tsgraph.backends.stager.Kernel`."""

    hidden = False

    def __init__(self, backend: Backend, sources: int) -> None:
        self.sources = sources
        self._device = backend.device
        self._driver = Driver(self._device)
        module = self._driver.module(_compiled(self._device, sources))
        self._bring = self._driver.function(module, "tsgraph_bring")
        self._take = self._driver.function(module, "tsgraph_take")
        self._take_at_once = self._driver.function(module, "tsgraph_take_at_once")
        self._try(backend)

    def _try(self, backend: Backend) -> None:
        """Launch each once, on nothing: CUDA loads kernels at their first launch, which must not be in a recording.

        Raises: CaptureUnsupported where a kernel cannot read and write pinned memory.
        """
        told, memory = backend.pin((8,), torch.int64), backend.allocate((LANE.size + 16,), torch.uint8, 0)
        lanes, state = _pointer(memory.data_ptr()), _pointer(memory.data_ptr() + LANE.size)  # one lane of no bytes
        call = np.zeros(CALL.size + self.sources * SOURCE.size, np.uint8)
        one = LaunchConfig(1, 1, 1, THREADS, 1, 1, 0, None, None, 0)
        tray, numbers = _pointer(told.data_ptr() + 16), (ctypes.c_uint(HEAD.size), ctypes.c_uint(0), ctypes.c_uint(1))
        found = Parameters(lanes, tray, *numbers, state, _pointer(told.data_ptr()), ctypes.c_uint(0))
        try:
            self._driver.prepare(one, self._bring, Parameters(lanes, state, _pointer(told.data_ptr()), call))()
            for take in (self._take, self._take_at_once):
                self._driver.prepare(one, take, found)()
        except ReplayFailed as error:
            raise CaptureUnsupported(error.what, hint=error.hint, **error.context) from error
        backend.synchronize()
        if told.tolist() != [0, 2, *[0] * 6]:  # tray 1 is not there, so each has missed one
            what = f"a kernel that was to find no tray in pinned memory told {told.tolist()}"
            raise CaptureUnsupported(what, hint='declare staging = "copies" in the policy')

    def prepare(self, stager: Stager, load: Load) -> Callable[[], None]:
        """What brings `load`, as its `call` then says, on the stream that is current then."""
        table, told = stager.table(load.layout), stager.ring.base
        pointers = (_pointer(table.data_ptr()), _pointer(stager.state.data_ptr()), _pointer(told))
        return self._driver.prepare(grid_of(load.layout), self._bring, Parameters(*pointers, load.call))

    def take(self, stager: Stager, layout: Layout) -> None:
        """Put the node on the current stream, with the ring, or the landing, as it is for good."""
        ring, landing = stager.ring, stager.landing
        trays, last = (ring.trays_at, TRAYS - 1) if landing is None else (landing.data_ptr(), 0)
        pointers = (_pointer(stager.table(layout).data_ptr()), _pointer(trays))
        numbers = (ctypes.c_uint(ring.stride), ctypes.c_uint(last), ctypes.c_uint(layout.size))
        counts = (_pointer(stager.state.data_ptr()), _pointer(ring.base), ctypes.c_uint(len(layout.forms)))
        block = block_of(layout)
        take = self._take if block is None else self._take_at_once
        self._driver.prepare(block or grid_of(layout), take, Parameters(*pointers, *numbers, *counts))()

    def copy(self, target: torch.Tensor, address: int, count: int) -> None:
        """Copy `count` bytes of pinned memory to the beginning of `target`, on the current stream."""
        self._driver.copy(target.data_ptr(), address, count)

    def watch(self) -> Callable[[], bool]:
        """Done when the current stream is, and then the device."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))

        def done() -> bool:
            if not event.query():
                return False
            torch.cuda.synchronize(self._device)  # replays may be on another stream
            return True

        return done


def grid_of(layout: Layout) -> LaunchConfig:
    """Blocks for each lane, a thread for each unit of the longest up to a limit; lanes; threads of a block."""
    blocks = min(max(-(-layout.longest // THREADS), 1), MOST_BLOCKS)
    return LaunchConfig(blocks, len(layout.forms), 1, THREADS, 1, 1, 0, None, None, 0)


def block_of(layout: Layout) -> LaunchConfig | None:
    """One block for all lanes, with as few units for each thread as may be; None where they are too many."""
    if layout.units > MOST_THREADS * DEPTH:
        return None
    threads = min(max(layout.units + -layout.units % THREADS, THREADS), MOST_THREADS)
    return LaunchConfig(1, 1, 1, threads, 1, 1, 0, None, None, 0)


def _pointer(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(address)


def _compiled(device: torch.device, sources: int) -> bytes:
    major, minor = torch.cuda.get_device_capability(device)
    options = (f"--gpu-architecture=sm_{major}{minor}", f"-DLANES={sources}", f"-DDEPTH={DEPTH}")
    return nvrtc.compile_cubin(SOURCE_FILE.read_text(encoding="utf-8"), SOURCE_FILE.name, options)
