"""One rank with a wrapper of its own: `rank_worker.py RANK FILE` prints how its construction ended, scene by scene."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.adapters.tokenspeed.configuration import Configuration
from tests.adapters.tokenspeed.engine import FakeEngine
from tsgraph.adapters.tokenspeed import get_is_capture_mode
from tsgraph.errors import CaptureFailed

FAILING = 1
"""The rank whose forward fails."""


def play(rank: int, when: str) -> str:
    """Make a wrapper, with a forward that fails on one rank in a warm-up, in the recording, or never."""
    engine = FakeEngine(Configuration(ranks=2, sizes=(1, 2)))
    config = engine.config
    config.global_rank = rank

    def forward(**words: Any) -> Any:
        if rank == FAILING and when == ("recording" if get_is_capture_mode() else "warm-up"):
            raise OSError("a forward at fault")
        return engine.forward(**words)

    try:
        wrapper = engine.wrap(config=config, forward_func=forward)
    except CaptureFailed as error:
        return str(error)
    return ", ".join(f"{variant}/{size}" for variant, size in wrapper.graphs)


def main(rank: int, file: str) -> None:
    """Play all scenes."""
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=timedelta(seconds=30)
    )
    ended = {when: play(rank, when) for when in ("never", "warm-up", "recording")}
    dist.destroy_process_group()
    print(json.dumps(ended))  # noqa: T201 — the test reads it


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
