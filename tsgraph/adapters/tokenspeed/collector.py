"""Garbage collection around captures (rule R43)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from tsgraph.capture.pipeline import SessionWork


@contextmanager
def freeze_gc(enable_cudagraph_gc: bool) -> Iterator[None]:
    """Collect before and after the block; in it keep the collector away, unless `enable_cudagraph_gc`."""
    gc.collect()
    work = SessionWork(collect="young")  # all of it just was
    if not enable_cudagraph_gc:
        work.freeze_gc()
    try:
        yield
    finally:
        work.thaw_gc()
        gc.collect()
