"""cuBLAS workspaces: memory that torch keeps for each stream, and forgets when any graph of that stream is destroyed.

All graphs of a backend are recorded on one stream. If they shared the workspace that warm-ups left there, the release
of one graph would free memory that the others write at each replay (fault E4). So each recording has one of its own,
from its pool, where it lives as long as any graph does, and where the next recordings find room when it is given back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

FORGET = "_ZN2at4cuda30clearCublasWorkspacesForStreamEP11CUstream_st"
"""`at::cuda::clearCublasWorkspacesForStream(cudaStream_t)`: what a graph of torch calls when it is destroyed."""


@contextmanager
def own_workspaces(stream: int) -> Iterator[None]:
    """Work of the block, on the CUDA stream of this handle, has workspaces of its own; they are given back after it.

    A torch without the call forgets none, and what it keeps for the stream is never freed: nothing is done then.
    """
    forget = _forget()
    if forget is None:
        yield
        return
    forget(stream)
    try:
        yield
    finally:
        forget(stream)


@cache
def _forget() -> Callable[[int], None] | None:
    return find(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so")


def find(library: Path) -> Callable[[int], None] | None:
    """The call of torch's CUDA `library`; None where there is none."""
    try:
        call = getattr(ctypes.CDLL(str(library)), FORGET)
    except (OSError, AttributeError):
        return None
    call.argtypes, call.restype = [ctypes.c_void_p], None

    def forget(stream: int) -> None:
        call(stream)

    return forget
