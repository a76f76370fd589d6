"""Python on a CUDA stream: `cudaLaunchHostFunc` of the runtime library that torch has loaded, through ctypes.

CUDA gets one C function, the same for all host functions and never freed, and a number. So nothing that is released
can be called: a number that nobody knows any more is no call. (The wrapper of `cuda.bindings` frees itself after its
first call, and a graph calls it again.)

A callback runs in a thread of the driver's and takes the interpreter's lock there. Whoever waits for the device must
have let go of it: torch does in whatever waits, ctypes does while it enqueues (fault I7).
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import re
import threading
from functools import cache
from itertools import count
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from tsgraph.backends.turns import HostFunction, land
from tsgraph.errors import CaptureUnsupported

MAPS = Path("/proc/self/maps")
_EAGER = "build what it would have built before the step, on the host"
_KEYS = count(1)
_KNOWN: WeakValueDictionary[int, HostFunction] = WeakValueDictionary()  # graphs and turns under way keep them
INSIDE: set[int] = set()
"""The threads that run a host function now. What is called often looks itself whether there are any."""


class _Collection:
    """Keeps the collector of cycles from running in a block: it would free what is CUDA's inside a host function."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._enabled = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._enabled:
                gc.enable()


_PAUSED = _Collection()


def call(key: int) -> None:
    """Run the host function of this number, if it still is one."""
    function = _KNOWN.get(key)
    if function is not None:
        thread = threading.get_ident()
        INSIDE.add(thread)
        try:
            with _PAUSED:
                function()
        finally:
            INSIDE.discard(thread)


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(call)


def refuse_inside(what: str) -> None:
    """Raises: CaptureUnsupported inside a host function: the device waits for it, so it would wait for itself."""
    if threading.get_ident() in INSIDE:
        hint = "hand over what it needs in pinned memory, by copies before and after it"
        raise CaptureUnsupported(f"{what}: a host function may not call the device", hint=hint)


def launch(stream: int, function: HostFunction) -> None:
    """Put `function` on the CUDA stream of this handle; into the graph if it is capturing.

    Raises: CaptureUnsupported where the library is not to be found, and where CUDA refuses.
    """
    key = next(_KEYS)
    _KNOWN[key] = function  # first: it may be called before the next line is done
    enqueue(stream, key, function)


def enqueue(stream: int, key: int, _: HostFunction) -> None:
    """Have the device call `call(key)`, which is the function's. Raises as `launch` does."""
    library = _library()
    code = library.cudaLaunchHostFunc(stream, CALLBACK, key)
    if code:
        library.cudaGetLastError()  # or torch would find it after its next kernel
        says = library.cudaGetErrorString(code).decode()
        raise CaptureUnsupported(f"CUDA refused a host function: {says} ({code})", hint=_EAGER, cuda=code)


@cache
def _library() -> ctypes.CDLL:
    library = load(library_path(MAPS.read_text() if MAPS.exists() else "", torch.version.cuda))
    atexit.register(_drain)
    return library


def load(path: str) -> ctypes.CDLL:
    """The runtime library at `path`, with the types of what is called. Raises: CaptureUnsupported if it lacks any."""
    try:
        library = ctypes.CDLL(path)
        library.cudaLaunchHostFunc.argtypes = [ctypes.c_void_p, type(CALLBACK), ctypes.c_void_p]
        library.cudaGetErrorString.restype = ctypes.c_char_p
        library.cudaGetLastError.argtypes = []
    except (OSError, AttributeError) as error:
        what = f"host functions need cudaLaunchHostFunc, which {path} does not give: {error}"
        raise CaptureUnsupported(what, hint=_EAGER) from error
    return library


def library_path(maps: str, version: str | None) -> str:
    """Where the CUDA runtime of torch's `version` ("13.0") is loaded from, by `maps`, the text of /proc/self/maps.

    Raises: CaptureUnsupported where there is none.
    """
    major = (version or "").partition(".")[0]
    loaded: list[str] = sorted(set(re.findall(r"(/\S*/libcudart[^/\s]*\.so(?:\.\d+)*)$", maps, re.MULTILINE)))
    fitting = [path for path in loaded if major and re.search(rf"\.so\.{major}(\.|$)", path)]
    if not fitting:
        among = f"only {', '.join(loaded)}" if loaded else "no libcudart"
        what = f"host functions need the CUDA runtime that torch {version or 'without CUDA'} uses: {among} is loaded"
        raise CaptureUnsupported(what, hint=_EAGER)
    return fitting[0]


def _drain() -> None:
    """Before the interpreter goes, whose lock the callbacks need."""
    if not land():
        torch.cuda.synchronize()
