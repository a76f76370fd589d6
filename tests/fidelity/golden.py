"""What CI keeps of a recording: programs of every kind on which GPU and emulation agree, the shortest."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.fidelity.recording import Recording
from tests.fidelity.report import compare_recordings
from tests.fidelity.tasks import kind_of, title

GOLDEN = Path(__file__).with_name("data") / "h200.json"


def choose(cuda: Recording, emulated: Recording, most: int) -> Recording:
    """Items of `cuda` of all kinds in turn, shortest first, in at most `most` bytes of JSON.

    Left out is what has a difference from `emulated` that nothing explains.
    """
    differing = {title(item) for item, _ in compare_recordings(cuda, emulated).unexplained}
    kinds: dict[str, list[dict[str, Any]]] = {}
    for item in sorted((each for each in cuda.items if "observed" in each), key=_size):
        if title(item) not in differing:
            kinds.setdefault(kind_of(item), []).append(item)
    kept, room = [], most - _size(cuda.made)
    for turn in zip_longest(*kinds.values()):
        for item in turn:
            if item is not None and _size(item) < room:
                kept.append(item)
                room -= _size(item)
    return Recording(cuda.made, kept)


def _size(item: dict[str, Any]) -> int:
    return len(json.dumps(item, separators=(",", ":"))) + 24
