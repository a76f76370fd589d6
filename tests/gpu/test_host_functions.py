"""Host functions in real graphs: order, errors, lifetimes, and the interpreter's lock."""

import faulthandler
import gc
import subprocess
import sys
import time
import weakref
from functools import partial

import pytest
import torch

from tsgraph.backends import hostfunc
from tsgraph.backends.choice import choose_backend
from tsgraph.errors import CaptureUnsupported, HostFunctionFailed

pytestmark = pytest.mark.gpu

SECONDS = 120
LONG = 200_000_000  # cycles of the device: about a tenth of a second
REPLAYS = 1_000


@pytest.fixture(autouse=True)
def no_deadlock(capfd):
    """End the process where a test hangs, with the stacks of all threads: nothing in it could."""
    with capfd.disabled():
        faulthandler.dump_traceback_later(SECONDS, exit=True, file=sys.stderr)
        yield
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def cuda():
    """A CUDA backend."""
    return choose_backend("cuda", [], "cuda")


def record(backend, step):
    """A graph of `step`."""
    with backend.record(backend.pool()) as graph:
        step()
    return graph


def fails():
    """A host function that raises."""
    raise ValueError("planted")


def nothing():
    """A host function that does nothing."""


class Counter:
    """A host function that counts its calls, and can be seen to be gone."""

    def __init__(self, calls, seconds=0.0):
        self.calls, self.seconds = calls, seconds

    def __call__(self):
        time.sleep(self.seconds)
        self.calls.append(1)


def test_a_thousand_replays_in_order_among_kernels(cuda):
    """Each call finds what the kernel before it made, and the kernel after it reads what the call wrote."""
    x, out = (cuda.allocate((4,), torch.int64, 0) for _ in range(2))
    host, seen = cuda.pin((4,), torch.int64), []

    def build():
        seen.append(int(host[3]))
        host.mul_(10)

    def step():
        x.add_(1)
        host.copy_(x, non_blocking=True)
        cuda.host_function(build)
        out.copy_(host, non_blocking=True)
        out.add_(7)

    graph = record(cuda, step)
    for _ in range(REPLAYS):
        graph.replay()
    cuda.synchronize()
    assert (list(range(1, REPLAYS + 1)), [REPLAYS * 10 + 7] * 4) == (seen, out.tolist())


def test_several_in_one_graph_with_a_fork(cuda):
    """A side stream that forks and joins runs its functions between those before the fork and after the join."""
    x, host, calls = cuda.allocate((1 << 20,), torch.float32, 1), cuda.pin((1,), torch.float32), []
    side = torch.cuda.Stream()

    def step():
        main = torch.cuda.current_stream()
        cuda.host_function(lambda: calls.append("before"))
        side.wait_stream(main)
        with torch.cuda.stream(side):
            cuda.host_function(lambda: calls.append("fetch"))
            cuda.host_function(lambda: (calls.append("build"), host.fill_(3)))
            mask = host.to(cuda.device, non_blocking=True)
        x.mul_(1)
        main.wait_stream(side)
        x.copy_(mask.expand(1 << 20))
        cuda.host_function(lambda: calls.append("after"))

    graph = record(cuda, step)
    for _ in range(100):
        graph.replay()
    cuda.synchronize()
    assert ["before", "fetch", "build", "after"] * 100 == calls
    assert 3 == x.min().item()


def test_outside_a_recording_it_runs_once_in_order(cuda):
    """Among eager kernels of the current stream, while the host goes on."""
    x, host, seen = cuda.allocate((1,), torch.float32, 1), cuda.pin((1,), torch.float32), []
    cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(LONG)
        host.copy_(x, non_blocking=True)
        cuda.host_function(lambda: seen.append(float(host)))
        still = list(seen)
        x.add_(1)
        host.copy_(x, non_blocking=True)
        cuda.host_function(lambda: seen.append(float(host)))
    cuda.synchronize()
    assert ([], [1, 2]) == (still, seen)


WAITS = {
    "synchronize": lambda cuda, x: cuda.synchronize(),
    "ready": lambda cuda, x: cuda.ready().wait(),
    "stream": lambda cuda, x: torch.cuda.current_stream().synchronize(),
    "event": lambda cuda, x: torch.cuda.current_stream().record_event().synchronize(),
    "item": lambda cuda, x: x.sum().item(),
    "tolist": lambda cuda, x: x.tolist(),
    "cpu": lambda cuda, x: x.cpu(),
    "nonzero": lambda cuda, x: x.nonzero(),
    "trim": lambda cuda, x: cuda.trim(),
    "memory": lambda cuda, x: cuda.memory(),
    "record": lambda cuda, x: record(cuda, lambda: x.add_(1)),
    "allocate": lambda cuda, x: cuda.allocate((1 << 28,), torch.float32, 0),
    "pin": lambda cuda, x: cuda.pin((1 << 24,), torch.float32),
    "a kernel not loaded yet": lambda cuda, x: torch.special.bessel_j1(x).sum().item(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_the_launching_thread_may_wait(cuda, wait):
    """It lets go of the interpreter's lock, which the function needs: however it waits, there is no deadlock (I7)."""
    x, calls = cuda.allocate((1 << 16,), torch.float32, 1), []

    def busy():
        end = time.monotonic() + 0.02
        while time.monotonic() < end:  # with the lock, given up at every switch
            pass
        time.sleep(0.01)  # without it
        calls.append(1)

    graph = record(cuda, lambda: (x.mul_(1), cuda.host_function(busy), x.mul_(1)))
    for _ in range(5):
        graph.replay()
    WAITS[wait](cuda, x)
    cuda.synchronize()
    assert 5 == len(calls)


def test_more_replays_than_the_queue_holds(cuda):
    """The launching thread is blocked in a launch, by a device that is behind, while functions need the lock."""
    calls = []
    graph = record(cuda, lambda: [cuda.host_function(Counter(calls)) for _ in range(4)])
    torch.cuda._sleep(LONG)
    for _ in range(4 * REPLAYS):
        graph.replay()
    cuda.synchronize()
    assert 16 * REPLAYS == len(calls)


def test_an_error_fails_closed_and_later_nodes_run(cuda):
    """What `on_error` writes is what the next kernel reads; the mark raises, with the traceback, before any commit."""
    out, mask, steps = cuda.allocate((4,), torch.int32, 0), cuda.pin((4,), torch.int32), iter(range(100))

    def build():
        mask.fill_(-1)
        if next(steps) % 3 == 1:
            fails()

    def step():
        cuda.host_function(build, on_error=lambda: mask.fill_(0))
        out.copy_(mask, non_blocking=True)
        out.sub_(1)

    graph = record(cuda, step)
    for number in range(30):
        graph.replay()
        mark = cuda.ready()
        if number % 3 == 1:
            for _ in range(2):
                with pytest.raises(
                    HostFunctionFailed, match=r"build at \S+test_host_functions\.py:\d+: ValueError"
                ) as got:
                    mark.wait()
            assert "in fails" in got.value.context["traceback"]
            assert [-1] * 4 == out.tolist()
        else:
            mark.wait()
            assert [-2] * 4 == out.tolist()
    cuda.synchronize()


def test_each_mark_tells_of_its_own_step(cuda):
    """With two steps in flight over a thousand, exactly those that failed are told, by the marks made after them."""
    broken = [number * 37 % 100 < 20 for number in range(REPLAYS)]
    steps, told, marks = iter(broken), [], []
    graph = record(cuda, lambda: cuda.host_function(lambda: fails() if next(steps) else None))

    def settle():
        try:
            marks.pop(0).wait()
            told.append(False)
        except HostFunctionFailed:
            told.append(True)

    for _ in range(REPLAYS):
        graph.replay()
        marks.append(cuda.ready())
        if len(marks) > 2:
            settle()
    while marks:
        settle()
    cuda.synchronize()
    assert broken == told


def test_without_a_mark_the_next_replay_tells(cuda):
    """Nothing of it is run, and the one after it is."""
    x = cuda.allocate((1,), torch.float32, 0)
    bad, good = record(cuda, lambda: cuda.host_function(fails)), record(cuda, lambda: x.add_(1))
    bad.replay()
    torch.cuda.synchronize()
    with pytest.raises(HostFunctionFailed, match="planted"):
        good.replay()
    good.replay()
    cuda.synchronize()
    assert 1 == x.item()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration])
def test_errors_that_are_no_exceptions_are_told_too(cuda, error):
    """Nothing is raised into the driver, which would lose it."""

    def function():
        raise error

    cuda.host_function(function)
    with pytest.raises(HostFunctionFailed, match=error.__name__):
        cuda.synchronize()


def test_it_may_not_call_the_backend(cuda):
    """Each call would wait for itself: it is refused instead, and nothing hangs."""
    inner = record(cuda, lambda: cuda.host_function(nothing))
    for call in (
        cuda.synchronize,
        inner.replay,
        cuda.ready,
        partial(cuda.host_function, nothing),
        cuda.record(cuda.pool()).__enter__,
    ):
        cuda.host_function(call)
        with pytest.raises(HostFunctionFailed, match="a host function may not call the device"):
            cuda.synchronize()


def test_cycles_are_collected_during_replays(cuda):
    """Garbage that holds graphs, device and pinned memory is freed by the host's threads alone, and harms nothing."""
    calls, x = [], cuda.allocate((1024,), torch.float32, 0)

    def churn():
        for _ in range(200):
            cycle = [gc.isenabled()]
            cycle.append(cycle)
        calls.append(cycle[0])

    def litter():
        cycle = [record(cuda, lambda: (x.mul_(1), cuda.host_function(churn)))]
        cycle += [torch.ones(1 << 16, device=cuda.device), torch.ones(1 << 10).pin_memory(), cycle]

    graph = record(cuda, lambda: (x.add_(1), cuda.host_function(churn), x.add_(1)))
    threshold = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    try:
        for number in range(300):
            graph.replay()
            if number % 10 == 0:
                litter()
            if number % 50 == 0:
                gc.collect()
    finally:
        gc.set_threshold(*threshold)
    cuda.synchronize()
    gc.collect()
    assert ([False] * 300, 600, True) == (calls, x[0].item(), gc.isenabled())


def test_many_graphs_each_with_its_own(cuda):
    """A hundred graphs of one pool, replayed in any order: each calls its functions, as often as it was replayed."""
    pool, calls, replays = cuda.pool(), [[] for _ in range(100)], [0] * 100
    x = cuda.allocate((4,), torch.float32, 0)
    graphs = []
    for number in range(100):
        with cuda.record(pool) as graph:
            x.add_(1)
            cuda.host_function(Counter(calls[number]))
            cuda.host_function(Counter(calls[number]))
        graphs.append(graph)
    gc.collect()
    for turn in range(REPLAYS):
        number = turn * turn * 37 % 100
        graphs[number].replay()
        replays[number] += 1
    cuda.synchronize()
    assert [2 * count for count in replays] == [len(each) for each in calls]
    assert REPLAYS == x[0].item()


@pytest.mark.parametrize("end", ["release", "drop", "drop all"])
def test_a_graph_that_goes_while_replays_are_queued(cuda, end):
    """All of them run; then, and not before, its functions are freed. The same where graph or backend is dropped."""
    calls, backend = [], choose_backend("cuda", [], "cuda")
    function = Counter(calls, seconds=0.001)
    alive = weakref.ref(function)
    graph = record(backend, partial(backend.host_function, function))
    del function
    torch.cuda._sleep(10 * LONG)  # a collection takes its time
    for _ in range(50):
        graph.replay()
    if end == "release":
        graph.release()
    del graph
    if end == "drop all":
        del backend
    gc.collect()
    early = len(calls), alive() is None
    torch.cuda.synchronize()
    record(cuda, lambda: cuda.host_function(nothing)).release()
    gc.collect()
    assert ((0, False), 50, None) == (early, len(calls), alive())


def test_a_recording_that_fails_keeps_none_and_leaves_all_clean(cuda):
    """Its functions are never called, and the next recording works."""
    calls = []
    function = Counter(calls)
    alive = weakref.ref(function)

    def step(function):
        cuda.host_function(function)
        torch.ones(1, device=cuda.device).item()

    with pytest.raises(CaptureUnsupported):
        record(cuda, partial(step, function))
    del function
    gc.collect()
    gone = alive() is None
    graph = record(cuda, partial(cuda.host_function, Counter(calls)))
    graph.replay()
    cuda.synchronize()
    assert (True, 1) == (gone, len(calls))


def test_an_invalidated_recording_refuses_it(cuda):
    """With CUDA's words; and torch's next kernel does not find CUDA's error."""

    def step():
        with pytest.raises(RuntimeError):
            torch.ones(1, device=cuda.device).item()
        cuda.host_function(nothing)

    with pytest.raises(CaptureUnsupported):
        record(cuda, step)
    assert 2 == (torch.ones(1, device=cuda.device) * 2).item()


def test_a_capture_of_somebody_else_is_refused(cuda):
    """Its graph would not keep the function."""
    x = cuda.allocate((1,), torch.float32, 1)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1)
        with pytest.raises(CaptureUnsupported, match="would lose its host function"):
            cuda.host_function(nothing)


def test_the_library_is_torchs(cuda):
    """The runtime library of the version that torch was built with, and no other."""
    cuda.host_function(nothing)
    cuda.synchronize()
    assert f".so.{torch.version.cuda.split('.')[0]}" in hostfunc._library()._name


ENDS = """
import atexit
import torch
from tsgraph.backends.choice import choose_backend
cuda = choose_backend("cuda", [], "cuda")
calls = []
atexit.register(lambda: print("ended", len(calls)))
with cuda.record(cuda.pool()) as graph:
    cuda.host_function(lambda: calls.append(1))
torch.cuda._sleep(200_000_000)
for _ in range(100):
    graph.replay()
print("queued", len(calls), flush=True)
"""


def test_a_program_may_end_while_replays_are_queued():
    """The interpreter waits for them: they need it."""
    ended = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (0, "queued 0\nended 100\n", "") == (ended.returncode, ended.stdout, ended.stderr)
