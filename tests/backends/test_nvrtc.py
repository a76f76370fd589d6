"""NVRTC, tried without: where it is looked for, what it is asked, and what is told when it refuses."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tsgraph.backends import nvrtc
from tsgraph.errors import CaptureUnsupported

MAPS = """\
7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libc.so.6
7f02-7f03 r-xp 00000000 08:01 2 /site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
7f04-7f05 r-xp 00000000 08:01 3 /site/nvidia/cu13/lib/libnvrtc.so.13
7f04-7f05 r-xp 00000000 08:01 3 /site/nvidia/cu13/lib/libnvrtc-builtins.so.13.0
"""


class Library:
    """A compiler that answers `code`, with a log and a cubin."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.destroyed = code, 0
        self.asked: list[Any] = []

    def nvrtcCreateProgram(self, program: Any, source: bytes, name: bytes, *rest: Any) -> int:  # noqa: N802
        self.asked += [source, name, rest]
        return 0

    def nvrtcCompileProgram(self, program: Any, count: int, options: Any) -> int:  # noqa: N802
        self.asked.append([options[at] for at in range(count)])
        return self.code

    def nvrtcGetErrorString(self, code: int) -> bytes:  # noqa: N802
        return b"NVRTC_ERROR_COMPILATION"

    def nvrtcDestroyProgram(self, program: Any) -> None:  # noqa: N802
        self.destroyed += 1

    def __getattr__(self, name: str) -> Any:
        text = {"ProgramLog": b"line 1: no\0", "CUBIN": b"\x7fELF\0\0"}[
            name.removeprefix("nvrtcGet").removesuffix("Size")
        ]

        def get(program: Any, target: Any) -> int:
            if name.endswith("Size"):
                target._obj.value = len(text)
            else:
                target.raw = text
            return 0

        return get


def test_what_is_compiled_comes_back_whole(monkeypatch):
    """With the options as they were given; the program is given back."""
    library = Library()
    monkeypatch.setattr(nvrtc, "_library", lambda: library)
    assert b"\x7fELF\0\0" == nvrtc.compile_cubin("source", "a.cu", ("--one", "-D2"))
    assert [b"source", b"a.cu", (0, None, None), [b"--one", b"-D2"]] == library.asked
    assert 1 == library.destroyed


def test_what_the_compiler_says_is_told(monkeypatch):
    """File, options, its own name for the error, and its log."""
    library = Library(6)
    monkeypatch.setattr(nvrtc, "_library", lambda: library)
    with pytest.raises(CaptureUnsupported) as error:
        nvrtc.compile_cubin("source", "a.cu", ("--one",))
    assert "could not compile a.cu with --one: NVRTC_ERROR_COMPILATION (6)\nline 1: no" in str(error.value)
    assert (6, 1) == (error.value.context["nvrtc"], library.destroyed)


def test_it_is_looked_for_where_torch_has_it(tmp_path: Path):
    """First what is loaded, of torch's own version; then wheels beside torch; then the system's."""
    wheel = tmp_path / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    found = list(nvrtc.candidates(MAPS, "13.0", [str(tmp_path), "/nowhere"]))
    assert ["/site/nvidia/cu13/lib/libnvrtc.so.13", str(wheel), "libnvrtc.so.13", "libnvrtc.so"] == found
    assert "/site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12" == next(nvrtc.candidates(MAPS, "12.8", []))
    assert [] == list(nvrtc.candidates(MAPS, None, [str(tmp_path)]))


def test_it_is_loaded_with_what_it_opens_by_name(tmp_path: Path, monkeypatch):
    """Its builtins lie beside it. Its calls take whole pointers."""
    for name in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libother.so"):
        (tmp_path / name).touch()
    opened: list[str] = []

    def open_library(path: str) -> Any:
        opened.append(Path(path).name)
        return SimpleNamespace(**{name: SimpleNamespace() for name in [*nvrtc._TYPES, "nvrtcGetErrorString"]})

    monkeypatch.setattr(ctypes, "CDLL", open_library)
    library = nvrtc.load(str(tmp_path / "libnvrtc.so.13"))
    assert ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0"] == opened
    assert ctypes.c_void_p is library.nvrtcCompileProgram.argtypes[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_without_it_all_that_was_tried_is_told(monkeypatch):
    """And what to do."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    nvrtc._library.cache_clear()
    with pytest.raises(CaptureUnsupported, match=r"NVRTC library of CUDA 13\.0; tried\n  libnvrtc\.so\.13") as error:
        nvrtc.compile_cubin("", "a.cu", ())
    assert 'staging = "copies"' in error.value.hint
