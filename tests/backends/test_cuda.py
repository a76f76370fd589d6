"""What the hot path of the CUDA backend calls in place of torch's methods of Python; tried without a device."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from tsgraph.backends import cuda, hostfunc
from tsgraph.backends.cuda import CudaGraph
from tsgraph.backends.turns import Turns
from tsgraph.errors import CaptureUnsupported


class Below:
    """In the place of the class of C++."""

    def replay(self):
        return "C++"


class Torchs(Below):
    """In the place of torch's."""

    __module__ = "torch.cuda.graphs"

    def replay(self):
        return "Python"


class Theirs(Torchs):
    """Somebody's own, in the place of torch's."""

    __module__ = "somebody"


def test_a_graph_of_torchs_is_launched_past_its_method():
    """Which does nothing but call the one below."""
    assert "C++" == cuda.launcher(Torchs())()


def test_whatever_stands_in_for_it_is_called_as_it_is():
    """An emulation, or a class that measures."""
    assert "Python" == cuda.launcher(Theirs())()


def test_who_records_is_asked_of_what_stands_in_for_torch(monkeypatch):
    """An emulation of CUDA knows it, where torch's function does not."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: "theirs")
    assert "theirs" == cuda._recording_teller()()
    monkeypatch.undo()
    assert torch._C._cuda_isCurrentStreamCapturing is cuda._recording_teller()


class Launched:
    """In the place of a graph that takes a tray: what was done around its launches, in order."""

    def __init__(self, filled=4):
        self.log, self.fails = [], False
        self.number, self.filled, self.size, self.ring = 1, filled, 4, self

    def replay(self):
        if self.fails:
            raise RuntimeError("refused")
        self.log.append("launch")

    def offer(self):
        self.log.append("empty tray")

    def advance(self):
        self.log.append("advance")


def graph_of(launched):
    """A graph of the backend around it."""
    return CudaGraph(SimpleNamespace(), Turns(), graph=launched, feed=launched)


@pytest.mark.parametrize(("filled", "before"), [(4, []), (0, ["empty tray"]), (8, ["empty tray"])])
def test_each_replay_takes_one_tray(filled, before):
    """That which was filled for its size, or an empty one."""
    launched = Launched(filled)
    graph_of(launched).replay()
    assert [*before, "launch", "advance"] == launched.log


def test_a_launch_that_fails_takes_none():
    """The next replay fills the same tray again."""
    launched = Launched()
    launched.fails = True
    with pytest.raises(RuntimeError, match="refused"):
        graph_of(launched).replay()
    assert [] == launched.log


def test_nothing_is_launched_inside_of_a_host_function(monkeypatch):
    """The device waits for it. Another thread may replay meanwhile."""
    launched = Launched()
    monkeypatch.setattr(hostfunc, "INSIDE", {threading.get_ident()})
    with pytest.raises(CaptureUnsupported, match="a replay: a host function may not call the device"):
        graph_of(launched).replay()
    assert [] == launched.log
    monkeypatch.setattr(hostfunc, "INSIDE", {threading.get_ident() + 1})
    graph_of(launched).replay()
    assert ["launch", "advance"] == launched.log
