"""Code that goes past the dispatcher: routed and told in the thread that watches, and put back exactly."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest

from tsgraph.backends.opaque import compiled_regions, triton_launches

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's, when it loads Inductor


REGION: Any = object()


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls a compiled region that adds one to its first input."""
    from torch._inductor.output_code import CompiledFxGraph

    monkeypatch.setattr(CompiledFxGraph, "__call__", lambda _, inputs: inputs[0] + 1)
    return lambda inputs: CompiledFxGraph.__call__(REGION, inputs)


def in_another_thread(call: Any) -> Any:
    """What `call` returns there."""
    returned = []
    thread = threading.Thread(target=lambda: returned.append(call()))
    thread.start()
    thread.join()
    return returned[0]


def test_regions_are_routed_in_this_thread_alone(region: Any) -> None:
    """With their inputs and a way to run them; another thread's run by themselves, and afterwards all do."""
    seen = []

    def run(found: Any, call: Any, inputs: Any) -> Any:
        seen.append((found is REGION, inputs))
        return call() * 10

    with compiled_regions(run):
        returned = region([1]), in_another_thread(lambda: region([2]))
    assert ((20, 3), [(True, [1])], 4) == (returned, seen, region([3]))


def test_watches_may_stand_one_in_the_other(region: Any) -> None:
    """A warm-up inside of whatever looks, too: the inner one is called first, and each takes its own away."""
    with compiled_regions(lambda _, call, __: call() * 10):
        with compiled_regions(lambda _, call, __: call() + 5):
            assert 25 == region([1])
        assert 20 == region([1])
    assert 2 == region([1])


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel of a stand-in for Triton, which returns what it is launched with."""

    class JITFunction:
        arg_names = ("x", "factor")
        __name__ = "scale_rows"

        def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            return args, grid, warmup, kwargs

    loaded = types.ModuleType("triton.runtime.jit")
    loaded.JITFunction = JITFunction  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", loaded)
    return JITFunction()


def test_launches_are_told_with_their_arguments_by_name(kernel: Any) -> None:
    """Once for each launch of this thread; more arguments than names are numbered; compiling alone is no launch."""
    told: list[Any] = []
    with triton_launches(lambda name, arguments: told.append((name, arguments))):
        launched = kernel.run(1, 2, 3, grid=(4,), warmup=False, BLOCK=64)
        kernel.run(1, grid=(4,), warmup=True)
        in_another_thread(lambda: kernel.run(1, grid=(4,), warmup=False))
    kernel.run(1, grid=(4,), warmup=False)
    assert ((1, 2, 3), (4,), False, {"BLOCK": 64}) == launched
    assert [("scale_rows", {"x": 1, "factor": 2, "argument 2": 3, "grid": (4,), "BLOCK": 64})] == told


@pytest.mark.parametrize("there", [None, types.ModuleType("triton.runtime.jit")])
def test_without_triton_there_are_no_launches(monkeypatch: pytest.MonkeyPatch, there: Any) -> None:
    """Or with one that is made otherwise."""
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", there)
    with triton_launches(print):
        pass
