"""The capture sizes of an engine's configuration (rule R1)."""

from __future__ import annotations

from typing import Any

import attrs

from tsgraph.dispatch.sizes import capture_sizes
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import Sizes, Spec

BLOCK_DRAFTER = "DFLASH"


def spec_of(config: Any) -> Spec:
    """The spec of an engine with this configuration, its numbers and policies filled in."""
    spec = load_spec("tokenspeed_block" if config.spec_algo == BLOCK_DRAFTER else "tokenspeed")
    policy = attrs.evolve(spec.policy, freeze_gc=not getattr(config, "enable_cudagraph_gc", True))
    return attrs.evolve(spec, policy=policy, sizes=_sizes(spec, config))


def _sizes(spec: Spec, config: Any) -> Sizes:
    padding = not config.disable_cuda_graph_padding
    return attrs.evolve(spec.sizes, cap=config.max_cudagraph_capture_size, padding=padding)


def sizes_of(spec: Spec, config: Any) -> list[int]:
    """The sizes that `spec`, filled in, leads to: those asked for, sorted, or the defaults; at most a step's rows.

    Raises: SpecError where none is left.
    """
    asked = config.cudagraph_capture_sizes
    rows = config.max_num_seqs // max(config.data_parallel_size, 1)
    wanted = None if asked is None else sorted({size for size in asked if size > 0})
    return list(capture_sizes(spec.sizes, rows, wanted))


def get_batch_sizes_to_capture(config: Any) -> list[int]:
    """The sizes to capture, increasing. Raises: SpecError where none is left."""
    return sizes_of(spec_of(config), config)
