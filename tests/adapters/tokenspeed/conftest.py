"""What the drop-in's tests share: barriers, mask bindings and DeepEP that are traced."""

from __future__ import annotations

import sys
from types import ModuleType

import attrs
import pytest

from tests.adapters.tokenspeed.engine import FakeEngine, FakeHome
from tsgraph.adapters.tokenspeed import wrapper
from tsgraph.adapters.tokenspeed.engine_types import EngineTypes

HOME = "tokenspeed_kernel.ops.communication.deep_ep"


@attrs.define(eq=False)
class Makes:
    """Makes engines whose surroundings are traced, too."""

    patch: pytest.MonkeyPatch

    def __call__(self, configuration):
        engine = FakeEngine(configuration)
        self.patch.setattr("torch.distributed.barrier", lambda: engine.trace.add("ranks", "barrier"))
        self.patch.setattr(wrapper, "find_types", lambda: EngineTypes(bind_mask=engine.bind_mask))
        home = ModuleType(HOME)
        home.DeepEPBuffer = type("Home", (FakeHome,), {"trace": engine.trace}) if configuration.deepep else None
        if configuration.deepep:
            self.patch.setitem(sys.modules, HOME, home)
        else:
            self.patch.delitem(sys.modules, HOME, raising=False)
        return engine


@pytest.fixture
def make():
    """Makes an engine of a configuration."""
    with pytest.MonkeyPatch.context() as patch:
        yield Makes(patch)
