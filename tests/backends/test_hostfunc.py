"""Host functions on CUDA, tried without: the callback, the library, and the cuda backend on the emulated device."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tsgraph.backends import hostfunc
from tsgraph.backends import turns as turns_module
from tsgraph.backends.turns import HostFunction, Turns
from tsgraph.errors import CaptureUnsupported, HostFunctionFailed
from tsgraph.protocols.backend import Backend
from tsgraph.testing import emulate
from tsgraph.testing.conformance import BACKEND, Promises
from tsgraph.testing.conformance.backend import BackendTrial

MAPS = """\
7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libc.so.6
7f02-7f03 r-xp 00000000 08:01 2 /site/nvidia/cuda_runtime/lib/libcudart.so.12
7f04-7f05 r-xp 00000000 08:01 3 /site/nvidia/cu13/lib/libcudart.so.13
7f06-7f07 r--p 00000000 08:01 3 /site/nvidia/cu13/lib/libcudart.so.13
"""


class TestLibrary:
    @pytest.mark.parametrize(
        ("maps", "version", "path"),
        [
            (MAPS, "13.0", "/site/nvidia/cu13/lib/libcudart.so.13"),
            (MAPS, "12.8", "/site/nvidia/cuda_runtime/lib/libcudart.so.12"),
            ("0-1 r 0 0 0 /conda/libcudart.so.12.4.127\n", "12.4", "/conda/libcudart.so.12.4.127"),
            ("0-1 r 0 0 0 /torch/lib/libcudart-9335f6a2.so.12\n", "12.1", "/torch/lib/libcudart-9335f6a2.so.12"),
        ],
    )
    def test_it_is_the_one_of_torchs_cuda(self, maps: str, version: str, path: str) -> None:
        """Also where another version is loaded beside it, and under the names that wheels and conda give it."""
        assert path == hostfunc.library_path(maps, version)

    @pytest.mark.parametrize(
        ("maps", "version", "says"),
        [
            ("", "13.0", "no libcudart is loaded"),
            (MAPS, "11.8", r"only /site.*so\.13, /site.*so\.12 is loaded"),
            (MAPS, None, "torch without CUDA uses"),
            ("0-1 r 0 0 0 /x/libcudart.so.130\n", "13.0", "only"),
            ("0-1 r 0 0 0 /x/libcudart_static.a\n", "13.0", "no libcudart"),
        ],
    )
    def test_one_that_is_missing_is_named(self, maps: str, version: str | None, says: str) -> None:
        """What is wanted, what there is, and that masks can be built without."""
        with pytest.raises(CaptureUnsupported, match=says) as caught:
            hostfunc.library_path(maps, version)
        assert "on the host" in caught.value.hint

    def test_one_that_lacks_the_call_is_refused(self) -> None:
        """By its path: no other is tried."""
        with pytest.raises(CaptureUnsupported, match=r"cudaLaunchHostFunc, which libc\.so\.6 does not give"):
            hostfunc.load("libc.so.6")
        with pytest.raises(CaptureUnsupported, match="cannot open shared object"):
            hostfunc.load("/nowhere/libcudart.so.13")

    def test_its_calls_take_whole_pointers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without types, ctypes would cut a stream's handle to an int; and it is looked for once."""
        opened: list[str] = []

        def open_library(path: str) -> SimpleNamespace:
            opened.append(path)
            names = ("cudaLaunchHostFunc", "cudaGetErrorString", "cudaGetLastError")
            return SimpleNamespace(**{name: SimpleNamespace() for name in names})

        monkeypatch.setattr(ctypes, "CDLL", open_library)
        monkeypatch.setattr(hostfunc, "library_path", lambda maps, version: "/x/libcudart.so.13")
        library = cache(hostfunc._library.__wrapped__)
        assert library() is library()
        stream, called, key = library().cudaLaunchHostFunc.argtypes
        assert (ctypes.c_void_p, type(hostfunc.CALLBACK), ctypes.c_void_p) == (stream, called, key)
        assert ["/x/libcudart.so.13"] == opened

    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
    def test_without_cuda_it_is_refused(self) -> None:
        """When a function is put on a stream, and not when the module is imported."""
        with pytest.raises(CaptureUnsupported, match="host functions need the CUDA runtime"):
            hostfunc.launch(0, HostFunction(Turns(), print))

    def test_a_refusal_of_cuda_is_told_and_cleared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With its words and number; torch must not find it after its next kernel."""
        cleared: list[int] = []

        class Library:
            def cudaLaunchHostFunc(self, *_: object) -> int:  # noqa: N802 - CUDA's name
                return 901

            def cudaGetLastError(self) -> None:  # noqa: N802 - CUDA's name
                cleared.append(901)

            def cudaGetErrorString(self, code: int) -> bytes:  # noqa: N802 - CUDA's name
                return b"capture invalidated"

        monkeypatch.setattr(hostfunc, "_library", Library)
        with pytest.raises(CaptureUnsupported, match=r"capture invalidated \(901\)"):
            hostfunc.launch(0, HostFunction(Turns(), print))
        assert [901] == cleared


def on_a_foreign_thread(*keys: int) -> None:
    """Call the C callback from threads that Python did not make, as the driver does, and wait without the lock."""
    libc = ctypes.CDLL(None)  # which lets go of the interpreter's lock while it calls
    threads = [ctypes.c_ulong() for _ in keys]
    for thread, key in zip(threads, keys, strict=True):
        assert 0 == libc.pthread_create(ctypes.byref(thread), None, hostfunc.CALLBACK, ctypes.c_void_p(key))
    for thread in threads:
        assert 0 == libc.pthread_join(thread, None)


def known(function: Callable[[], object], turns: Turns | None = None) -> tuple[int, HostFunction]:
    """A number for the callback, and the host function that it stands for, with a turn that waits for it."""
    called, key = HostFunction(turns or Turns(), function), next(hostfunc._KEYS)
    called.ledger.add((called,))
    hostfunc._KNOWN[key] = called
    return key, called


class TestCallback:
    def test_runs_while_its_launcher_waits(self) -> None:
        """It takes the interpreter's lock in a thread of its own, while this one is blocked in C without it (I7)."""
        seen: list[int] = []
        key, _ = known(lambda: seen.append(threading.get_ident()))
        on_a_foreign_thread(key)
        assert (1, False) == (len(seen), threading.get_ident() in seen)

    def test_an_error_is_kept(self) -> None:
        """Nothing is raised into C, and nothing is printed: the ledger has it."""
        turns = Turns()
        on_a_foreign_thread(known(lambda: 1 // 0, turns)[0])
        with pytest.raises(HostFunctionFailed, match="ZeroDivisionError"):
            turns.tell_all()

    def test_a_number_that_nobody_knows_is_no_call(self) -> None:
        """What is freed can do no harm."""
        on_a_foreign_thread(next(hostfunc._KEYS))

    def test_the_number_keeps_nothing(self) -> None:
        """Graphs and turns do: when both are through, the function is gone."""
        key, function = known(gc.isenabled)
        alive = weakref.ref(function)
        on_a_foreign_thread(key)
        del function
        turns_module.land()
        assert (None, None) == (alive(), hostfunc._KNOWN.get(key))

    def test_no_cycles_are_collected_meanwhile(self) -> None:
        """They might hold what is CUDA's; afterwards the collector is as it was, also after two at once."""
        seen: list[bool] = []
        barrier = threading.Barrier(2, timeout=30)

        def function() -> None:
            barrier.wait()
            seen.append(gc.isenabled())
            barrier.wait()

        on_a_foreign_thread(*(known(function)[0] for _ in range(2)))
        assert ([False, False], True) == (seen, gc.isenabled())
        gc.disable()
        try:
            on_a_foreign_thread(known(gc.isenabled)[0])
            assert not gc.isenabled()
        finally:
            gc.enable()

    def test_knows_that_it_is_inside(self) -> None:
        """What calls the backend is refused there, and nowhere else."""
        turns = Turns()
        on_a_foreign_thread(known(lambda: hostfunc.refuse_inside("a replay"), turns)[0])
        with pytest.raises(HostFunctionFailed, match="a replay: a host function may not call the device"):
            turns.tell_all()
        hostfunc.refuse_inside("a replay")


@pytest.mark.parametrize(("over", "waits"), [(True, 0), (False, 1)])
def test_the_interpreter_waits_for_functions_when_it_ends(
    over: bool, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need it; where none is under way, it does not wait."""
    waited: list[int] = []
    turns_module._FLYING.clear()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(1))
    _, function = known(gc.isenabled)
    if over:
        function()
    hostfunc._drain()
    assert waits == len(waited)
    if not over:
        function()
    turns_module.land()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Backend]]:
    """Makes cuda backends of an emulated device, whose pools have no segments to count."""
    from tsgraph.backends.cuda import CudaBackend

    with emulate():
        monkeypatch.setattr(torch.cuda, "memory_snapshot", list)
        yield lambda: CudaBackend(torch.device("cuda"))
        monkeypatch.undo()


def test_the_cuda_backend_keeps_every_promise_about_them(cuda: Callable[[], Backend]) -> None:
    """Its part of the law, tried without a GPU: only the library's call is another."""
    mine = [each for each in BACKEND if each.check.__module__.endswith("host_functions")]
    assert len(mine) > 10
    Promises(BACKEND.protocol, mine).check(lambda: BackendTrial(cuda))


def test_the_cuda_backend_loses_none(cuda: Callable[[], Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a capture of somebody else's it refuses, and where CUDA refuses no turn is left waiting."""
    backend: Any = cuda()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureUnsupported, match="would lose its host function"), torch.cuda.graph(graph):
        backend.host_function(print)

    def refuse(*_: object) -> None:
        raise CaptureUnsupported("no")

    monkeypatch.setattr(hostfunc, "enqueue", refuse)
    with pytest.raises(CaptureUnsupported, match="no"):
        backend.host_function(print)
    assert 0 == len(backend._turns.open)


def test_a_replay_that_fails_leaves_no_turn(cuda: Callable[[], Backend]) -> None:
    """Its functions wait for the next one."""
    backend: Any = cuda()
    with backend.record(backend.pool()) as graph:
        backend.host_function(print)
    graph.graph.reset()
    with pytest.raises(RuntimeError):
        graph.replay()
    assert ([0], 0) == ([len(each.turns) for each in graph.functions], len(backend._turns.open))


def test_host_path_is_the_kernels() -> None:
    """Where loaded libraries are listed; a system without such a list has no libcudart to be found."""
    assert Path("/proc/self/maps") == hostfunc.MAPS
