"""A thread that records on one stream and begins another recording on a second one, as CUDA lets it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.recording import Recording
from tsgraph.backends.emulated.streams import Stream, current_stream, set_stream, using
from tsgraph.errors import CaptureUnsupported, NotEmulated


@pytest.fixture
def x(backend: EmulatedBackend) -> torch.Tensor:
    """Four ones."""
    return backend.allocate((4,), torch.float32, 1)


@contextmanager
def recording(backend: EmulatedBackend, mode: str) -> Iterator[Recording]:
    """One under way on a stream of its own; what is left open is aborted."""
    made = Recording(backend._residence, backend.pool(), mode=mode)  # type: ignore[arg-type]  # one of three words
    with using(Stream()):
        made.begin()
        try:
            yield made
        finally:
            made.abort()


def test_each_records_its_own_stream(backend: EmulatedBackend, x: torch.Tensor) -> None:
    """What is done between begin and end of the inner one is its own; before and after, the outer one goes on."""
    with recording(backend, "relaxed") as outer:
        doubled = x * 2
        with recording(backend, "global") as inner:
            tripled = x * 3
            inner.end()
        both = doubled + 1
        outer.end()
    outer.graph.replay()
    assert (["aten.mul.Tensor"], 2) == ([node.operator for node in inner.graph.nodes], len(outer.graph.nodes))
    assert [3] * 4 == both.tolist() != tripled.tolist()
    inner.graph.replay()
    assert [3] * 4 == tripled.tolist()


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_the_end_is_refused_where_the_outer_forbids_it(backend: EmulatedBackend, x: torch.Tensor, mode: str) -> None:
    """CUDA makes a graph of what was recorded, which is potentially unsafe: the inner fails, the outer is invalid."""
    with recording(backend, mode) as outer:
        with recording(backend, "relaxed") as inner:
            x.mul_(3)
            with pytest.raises(CaptureUnsupported, match=r"the end of a recording .* not inside a recording"):
                inner.end()
        assert inner.over
        with pytest.raises(CaptureUnsupported, match="invalid since the end of a recording") as caught:
            outer.end()
    assert caught.value.context["cuda"] == "cudaErrorStreamCaptureInvalidated"


def test_the_outer_waits_for_the_inner(backend: EmulatedBackend, x: torch.Tensor) -> None:
    """To end it first, or to put work on its streams meanwhile, is not emulated, and says so."""
    with recording(backend, "relaxed") as outer:
        stream = current_stream()
        with recording(backend, "relaxed") as inner:
            with pytest.raises(NotEmulated, match="began before the one in progress"):
                set_stream(stream)
            with pytest.raises(NotEmulated, match="in the reverse order"):
                outer.end()
            inner.end()
        x.mul_(2)
        outer.end()
    assert 1 == len(outer.graph.nodes)
