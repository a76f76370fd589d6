"""Compiling CUDA C for one device, with the NVRTC library that torch brings, through ctypes."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import torch

from tsgraph.backends.hostfunc import MAPS
from tsgraph.errors import CaptureUnsupported

HINT = 'declare staging = "copies" in the policy, or install the nvrtc of torch\'s CUDA version'
_TYPES = {
    "nvrtcCreateProgram": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, *[ctypes.c_void_p] * 2],
    "nvrtcCompileProgram": [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p],
    "nvrtcGetProgramLogSize": [ctypes.c_void_p, ctypes.c_void_p],
    "nvrtcGetProgramLog": [ctypes.c_void_p, ctypes.c_void_p],
    "nvrtcGetCUBINSize": [ctypes.c_void_p, ctypes.c_void_p],
    "nvrtcGetCUBIN": [ctypes.c_void_p, ctypes.c_void_p],
    "nvrtcDestroyProgram": [ctypes.c_void_p],
}


def compile_cubin(source: str, name: str, options: Sequence[str]) -> bytes:
    """Machine code of `source`, a file called `name`, with NVRTC's `options` (the architecture among them).

    Raises: CaptureUnsupported without the library, and with the compiler's own words where it refuses.
    """
    library, program = _library(), ctypes.c_void_p()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None), "create")
    try:
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = library.nvrtcCompileProgram(program, len(options), words)
        log = _read(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
        _check(code, f"compile {name} with {' '.join(options)}", log)
        return _read(library, program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _read(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), f"size {what}")
    text = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, text), f"get {what}")
    return text.raw


def _check(code: int, what: str, log: str = "") -> None:
    if code:
        name = _library().nvrtcGetErrorString(code).decode()
        raise CaptureUnsupported(f"NVRTC could not {what}: {name} ({code})\n{log}".rstrip(), hint=HINT, nvrtc=code)


@cache
def _library() -> ctypes.CDLL:
    tried: list[str] = []
    for path in candidates(MAPS.read_text() if MAPS.exists() else "", torch.version.cuda, sys.path):
        try:
            return load(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
    what = f"packed staging needs the NVRTC library of CUDA {torch.version.cuda or '(torch is built without CUDA)'}"
    raise CaptureUnsupported("\n  ".join([f"{what}; tried", *tried]), hint=HINT)


def load(path: str) -> ctypes.CDLL:
    """The library at `path`, with the types of what is called. Raises: OSError where there is none."""
    library = ctypes.CDLL(path)
    if Path(path).is_absolute():
        for builtins in Path(path).parent.glob("libnvrtc-builtins.so*"):  # which it opens by its bare name
            ctypes.CDLL(str(builtins))
    for name, types in _TYPES.items():
        getattr(library, name).argtypes = types
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def candidates(maps: str, version: str | None, folders: Sequence[str]) -> Iterator[str]:
    """Where it may be, for torch's CUDA `version`: loaded already by `maps`, in torch's wheels, or on the system."""
    major = (version or "").partition(".")[0]
    if not major:
        return
    named = rf"(/\S*/libnvrtc(?:-[0-9a-f]+)?\.so\.{major}(?:\.\d+)*)$"
    yield from sorted(set(re.findall(named, maps, re.MULTILINE)))
    for folder in folders:
        for pattern in (f"nvidia/*/lib/libnvrtc.so.{major}*", f"torch/lib/libnvrtc*.so.{major}*"):
            yield from sorted(str(path) for path in Path(folder).glob(pattern))
    yield f"libnvrtc.so.{major}"
    yield "libnvrtc.so"
