"""Launches of packed staging on CUDA, tried without: a stand-in for the driver runs `staging.cu` itself on the CPU.

What a kernel is given goes through the same structs, arrays and calls as on a GPU.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch

from tests.buffers.compiled_kernel import COMPILER, library
from tsgraph.backends import kernels, launches, nvrtc
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.kernels import CudaKernel
from tsgraph.backends.stager import Stager
from tsgraph.backends.trays import Form, Layout
from tsgraph.errors import CaptureUnsupported, ReplayFailed
from tsgraph.protocols.backend import Lane

STREAM = 0x7F00_1234_5678
"""Of the caller: too long for an int."""

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """The stand-in, in the place of CUDA's, of NVRTC and of what torch tells of a device and its streams."""
    there = library()
    refuse(there)
    monkeypatch.setattr(launches, "_library", lambda: launches.typed(there))
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda source, name, options: b"CUBIN")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(query=lambda: True))
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda stream: None, query=lambda: True))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    return there


def refuse(there: ctypes.CDLL, *codes: int) -> None:
    """The next launches are answered so."""
    (ctypes.c_int * 8).in_dll(there, "refusals")[:] = [*codes, *[0] * (8 - len(codes))]
    ctypes.c_int.in_dll(there, "asked").value = 0


@pytest.fixture
def backend() -> EmulatedBackend:
    """What has the memory."""
    return EmulatedBackend()


def lanes(backend: EmulatedBackend) -> list[Lane]:
    """A table and a mirrored column of numbers, for four rows."""
    table, numbers, mirror = (backend.allocate(shape, torch.int32, 7) for shape in ((4, 8), (4,), (4,)))
    return [
        Lane(name="table", target=table, per_row=1, pad=-1, column_pad=-2),
        Lane(name="numbers", target=numbers, per_row=1, pad=0),
        Lane(name="mirror", target=mirror, per_row=1, pad=9, mirrors=1),
    ]


def stager_of(backend: EmulatedBackend, listed: list[Lane], reads: Any = "ring") -> Stager:
    """What brings rows into the `listed`."""
    return Stager(listed, 4, backend, CudaKernel(backend, 24), lambda: None, reads)


def packed(stager: Stager, live: int) -> Any:
    """A load of `live` rows, in the tray to fill."""
    load = stager.load(3, live)
    stager.tray()
    stager.room(load, 0, (live, 5)).fill_(5)
    load.bring(0, 20)
    stager.room(load, 1, (live,)).fill_(4)
    load.bring(1, 4)
    return load


TWO_OF_THREE = ([[5] * 5 + [-2] * 3] * 2 + [[-1] * 8, [7] * 8], [4, 4, 0, 7], [4, 4, 9, 7])


def held(listed: list[Lane]) -> tuple[Any, ...]:
    """What the targets hold."""
    return tuple(lane.target.tolist() for lane in listed)


def test_a_launch_brings_what_is_packed_and_what_is_on_the_device(driver, backend):
    """On the caller's stream, whose handle arrives whole. Rows beyond the slot's size stay."""
    stager = stager_of(backend, listed := lanes(backend))
    stager.launch(packed(stager, 2))
    assert TWO_OF_THREE == held(listed)
    assert STREAM == ctypes.c_void_p.in_dll(driver, "last_stream").value
    load, rows = packed(stager, 1), torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.int32)
    load.bring(1, 4, rows.data_ptr() + 8, (4, 0, 4))
    stager.launch(load)
    assert ([3, 0, 0, 7], [3, 9, 9, 7]) == held(listed)[1:]


@pytest.mark.parametrize("reads", ["ring", "landing"])
def test_a_node_takes_the_tray_that_was_sent(driver, backend, reads):
    """With the arguments that it was recorded with, whichever tray it is; one that is empty changes nothing."""
    stager = stager_of(backend, listed := lanes(backend), reads)
    stager.lay_out(3)
    layout = stager._layouts[3][0]
    for _ in range(20):
        for lane in listed:
            lane.target.fill_(7)
        stager.send(packed(stager, 2))
        stager._kernel.take(stager, layout)
        stager.ring.advance()
        assert TWO_OF_THREE == held(listed)
        stager.send_nothing(3)
        stager._kernel.take(stager, layout)
        stager.ring.advance()
        assert TWO_OF_THREE == held(listed)


def test_a_node_misses_a_tray_of_another_size(driver, backend):
    """It brings nothing, says so, and leaves the tray to whom it is for."""
    stager = stager_of(backend, listed := lanes(backend))
    before = held(listed)
    stager.lay_out(2)
    stager.send(packed(stager, 2))
    stager._kernel.take(stager, stager._layouts[2][0])
    assert (before, [0, 1]) == (held(listed), list(stager.ring._words[:2]))
    stager._kernel.take(stager, stager._layouts[3][0])
    assert TWO_OF_THREE == held(listed)


@pytest.mark.parametrize("code", [201, 400])
def test_a_thread_without_the_devices_context_gets_it(driver, backend, code):
    """The launch is made again in it, and the thread's own is back afterwards."""
    stager = stager_of(backend, listed := lanes(backend))
    load = packed(stager, 2)
    refuse(driver, code)
    stager.launch(load)
    assert (TWO_OF_THREE, 0) == (held(listed), ctypes.c_int.in_dll(driver, "pushed").value)


def test_a_landing_is_copied_to_in_the_devices_context(driver, backend):
    """On the caller's stream; a copy that fails is told by name."""
    stager = stager_of(backend, lanes(backend), "landing")
    load = packed(stager, 2)
    refuse(driver, 201)
    stager.send(load)
    assert stager.landing.eq(stager.ring.memory[stager.ring.place() :][: len(stager.landing)]).all()
    assert STREAM == ctypes.c_void_p.in_dll(driver, "last_stream").value
    refuse(driver, 77)
    with pytest.raises(ReplayFailed, match=r"CUDA_ERROR_OF_A_TEST \(77\)"):
        stager.send(load)


@pytest.mark.parametrize("codes", [[77], [201, 77], [78]])
def test_a_launch_that_fails_is_told_by_name_and_takes_no_tray(driver, backend, codes):
    """Buffers stay; the next call fills the same tray again."""
    stager = stager_of(backend, listed := lanes(backend))
    load, before, number = packed(stager, 2), held(listed), stager.ring.number
    refuse(driver, *codes)
    says = r"CUDA_ERROR_OF_A_TEST \(77\)" if 77 in codes else r"an unknown error \(78\)"
    with pytest.raises(ReplayFailed, match=says):
        stager.launch(load)
    assert (before, number) == (held(listed), stager.ring.number)
    stager.launch(packed(stager, 2))
    assert TWO_OF_THREE == held(listed)


def test_kernels_that_do_not_work_are_refused_when_they_are_made(driver, backend, monkeypatch):
    """Code that the driver does not take, a launch that fails, and pinned memory that the device does not see."""
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda source, name, options: b"nonsense")
    with pytest.raises(CaptureUnsupported, match=r"cuModuleLoadData.*\(200\)"):
        CudaKernel(backend, 24)
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda source, name, options: b"CUBIN")
    refuse(driver, 0, 77)
    with pytest.raises(CaptureUnsupported, match=r"CUDA_ERROR_OF_A_TEST \(77\)"):
        CudaKernel(backend, 24)
    monkeypatch.setattr(backend, "pin", lambda shape, dtype: torch.ones(shape, dtype=dtype))
    with pytest.raises(CaptureUnsupported, match="to find no tray in pinned memory"):
        CudaKernel(backend, 24)


def test_kernels_are_compiled_once_for_few_lanes_and_once_for_many(driver, backend, monkeypatch):
    """For the device's architecture."""
    asked: list[Any] = []
    monkeypatch.setattr(kernels, "_LOADED", {})
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda source, name, options: asked.append(options) or b"CUBIN")
    found = [kernels.load(backend, count) for count in (1, 24, 25, 500)]
    assert [24, 24, 120, 120] == [kernel.sources for kernel in found]
    assert [("--gpu-architecture=sm_90", f"-DLANES={count}", "-DDEPTH=4") for count in (24, 120)] == asked


def test_more_lanes_than_a_launch_can_tell_of_are_refused(driver, backend):
    """Before memory is taken."""
    with pytest.raises(CaptureUnsupported, match="25 static buffers are more than the 24"):
        stager_of(backend, lanes(backend)[1:2] * 25)


class TestLibraries:
    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
    def test_without_a_driver_it_is_refused(self) -> None:
        """When a backend asks for kernels, and not when the module is imported."""
        with pytest.raises(CaptureUnsupported, match=r"needs the CUDA driver.*libcuda\.so\.1"):
            launches._library()

    def test_a_driver_that_lacks_a_call_is_refused(self) -> None:
        """By what is missing."""
        with pytest.raises(CaptureUnsupported, match="cuMemcpyHtoDAsync_v2"):
            launches.load("libc.so.6")


def test_few_rows_take_one_block_and_many_a_block_for_each_lane(backend):
    """As many threads as there are units to write, up to a block's; beyond what those can take, blocks share lanes."""
    forms = [Form.of(lane) for lane in lanes(backend)]
    small = Layout.of(forms, 2)
    block = kernels.block_of(small)
    assert block is not None
    assert (1, 1, kernels.THREADS) == (block.grid_x, block.grid_y, block.block_x)
    most = kernels.MOST_THREADS * kernels.DEPTH
    assert kernels.MOST_THREADS == kernels.block_of(attrs.evolve(small, units=most)).block_x
    assert kernels.block_of(attrs.evolve(small, units=most + 1)) is None
    assert len(forms) == kernels.grid_of(small).grid_y
