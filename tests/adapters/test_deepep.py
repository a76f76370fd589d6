"""DeepEP's mode and workspace around recordings and replays, against a fake of its published interface."""

import sys
import types

import pytest
import torch

from tsgraph.adapters.deepep import DeepEP, PlainHome
from tsgraph.assembly import Collaborators
from tsgraph.buffers.contract import Rows
from tsgraph.errors import CaptureFailed, ContractViolation, StaleSlot
from tsgraph.protocols.collaborators import Communication
from tsgraph.runtime import GraphRuntime


class Buffer:
    """The part of `deep_ep.Buffer` that is used: made in low-latency mode or not; cleaned with a layout."""

    def __init__(self, calls, low_latency_mode=True):
        self.calls = calls
        self.low_latency_mode = low_latency_mode

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank, hidden, num_experts):
        assert self.low_latency_mode
        self.calls.append(("clean", num_max_dispatch_tokens_per_rank, hidden, num_experts))


@pytest.fixture
def calls():
    """What the library was asked."""
    return []


@pytest.fixture
def home(calls, monkeypatch):
    """An engine's class with its process-wide buffer, none yet, in a module that can be imported."""

    class DeepEPBuffer:
        """As SGLang's: class methods over class attributes."""

        _buffer = None
        mode = "normal"

        @classmethod
        def set_dispatch_mode_as_low_latency(cls):
            cls.mode = "low latency"
            calls.append("low latency")

        @classmethod
        def clean_buffer(cls):
            cls._buffer.clean_low_latency_buffer(128, 7168, 256)

    module = types.ModuleType("an_engine_with_experts")
    module.__spec__ = types.SimpleNamespace(name=module.__name__, parent="")
    module.DeepEPBuffer = DeepEPBuffer
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return DeepEPBuffer


PATH = "an_engine_with_experts:DeepEPBuffer"


def test_it_is_a_communication_collaborator():
    """It has every member of the protocol, and is found complete when a runtime is built."""
    comm = DeepEP(PATH)
    assert isinstance(comm, Communication)
    Collaborators(comm=comm).check_members()


def test_nothing_is_done_without_a_buffer(home, calls):
    """Where no layer has made a buffer, neither recordings nor replays have anything to do."""
    comm = DeepEP(PATH)
    comm.arm()
    comm.restore()
    assert ([], False) == (calls, comm.active)


def test_arming_switches_the_mode(home, calls):
    """A recording is made in low-latency mode, and nothing is cleaned yet."""
    home._buffer = Buffer(calls)
    comm = DeepEP(PATH)
    comm.arm()
    assert (["low latency"], True) == (calls, comm.active)


def test_every_replay_finds_mode_and_workspace_as_recorded(home, calls):
    """Before each replay the mode is set again, since a prefill has changed it, then the buffer is cleaned."""
    home._buffer = Buffer(calls)
    comm = DeepEP(home)
    comm.arm()
    for _ in range(2):
        home.mode = "normal"
        calls.clear()
        comm.restore()
        assert (["low latency", ("clean", 128, 7168, 256)], "low latency") == (calls, home.mode)


def test_a_buffer_made_later_counts_from_the_next_recording(home, calls):
    """The first slot may be recorded before any layer made the buffer; the next recording finds it."""
    comm = DeepEP(PATH)
    comm.arm()
    home._buffer = Buffer(calls)
    comm.restore()
    assert [] == calls
    comm.arm()
    comm.restore()
    assert ["low latency", "low latency", ("clean", 128, 7168, 256)] == calls


@pytest.mark.parametrize("left", ["nothing", "another"])
def test_a_buffer_that_was_recorded_must_stay(home, calls, left):
    """A graph holds the addresses of its buffer: where that is gone or replaced, a replay is refused."""
    home._buffer = Buffer(calls)
    comm = DeepEP(PATH)
    comm.arm()
    home._buffer = None if left == "nothing" else Buffer(calls)
    calls.clear()
    with pytest.raises(StaleSlot, match="is gone"):
        comm.restore()
    assert [] == calls


def test_the_library_is_imported_late():
    """Nothing is imported before the first recording, and a library that is not installed is none that is used."""
    comm = DeepEP("no_such_engine.layers:DeepEPBuffer")
    comm.arm()
    comm.restore()
    assert not comm.active


def test_a_broken_library_is_heard(home):
    """A module that is there but lacks the class is an error, not "not installed"."""
    with pytest.raises(ContractViolation, match="no Typo in an_engine_with_experts"):
        DeepEP("an_engine_with_experts:Typo").arm()


def test_an_import_that_fails_inside_is_heard(tmp_path, monkeypatch):
    """An engine whose own import fails must not look like one that has no buffer."""
    (tmp_path / "an_engine_that_breaks.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        DeepEP("an_engine_that_breaks:DeepEPBuffer").arm()


def test_a_home_without_a_member_is_refused():
    """A class of another version, without the method, is named with what it lacks."""
    with pytest.raises(ContractViolation, match=r"DeepEP home\.clean_buffer: expected a method"):
        DeepEP(types.SimpleNamespace(_buffer=object(), set_dispatch_mode_as_low_latency=print)).arm()


def test_a_bare_buffer_is_cleaned_with_its_layout(calls):
    """With `deep_ep.Buffer` alone, the layout is given once for all slots (fault E8)."""
    buffer = Buffer(calls)
    home = PlainHome(lambda: buffer, tokens=64, hidden=2048, experts=32, set_mode=lambda: calls.append("low latency"))
    comm = DeepEP(home)
    comm.arm()
    comm.restore()
    assert ["low latency", "low latency", ("clean", 64, 2048, 32)] == calls


def test_a_bare_buffer_needs_no_one_to_tell(calls):
    """Layers that know no mode are told nothing; and before there is a buffer nothing is done."""
    made = []
    comm = DeepEP(PlainHome(lambda: made[0] if made else None, tokens=64, hidden=2048, experts=32))
    comm.arm()
    made.append(Buffer(calls))
    comm.arm()
    comm.restore()
    assert [("clean", 64, 2048, 32)] == calls


def test_a_normal_buffer_is_refused(calls):
    """A buffer made without the low-latency mode has no memory for it: DeepEP would end the process."""
    buffer = Buffer(calls, low_latency_mode=False)
    with pytest.raises(ContractViolation, match="low_latency_mode=True"):
        DeepEP(PlainHome(lambda: buffer, 64, 2048, 32)).arm()


def test_a_runtime_restores_before_each_replay(backend, home, calls):
    """Recorded once a slot, restored before every replay and before no eager step; a lost buffer stops replays."""
    home._buffer = Buffer(calls)
    inputs = {"ids": Rows(torch.int64, pad=0)}
    step = {"inputs": inputs, "sizes": (2,), "outputs": "request"}
    runtime = GraphRuntime.for_step(lambda ids: ids + 1, **step, backend=backend, comm=DeepEP(PATH))
    runtime.capture()
    assert ["low latency"] == calls
    calls.clear()
    for ids in ([1], [1, 2], [1, 2, 3]):
        runtime(ids=torch.tensor(ids))
    assert ["low latency", ("clean", 128, 7168, 256)] * 2 == calls
    home._buffer = None
    with pytest.raises(StaleSlot):
        runtime(ids=torch.tensor([1]))


def test_a_wrong_home_fails_the_capture(backend):
    """What the collaborator finds wrong while arming is the capture's failure, with its words."""
    step = {"inputs": {"ids": Rows(torch.int64, pad=0)}, "sizes": (2,), "outputs": "request"}
    wrong = DeepEP(types.SimpleNamespace(_buffer=object()))
    runtime = GraphRuntime.for_step(lambda ids: ids + 1, **step, backend=backend, comm=wrong)
    runtime.fire(("default", 2), "warm")
    runtime.fire(("default", 2), "bind")
    with pytest.raises(CaptureFailed, match="set_dispatch_mode_as_low_latency: expected a method"):
        runtime.fire(("default", 2), "capture")
