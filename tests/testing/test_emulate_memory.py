"""When eager work has to ask CUDA for memory, or gives some back, and a capture forbids it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tsgraph.errors import CaptureUnsupported

pytestmark = pytest.mark.usefixtures("emulated")
FORBIDDEN = "an allocation of device memory"


@pytest.fixture
def source():
    """A tensor of the default stream's."""
    return torch.ones(4, device="cuda")


def _capture(step, mode="global"):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        step()
    return graph


def _on(stream, make):
    def step():
        with torch.cuda.stream(stream):
            make()

    return step


@pytest.mark.parametrize("make", [lambda x: x * 2, lambda x: torch.ones(3, device="cuda")], ids=["work", "factory"])
@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_a_stream_without_memory(source, make, mode):
    """Work beside the capture, on a stream that holds no memory yet, needs a segment: CUDA forbids to ask for it."""
    with pytest.raises(CaptureUnsupported, match="invalid since an allocation of device memory") as caught:
        _capture(_on(torch.cuda.Stream(), lambda: make(source)), mode)

    assert FORBIDDEN in str(caught.value.__cause__)


def test_work_that_needs_no_memory(source):
    """In place, on the default stream, which has a segment, or where nothing is forbidden, it is done at once."""
    side = torch.cuda.Stream()
    _capture(_on(side, lambda: source.mul_(2)))
    _capture(_on(torch.cuda.default_stream(), lambda: source * 2))
    _capture(_on(side, lambda: source * 2), "relaxed")

    assert [2.0] * 4 == source.tolist()


def test_memory_that_the_stream_has_freed(source):
    """What a stream has freed serves it again, until the cache is emptied, as `torch.cuda.graph` does."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        kept = source * 2
    _capture(_on(side, lambda: source * 2))  # beside `kept` there is room in its segment
    del kept
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()  # which by itself does not empty the cache
        _on(side, lambda: source * 2)()
        graph.capture_end()

    with pytest.raises(CaptureUnsupported):
        _capture(_on(side, lambda: source * 2))


def test_memory_in_another_thread(source):
    """A small tensor finds room; a large one has to be asked for, which a global capture forbids to all threads."""

    def large():
        return torch.empty(4_000_000, device="cuda")

    with ThreadPoolExecutor(1) as pool:
        _capture(lambda: pool.submit(torch.ones, 4, device="cuda").result())
        _capture(lambda: pool.submit(large).result(), "thread_local")
        with pytest.raises(CaptureUnsupported, match="invalid since an allocation"):
            _capture(lambda: pool.submit(large).result())


def test_pinned_memory_in_another_thread(source):
    """A global capture forbids other threads to pin; torch lets the stream of the capture do so."""
    _capture(lambda: torch.zeros(9).pin_memory())
    with ThreadPoolExecutor(1) as pool:
        _capture(lambda: pool.submit(torch.zeros(9).pin_memory).result(), "thread_local")
        with pytest.raises(CaptureUnsupported, match="invalid since an allocation of pinned memory"):
            _capture(lambda: pool.submit(torch.zeros(9).pin_memory).result())


def test_an_empty_cache_may_be_emptied(source):
    """There is nothing to give back in a capture that `torch.cuda.graph` began; what was recorded replays."""
    made = []
    graph = _capture(lambda: (made.append(source + 1), torch.cuda.empty_cache()))
    graph.replay()

    assert [2.0] * 4 == made[0].tolist()


@pytest.mark.parametrize("what", ["segment", "pool"])
def test_memory_is_not_given_back_in_a_capture(source, what):
    """To free a segment that nothing uses, of a stream or of a pool without graphs, is forbidden."""
    first = _capture(lambda: source + 1)
    with torch.cuda.stream(torch.cuda.Stream()):
        unused = source * 2
        graph = torch.cuda.CUDAGraph()
        if what == "pool":
            del unused
            torch.cuda.empty_cache()
            first.reset()
        else:
            del unused
        graph.capture_begin()
        with pytest.raises(CaptureUnsupported, match=r"torch\.cuda\.empty_cache"):
            torch.cuda.empty_cache()
        with pytest.raises(CaptureUnsupported, match=r"invalid since torch\.cuda\.empty_cache"):
            graph.capture_end()


def test_many_dead_tensors_take_no_more_memory(source):
    """Blocks of tensors that died unnoticed are found when there is no room left, not taken for used."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        kept = torch.empty(100_000, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        for _ in range(50):
            _on(side, lambda: torch.empty_like(kept))()
        graph.capture_end()


def test_what_a_failed_capture_leaves_behind(source):
    """A tensor that outlives it is the device's, as on a GPU."""
    made = []
    with pytest.raises(ZeroDivisionError):
        _capture(lambda: (made.append(source + 1), 1 / 0))
    with pytest.raises(CaptureUnsupported):
        _capture(lambda: (made.append(source + 1), source.sum().item()))

    assert [torch.device("cuda", 0)] * 2 == [each.device for each in made]
