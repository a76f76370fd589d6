"""The graph pool that all wrappers of a process record into: replays are serialised, so each may use all of it (R5)."""

from __future__ import annotations

from typing import Any

import torch

from tsgraph.protocols.backend import Backend, Pool

_shared: dict[torch.device, Pool] = {}
_newest: list[Pool] = []


def shared_pool(backend: Backend) -> Pool | None:
    """The pool of the device of `backend`; None before anything was recorded there."""
    return _shared.get(backend.device)


def share_pool(backend: Backend, pool: Pool | None) -> None:
    """Let later recordings of that device go to `pool`."""
    if pool is not None:
        _shared[backend.device] = pool
        _newest[:] = [pool]


def newest_pool() -> Any:
    """The pool of the newest recording, as torch knows it (its handle); None before the first."""
    if not _newest:
        return None
    handle = getattr(_newest[0], "handle", None)
    return _newest[0] if handle is None else handle()
