"""What every test has: hypothesis profiles, one thread for torch, the backends, and skips that say why.

`TSGRAPH_PROFILE` picks the profile: `dev` (the default), `gate` (the default where CI is set), `fuzz` or `soak`.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import economy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tsgraph.protocols.backend import Backend

# Before torch is imported anywhere, here or in a subprocess: its thread pool fights pytest for a small machine's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Before any state machine is imported: a machine takes its settings when its class is made.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # both judge the machine, not the code
settings.register_profile("dev", _COMMON, max_examples=50)
settings.register_profile("gate", _COMMON, max_examples=100, derandomize=True, database=None)
settings.register_profile("fuzz", _COMMON, max_examples=200, print_blob=True)
settings.register_profile("soak", _COMMON, max_examples=5_000, stateful_step_count=100, print_blob=True)
PROFILE = os.environ.get("TSGRAPH_PROFILE") or ("gate" if os.environ.get("CI") else "dev")
settings.load_profile(PROFILE)

economy.read_shipped_specs_once()

_FROZEN = pytest.StashKey[tuple[object, int]]()
NO_CUDA = "torch sees no CUDA device on this machine"


def pytest_report_header() -> str:
    """Say which profile runs, beside pytest's own header."""
    return f"tsgraph: profile {PROFILE}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, with the reason."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _cuda_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=NO_CUDA))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Freeze what is alive before each file's tests, and where much was loaded since."""
    since = item.path, len(sys.modules) // 100
    if item.config.stash.get(_FROZEN, None) != since:
        item.config.stash[_FROZEN] = since
        economy.freeze()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run without a tracer what is marked so. Where tests are spread over processes, pytest-cov stops one of two."""
    tracer = sys.gettrace()
    if tracer is None or item.get_closest_marker("no_cover") is None:
        return (yield)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)


def pytest_sessionfinish() -> None:
    """Let everything end as it would."""
    gc.unfreeze()


def _cuda_available() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """A fresh backend of each kind: emulated everywhere, CUDA where there is one."""
    from tsgraph.backends.choice import choose_backend

    return choose_backend(request.param, [], "cuda" if request.param == "cuda" else "cpu")
