"""What tests of the emulation share: a block of it, and a look at everything that it patches."""

from __future__ import annotations

import pytest

from tsgraph.testing import emulate


@pytest.fixture
def emulated():
    """The test runs under emulation."""
    with emulate():
        yield
