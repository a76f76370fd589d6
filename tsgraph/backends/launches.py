"""The CUDA driver, through ctypes: modules of machine code, and launches prepared so that one costs a microsecond.

Ctypes lets go of the interpreter's lock in each call: a launch may wait for the device, and the device for Python (I7).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from tsgraph.errors import CaptureUnsupported, ReplayFailed

HINT = 'declare staging = "copies" in the policy'
_LIBRARY = "libcuda.so.1"
_NO_CONTEXT, _OF_ANOTHER = (3, 201), (400, 709)  # codes of a launch in a thread that has no context, or another's


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig` of cuda.h."""

    _fields_ = (
        ("grid_x", ctypes.c_uint),
        ("grid_y", ctypes.c_uint),
        ("grid_z", ctypes.c_uint),
        ("block_x", ctypes.c_uint),
        ("block_y", ctypes.c_uint),
        ("block_z", ctypes.c_uint),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Parameters:
    """What a kernel is given, as the driver takes it: an array of addresses. Keeps the values alive."""

    def __init__(self, *values: Any) -> None:
        self._values = values
        self.array = (ctypes.c_void_p * len(values))(*map(_address_of, values))


def _address_of(value: Any) -> int:
    return value.ctypes.data if isinstance(value, np.ndarray) else ctypes.addressof(value)


class Driver:
    """The driver's calls for one device. Raises CaptureUnsupported where the library lacks one."""

    def __init__(self, device: torch.device) -> None:
        self._library = _library()
        self.device, self._index = device, device.index or 0
        torch.cuda.current_stream(device).query()  # whatever makes the device's context
        self._context = ctypes.c_void_p()
        self.check(self._library.cuInit(0), "cuInit")
        with torch.cuda.device(device):
            self.check(self._library.cuCtxGetCurrent(ctypes.byref(self._context)), "cuCtxGetCurrent")
        if self._context.value is None:
            raise CaptureUnsupported(f"packed staging: {device} has no context", hint=HINT)

    def module(self, code: bytes) -> ctypes.c_void_p:
        """The module of machine code `code`, loaded for good."""
        module = ctypes.c_void_p()
        with torch.cuda.device(self.device):
            self.check(self._library.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        """The kernel called `name`."""
        function = ctypes.c_void_p()
        code = self._library.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        self.check(code, f"cuModuleGetFunction({name})")
        return function

    def prepare(self, config: LaunchConfig, function: ctypes.c_void_p, parameters: Parameters) -> Callable[[], None]:
        """What launches on the stream that is the caller's when it is called. It raises ReplayFailed."""
        call, stream_of, index = self._library.cuLaunchKernelEx, _stream_teller(), self._index
        reference, array, known = ctypes.byref(config), parameters.array, -1

        def launch() -> None:
            nonlocal known
            stream = stream_of(index)
            if stream != known:
                config.stream = known = stream
            code = call(reference, function, array, None)
            if code:
                self._call_in_context(code, call, reference, function, parameters.array, None)

        return launch

    def copy(self, target: int, source: int, count: int) -> None:
        """Copy pinned bytes to the device on the caller's current stream, without waiting. Raises: ReplayFailed."""
        call, words = self._library.cuMemcpyHtoDAsync_v2, (target, source, count, _stream_teller()(self._index))
        code = call(*words)
        if code:
            self._call_in_context(code, call, *words)

    def _call_in_context(self, code: int, call: Callable[..., int], *words: Any) -> None:
        """Call again after `code`, in the device's context: a thread may not have it. Raises: ReplayFailed."""
        if code in _NO_CONTEXT + _OF_ANOTHER:
            self.check(self._library.cuCtxPushCurrent_v2(self._context), "cuCtxPushCurrent")
            try:
                code = call(*words)
            finally:
                self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        if code:
            what = f"rows could not be brought to static buffers: {self.name(code)}"
            raise ReplayFailed(what, hint=HINT, cuda=code)

    def check(self, code: int, what: str) -> None:
        """Raises: CaptureUnsupported where `what` was answered with an error."""
        if code:
            raise CaptureUnsupported(f"packed staging: {what}: {self.name(code)}", hint=HINT, cuda=code)

    def name(self, code: int) -> str:
        """What the driver calls an error, with its number."""
        text = ctypes.c_char_p()
        known = self._library.cuGetErrorName(code, ctypes.byref(text)) == 0 and text.value is not None
        return f"{text.value.decode() if known and text.value else 'an unknown error'} ({code})"


def _stream_teller() -> Callable[[int], int]:
    """What tells the handle of a device's current stream. The public way makes an object of it at each call."""
    return torch._C._cuda_getCurrentRawStream  # noqa: SLF001


@cache
def _library() -> ctypes.CDLL:
    return load(_LIBRARY)


def load(path: str) -> ctypes.CDLL:
    """The driver's library at `path`. Raises: CaptureUnsupported where there is none, or it lacks a call."""
    try:
        return typed(ctypes.CDLL(path))
    except (OSError, AttributeError) as error:
        what = f"packed staging needs the CUDA driver, with what CUDA 12 calls: {error}"
        raise CaptureUnsupported(what, hint=HINT) from error


def typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """`library` with the types of what takes plain integers. Raises: AttributeError where it lacks a call."""
    library.cuMemcpyHtoDAsync_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    for name in ("cuLaunchKernelEx", "cuModuleLoadData", "cuModuleGetFunction"):
        getattr(library, name)
    return library
