"""Branches: work beside the current stream, forked and joined, in recordings and outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tsgraph.errors import CaptureUnsupported


def test_a_branch_is_ordered_at_both_ends(backend: Any):
    """It sees what was done before the fork, and what comes after the join sees it; at each replay and eagerly."""
    x, y = (backend.allocate((4,), torch.float32, fill) for fill in (1, 0))
    branch = backend.branch()

    def step() -> None:
        x.add_(1)
        with branch.fork():
            y.copy_(x * 2)
        branch.join()
        y.add_(1)

    with backend.record(backend.pool()) as graph:
        step()
    for expected in (5, 7):
        graph.replay()
        backend.synchronize()
        assert [expected] * 4 == y.tolist()
    step()
    backend.synchronize()
    assert [9] * 4 == y.tolist()


def test_a_branch_that_is_not_joined_is_refused(backend: Any):
    """A recording may not leave work on a stream that nobody waits for."""
    x, branch = backend.allocate((4,), torch.float32, 1), backend.branch()

    def record() -> None:
        with backend.record(backend.pool()), branch.fork():
            x.add_(1)

    with pytest.raises(CaptureUnsupported):
        record()


def test_what_is_recorded_is_known(backend: Any):
    """Only inside the block, and on a branch that took part."""
    seen, branch = [backend.recording], backend.branch()
    with backend.record(backend.pool()):
        backend.branch()
        seen.append(backend.recording)
        with branch.fork():
            seen.append(backend.recording)
        branch.join()
    assert [False, True, True, False] == [*seen, backend.recording]
