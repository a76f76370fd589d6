"""What the adapters' tests share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def collected():
    """Everything alive is frozen once, so that the collections around each capture have little to walk."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
