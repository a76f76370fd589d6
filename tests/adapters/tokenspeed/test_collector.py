"""Garbage collection around captures."""

from __future__ import annotations

import gc
import weakref

import pytest

from tsgraph.adapters.tokenspeed import freeze_gc


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("enabled", [True, False])
def test_collects_before_and_after(enabled):
    """What died before is gone in the block, and what died in it is gone after it; meanwhile it may be kept away."""
    before = weakref.ref(Cycle())

    with freeze_gc(enabled):
        assert before() is None
        assert enabled == gc.isenabled()  # the fixture has frozen what is alive, so it is switched off instead
        inside = weakref.ref(Cycle())

    assert (None, True) == (inside(), gc.isenabled())


def test_collector_is_back_after_an_error():
    """On every exit."""
    with pytest.raises(OSError, match="in the block"), freeze_gc(enable_cudagraph_gc=False):
        raise OSError("in the block")

    assert gc.isenabled()
