"""DeepEP's mode around recordings and replays."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tsgraph.adapters.tokenspeed import DeepEPCudaGraphRunnerAdapter
from tsgraph.adapters.tokenspeed.deepep import HOME


@pytest.fixture
def home(monkeypatch):
    """The engine's home of the buffer, which notes what is asked of it."""
    module = ModuleType(HOME)

    class DeepEPBuffer:
        _buffer = object()
        asked: tuple[str, ...] = ()

        @classmethod
        def set_dispatch_mode_as_low_latency(cls):
            cls.asked += ("mode",)

        @classmethod
        def clean_buffer(cls):
            cls.asked += ("clean",)

    module.DeepEPBuffer = DeepEPBuffer
    monkeypatch.setitem(sys.modules, HOME, module)
    return DeepEPBuffer


def test_recording_sets_the_mode_and_replays_restore_it(home):
    """A recording needs the mode; each replay the mode and a clean buffer."""
    adapter = DeepEPCudaGraphRunnerAdapter()

    adapter.capture()
    adapter.replay()

    assert ("mode", "mode", "clean") == home.asked


def test_replay_without_a_recording_does_nothing(home):
    """Only what was recorded with the buffer is restored."""
    DeepEPCudaGraphRunnerAdapter().replay()

    assert () == home.asked


@pytest.mark.parametrize("gone", ["before", "after"])
def test_no_buffer_nothing_to_do(home, gone):
    """Without a buffer a recording does not make the adapter active, and a replay leaves the mode alone."""
    adapter = DeepEPCudaGraphRunnerAdapter()
    if gone == "after":
        adapter.capture()
    home.asked, home._buffer = (), None

    adapter.capture()
    adapter.replay()

    assert () == home.asked


def test_no_library_nothing_to_do():
    """Nor without the library."""
    adapter = DeepEPCudaGraphRunnerAdapter()

    adapter.capture()
    adapter.replay()

    assert HOME not in sys.modules
