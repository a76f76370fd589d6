"""`emulate()` as a whole: it is there in the block, in every thread, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tsgraph import testing
from tsgraph.backends.emulated import streams
from tsgraph.errors import CaptureUnsupported, NotEmulated, ReplayFailed
from tsgraph.testing import emulate

NO_CUDA = not torch.cuda.is_available()
MODULES = (
    torch, torch._C, torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs,
    torch.Tensor, torch.cuda.nvtx, torch.cuda.graph, torch.accelerator, torch.amp.autocast_mode.autocast,
    torch.backends.cuda, torch.backends.cudnn, threading.Thread, streams,
)  # fmt: skip


def _everything():
    """Each attribute of all that the emulation patches, by owner and name."""
    return {(str(owner), name): value for owner in MODULES for name, value in vars(owner).items()}


def _differences(before, after):
    names = before.keys() | after.keys()
    return sorted(name for name in names if before.get(name) is not after.get(name))


def test_block_has_a_device():
    """In the block there is a CUDA device; it says that it is emulated."""
    with emulate():
        facts = torch.cuda.is_available(), torch.cuda.device_count(), "mulated" in torch.cuda.get_device_name()

    assert (True, 1, True) == facts


def test_everything_is_put_back():
    """Afterwards every patched attribute is the very object that it was, and no mode is left on a stack."""
    torch.ones(1)  # what torch loads at the first use is loaded
    with emulate():
        pass
    before = _everything()
    with emulate():
        inside = _differences(before, _everything())
        torch.zeros(2, device="cuda")

    assert [] == _differences(before, _everything())
    assert len(inside) > 50
    assert ([], []) == (_get_current_function_mode_stack(), _get_current_dispatch_mode_stack())
    assert streams.current_stream() is streams.default_stream()
    assert streams.Stream is type(streams.default_stream())


def test_everything_is_put_back_after_an_exception():
    """So it is when the block raises, and the exception passes."""
    before = _everything()
    with pytest.raises(KeyError, match="mine"), emulate():
        raise KeyError("mine")

    assert [] == _differences(before, _everything())


def test_everything_is_put_back_from_within_a_capture():
    """An exception that leaves a capture open ends the capture too: the next emulation can capture."""
    before = _everything()

    def leave_open():
        torch.cuda.CUDAGraph().capture_begin()
        raise KeyError

    with pytest.raises(KeyError), emulate(), torch.cuda.stream(torch.cuda.Stream()):
        leave_open()
    assert [] == _differences(before, _everything())

    with emulate():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = torch.ones(2, device="cuda")
        graph.replay()
        assert [1.0, 1.0] == made.tolist()


def test_nested_emulation_is_the_same():
    """Inside another emulation it changes nothing: tensors of the outer one are on the device, and stay there."""
    with emulate():
        stream, outer = torch.cuda.Stream, torch.ones(1, device="cuda")
        with emulate():
            assert (stream, True) == (torch.cuda.Stream, (outer + 1).is_cuda)
        assert (True, True) == (outer.is_cuda, torch.cuda.is_available())


def test_second_emulation_knows_nothing_of_the_first():
    """What was made on the device is an ordinary tensor afterwards, for a later emulation too."""
    with emulate():
        old = torch.ones(2, device="cuda")
    assert (torch.device("cpu"), [2.0, 2.0]) == (old.device, (old + 1).tolist())

    with emulate():
        assert (False, 0) == (old.is_cuda, torch.cuda.memory_allocated())


def test_inside_a_recording_it_is_refused():
    """It changes what a recording runs under, so it may not begin in one."""
    with emulate(), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(1, device="cuda")
        with pytest.raises(CaptureUnsupported, match="emulate"), emulate():
            pass


def test_stand_ins_of_an_emulation_that_is_over():
    """A class that was imported inside is refused outside, with the reason."""
    with emulate():
        graph = torch.cuda.CUDAGraph

    with pytest.raises(NotEmulated, match="nothing is emulated"):
        graph()


def test_new_threads_see_the_device():
    """A thread that is started in the block sees the device, whatever class it is of; its stream is its own."""
    seen = []

    class Worker(threading.Thread):
        def run(self):
            seen.append((torch.ones(1, device="cuda").is_cuda, torch.cuda.current_stream().stream_id))

    with emulate(), torch.cuda.stream(torch.cuda.Stream()):
        for thread in (Worker(), threading.Thread(target=Worker().run)):
            thread.start()
            thread.join()

    assert [(True, 0), (True, 0)] == seen


def test_tensors_cross_threads():
    """Residence is the process's: a tensor that one thread makes is a device tensor in all."""
    with emulate(), ThreadPoolExecutor(2) as pool:
        made = pool.submit(lambda: torch.ones(3, device="cuda")).result()
        devices = {str(each) for each in pool.map(lambda _: (made + 1).device, range(4))}

        assert (True, {"cuda:0"}) == (made.is_cuda, devices)


def test_older_threads_join_at_the_first_call():
    """A thread older than the block sees the device once it has called `torch.cuda`, and none of it afterwards."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        with emulate():
            joined = pool.submit(lambda: (torch.cuda.current_device(), torch.ones(1, device="cuda"))).result()
            assert (0, True) == (joined[0], joined[1].is_cuda)
            with torch.cuda.stream(torch.cuda.Stream()):
                assert pool.submit(torch.cuda.current_stream).result() is torch.cuda.default_stream()
        after = pool.submit(lambda: (joined[1].is_cuda, streams.current_stream())).result()

    assert (False, streams.default_stream()) == after


@pytest.mark.parametrize("mode", ["relaxed", "thread_local"])
def test_waiting_beside_a_capture(mode):
    """On a stream that takes no part in a relaxed capture of its own, a thread may read the device; else it may not."""
    with emulate():
        source, aside = torch.ones(2, device="cuda"), torch.cuda.Stream()
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode=mode)
            with torch.cuda.stream(aside):
                if mode == "relaxed":
                    made = torch.ones(2, device="cuda") + source.cpu().cuda()
                    assert (True, False, [2.0, 2.0]) == (made.is_cuda, made.cpu().is_cuda, made.tolist())
                else:
                    with pytest.raises(CaptureUnsupported):
                        source.cpu()


def test_one_threads_capture_is_not_another_threads():
    """While one thread captures, the work of another is done at once."""
    with emulate(), ThreadPoolExecutor(1) as pool:
        other = pool.submit(torch.full, (2,), 3.0, device="cuda")
        other.result()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            recorded = torch.ones(2, device="cuda") * 5
            aside = pool.submit(torch.mul, other.result(), 2).result()
        graph.replay()

        assert ([6.0, 6.0], [5.0, 5.0]) == (aside.tolist(), recorded.tolist())


def test_unknown_name_is_an_attribute_error():
    """A typo is answered as by any module, although names are imported when they are used."""
    with pytest.raises(AttributeError, match=r"module 'tsgraph\.testing' has no attribute 'fuz'"):
        testing.fuz  # noqa: B018


def test_it_imports_without_hypothesis():
    """Whoever emulates in an application needs no test library."""
    code = "import sys, tsgraph.testing; sys.exit('hypothesis' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


@pytest.mark.skipif(not NO_CUDA, reason="this machine has a CUDA device")
def test_names_imported_in_the_block_are_the_emulated_ones(tmp_path, monkeypatch):
    """An engine that is imported in the block may take names from `torch.cuda` at its import."""
    engine = "import torch\nfrom torch.cuda import CUDAGraph, Stream, graph, is_available\nON = is_available()\n"
    (tmp_path / "engine_under_test.py").write_text(engine)
    monkeypatch.syspath_prepend(tmp_path)
    with emulate():
        import engine_under_test as engine  # type: ignore[import-not-found]  # written above

        recorded = engine.CUDAGraph()
        with engine.graph(recorded, stream=engine.Stream()):
            made = torch.ones(1, device="cuda")
        recorded.replay()

        assert (True, [1.0]) == (engine.ON, made.tolist())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, where it loads its compiler
def test_compiled_functions_run_eagerly():
    """`torch.compile` would run kernels for the CPU, whose outputs nobody notes: in the block it does nothing."""
    with emulate():
        doubled = torch.compile(lambda x: x * 2)(torch.ones(2, device="cuda"))

        assert (True, [2.0, 2.0]) == (doubled.is_cuda, doubled.tolist())


def test_dropped_inputs():
    """A checked replay of a graph whose input is gone is an error; an unchecked one runs, as on a GPU."""
    outcomes = []
    for checked in (True, False):
        with emulate(checked=checked):
            graph = torch.cuda.CUDAGraph()
            source = torch.ones(2, device="cuda")
            with torch.cuda.graph(graph):
                made = source * 2
            del source
            try:
                graph.replay()
                outcomes.append(made.tolist() == [2.0, 2.0])
            except ReplayFailed as error:
                outcomes.append("was freed" in str(error) or str(error))
    assert [True, False] == outcomes


def test_graph_survives_the_emulation():
    """A graph that is replayed after the block still works on its own memory."""
    with emulate():
        source = torch.ones(2, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = source * 2
    graph.replay()

    assert [2.0, 2.0] == made.tolist()


def test_default_device_ends_with_the_emulation():
    """What the block has set is forgotten after it, and a default from before is there again."""
    torch.set_default_device("meta")
    with emulate():
        before = torch.ones(1).device
        torch.set_default_device("cuda")
        during = torch.ones(1).device
    try:
        after = torch.ones(1).device, torch.get_default_device()
    finally:
        torch.set_default_device(None)

    assert ("meta", "cuda", "meta", "meta") == tuple(each.type for each in (before, during, *after))
