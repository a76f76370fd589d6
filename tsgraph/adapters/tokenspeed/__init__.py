"""A drop-in for TokenSpeed's CUDA-graph wrapper: change one import, and every capture and replay is held to a spec."""

from __future__ import annotations

from typing import Any

from tsgraph.adapters.tokenspeed.collector import freeze_gc
from tsgraph.adapters.tokenspeed.deepep import DeepEPCudaGraphRunnerAdapter
from tsgraph.adapters.tokenspeed.errors import MissingTables, UncapturedGraph
from tsgraph.adapters.tokenspeed.pool import newest_pool
from tsgraph.adapters.tokenspeed.sizes import get_batch_sizes_to_capture
from tsgraph.adapters.tokenspeed.wrapper import CudaGraphWrapper
from tsgraph.capture.mode import is_capturing as get_is_capture_mode

__all__ = [
    "CudaGraphWrapper",
    "DeepEPCudaGraphRunnerAdapter",
    "MissingTables",
    "UncapturedGraph",
    "freeze_gc",
    "get_batch_sizes_to_capture",
    "get_is_capture_mode",
    "global_graph_memory_pool",
]


def __getattr__(name: str) -> Any:
    """`global_graph_memory_pool`: the pool of the newest recording, as torch knows it; None before the first."""
    if name == "global_graph_memory_pool":
        return newest_pool()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
