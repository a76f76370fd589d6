"""A mode that sees operators is itself never compiled, and costs no wrapper."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._C._dynamo import eval_frame
from torch._dynamo.convert_frame import input_codes
from torch.utils._python_dispatch import TorchDispatchMode

from tsgraph.backends.modes import OperatorMode
from tsgraph.buffers.audit import WriteAudit
from tsgraph.receipts.watch import Watch

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's, when it loads Inductor


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """A compiler that remembers nothing of other tests."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def scale(x: torch.Tensor) -> torch.Tensor:
    """What a mode calls."""
    return x * 2


class Seen(OperatorMode):
    """Counts the operators that come by."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        scale(torch.ones(1))
        self.count += 1
        return func(*args, **(kwargs or {}))


class Bare(TorchDispatchMode):
    """The same without a word to Dynamo."""

    count = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        scale(torch.ones(1))
        self.count += 1
        return func(*args, **(kwargs or {}))


def compiled_under(kind: type[Any]) -> tuple[int, set[str]]:
    """How many operators a mode sees of a step that cannot be compiled, and what of this file Dynamo takes up.

    A break in a loop: the step itself runs eagerly, and Dynamo looks at each frame below it.
    """

    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + 1
            torch._dynamo.graph_break()
        return x.sin()

    mode, x = kind(), torch.ones(3)
    with torch.no_grad(), mode:
        torch.compile(step, backend="eager")(x)
    codes = [code() for code in input_codes.seen]
    return mode.count, {code.co_name for code in codes if code is not None and code.co_filename == __file__}


def test_dynamo_leaves_it_alone_and_what_it_calls() -> None:
    """It takes up the step alone, and all operators come by."""
    count, taken = compiled_under(Seen)
    assert ({"step"}, 3) == (taken, count)


def test_dynamo_would_compile_a_mode_that_says_nothing() -> None:
    """The test above can fail: Dynamo takes up the mode's own code."""
    _, taken = compiled_under(Bare)
    assert "__torch_dispatch__" in taken


@pytest.mark.parametrize("kind", [Seen, Watch, WriteAudit])
def test_there_is_no_wrapper(kind: type[Any]) -> None:
    """What torch calls is the method itself."""
    assert isinstance(kind.__torch_dispatch__, types.FunctionType)
    assert kind.__torch_dispatch__.__qualname__ == f"{kind.__name__}.__torch_dispatch__"
    assert not hasattr(kind.__torch_dispatch__, "__wrapped__")
    assert not kind._should_skip_dynamo()


def test_torch_wraps_it_where_it_has_no_such_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that would not understand keeps Dynamo out in its own way."""
    monkeypatch.delattr(eval_frame, "set_code_exec_strategy")

    class Late(OperatorMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    assert hasattr(Late.__torch_dispatch__, "__wrapped__")
