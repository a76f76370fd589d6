"""Captures around and beside each other, pools of captures that failed, seeds and streams within one."""

from __future__ import annotations

import gc

import pytest
import torch

from tsgraph.backends.emulated import streams
from tsgraph.errors import CaptureUnsupported, NotEmulated

pytestmark = pytest.mark.usefixtures("emulated")


@pytest.fixture
def source():
    """A tensor of the device."""
    return torch.ones(4, device="cuda")


def _capture(step, **options):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        step()
    return graph


# -- captures within captures -----------------------------------------------------------------------------------------


def _inner(source, graph, made):
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        made.append(source + 1)
        graph.capture_end()


def test_a_capture_within_a_relaxed_one(source):
    """On another stream it is a graph of its own, and the outer one goes on."""
    inner, made = torch.cuda.CUDAGraph(), []

    def step():
        made.append(source * 2)
        _inner(source, inner, made)
        made.append(made[0] * 2)

    outer = _capture(step, capture_error_mode="relaxed")
    outer.replay()
    inner.replay()

    assert [[2.0] * 4, [2.0] * 4, [4.0] * 4] == [each.tolist() for each in made]
    assert (2, 1) == (len(outer.emulated.nodes), len(inner.emulated.nodes))


def test_a_capture_within_another(source):
    """Its end is forbidden, as CUDA would make a graph then, and both are lost; others work afterwards."""
    inner = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureUnsupported, match="invalid since the end of a recording") as caught:
        _capture(lambda: _inner(source, inner, []))

    assert "cudaErrorStreamCaptureUnsupported" == caught.value.__cause__.context["cuda"]
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        inner.replay()
    with torch.cuda.stream(torch.cuda.default_stream()):
        _capture(lambda: source.mul_(2)).replay()
    assert [2.0] * 4 == source.tolist()


def test_an_inner_capture_that_is_left_open(source):
    """The outer one cannot end before it; when it has, it can."""
    inner, outer = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        outer.capture_begin(capture_error_mode="relaxed")
        with torch.cuda.stream(torch.cuda.Stream()):
            inner.capture_begin()
            with pytest.raises(NotEmulated, match="in the reverse order"):
                outer.capture_end()
            inner.capture_end()
        source.mul_(2)
        outer.capture_end()
    outer.replay()

    assert [2.0] * 4 == source.tolist()


# -- resets and pools -------------------------------------------------------------------------------------------------


def test_a_reset_in_a_capture(source):
    """Torch drops the graph and warns; the capture is invalid, which its end says."""
    graph = _capture(lambda: source.mul_(2))
    with (
        pytest.warns(UserWarning, match=r"CUDA warning: CUDAGraph\.reset"),
        pytest.raises(CaptureUnsupported, match=r"invalid since CUDAGraph\.reset"),
    ):
        _capture(graph.reset)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def test_a_reset_that_a_capture_does_not_forbid(source):
    """In relaxed mode, and of a graph that has captured nothing yet, its own capture included."""
    graph, mine = _capture(lambda: source.mul_(2)), torch.cuda.CUDAGraph()
    _capture(graph.reset, capture_error_mode="relaxed")
    with torch.cuda.graph(mine):
        mine.reset()
        torch.cuda.CUDAGraph().reset()
        source.mul_(2)
    mine.replay()

    assert [2.0] * 4 == source.tolist()


def _forbidden(source):
    source.sum().item()


def _unjoined(source):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        source.add_(1)


@pytest.mark.parametrize("fault", [_forbidden, _unjoined])
def test_the_pool_of_a_capture_that_cuda_ended(source, fault):
    """Torch leaves it open: it cannot be captured into again. Its other graphs replay, and other pools are free."""
    good = _capture(lambda: source.mul_(2))
    with pytest.raises(CaptureUnsupported):
        _capture(lambda: fault(source), pool=good.pool())
    torch.cuda.set_stream(torch.cuda.default_stream())
    gc.collect()
    torch.cuda.empty_cache()

    with pytest.raises(RuntimeError, match="already recording to mempool_id"):
        _capture(lambda: source.mul_(2), pool=good.pool())
    _capture(lambda: source.mul_(2), pool=torch.cuda.graph_pool_handle()).replay()
    good.replay()
    assert [4.0] * 4 == source.tolist()


def test_the_pool_of_a_capture_that_raised(source):
    """An error of the captured code leaves the capture valid, so its pool is closed and can be used again."""
    handle = torch.cuda.graph_pool_handle()
    kept = torch.cuda.CUDAGraph()
    with pytest.raises(ZeroDivisionError), torch.cuda.graph(kept, pool=handle):
        1 / 0  # noqa: B018
    _capture(lambda: source.mul_(2), pool=handle).replay()

    assert [2.0] * 4 == source.tolist()


def test_a_pool_that_another_capture_uses(source):
    """One capture at a time takes memory from a pool."""
    handle = torch.cuda.graph_pool_handle()

    def step():
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.CUDAGraph().capture_begin(pool=handle)

    with pytest.raises(RuntimeError, match="already recording to mempool_id"):
        _capture(step, pool=handle)


# -- random numbers ---------------------------------------------------------------------------------------------------


def test_seeding_in_a_capture():
    """The seed that the generator has may be set again, and changes nothing; so may a state of that seed."""
    torch.cuda.manual_seed(7)
    expected = torch.rand(4, device="cuda").tolist()
    torch.cuda.manual_seed(7)
    made = []

    def step():
        made.append(torch.rand(4, device="cuda"))
        torch.cuda.manual_seed(7)
        torch.manual_seed(7)
        torch.cuda.set_rng_state(torch.cuda.get_rng_state())

    _capture(step).replay()

    assert expected == made[0].tolist()


@pytest.mark.parametrize("seed", [
    lambda: torch.cuda.manual_seed(8), lambda: torch.manual_seed(8), torch.cuda.seed,
    lambda: torch.cuda.set_rng_state(torch.Generator("cuda").manual_seed(8).get_state()),
])  # fmt: skip
def test_another_seed_in_a_capture(seed):
    """A graph takes the seed at each replay, not in a capture. Torch refuses, and the capture stays valid."""
    torch.cuda.manual_seed(7)

    def step():
        with pytest.raises(CaptureUnsupported, match="numbers are being recorded"):
            seed()

    _capture(step)
    assert 7 == torch.cuda.initial_seed()


# -- streams ----------------------------------------------------------------------------------------------------------


def _drops(source, *, told):
    main, side, dropped = torch.cuda.current_stream(), torch.cuda.Stream(), source * 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        source + dropped
    if told:
        dropped.record_stream(side)
    del dropped
    source * 3
    main.wait_stream(side)


def test_record_stream(source):
    """A block that another stream uses is used again in the capture, unless `record_stream` was told: then it waits."""
    _capture(lambda: _drops(source, told=True))
    with pytest.raises(CaptureUnsupported, match="a wait is missing"):
        _capture(lambda: _drops(source, told=False))


def test_there_is_one_default_stream():
    """That of `torch.cuda` is that of the emulated device, in every block."""
    default = torch.cuda.default_stream()
    with torch.cuda.stream(torch.cuda.Stream()):
        assert default is torch.cuda.default_stream() is streams.default_stream()
    assert default is streams.current_stream() is torch.cuda.current_stream()
    assert isinstance(default, torch.cuda.Stream)
