"""A small complete inference engine on tsgraph, to learn from and to test with. Start reading at `engine`."""

from __future__ import annotations

from tsgraph.reference.cache import PageAllocator, PagedCache
from tsgraph.reference.config import EngineConfig
from tsgraph.reference.engine import Completion, ReferenceEngine, graph_runtime
from tsgraph.reference.model import Decoder, DecoderConfig
from tsgraph.reference.parts import Parts
from tsgraph.reference.scheduler import Request, Sampling, Scheduler
from tsgraph.reference.text import decode, encode, load_prompts

__all__ = [
    "Completion",
    "Decoder",
    "DecoderConfig",
    "EngineConfig",
    "PageAllocator",
    "PagedCache",
    "Parts",
    "ReferenceEngine",
    "Request",
    "Sampling",
    "Scheduler",
    "decode",
    "encode",
    "graph_runtime",
    "load_prompts",
]
