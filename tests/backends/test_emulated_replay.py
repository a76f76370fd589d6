"""What a replay does, beside computing the right values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.errors import ReplayFailed

Record = Callable[[Callable[[], object]], EmulatedGraph]


@torch.library.custom_op("tsgraph_tests::liar", mutates_args=())
def liar(x: torch.Tensor) -> torch.Tensor:
    """A kernel whose fake is wrong."""
    return x[:1].clone()


@liar.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("tsgraph_tests::state", mutates_args=())
def state(x: torch.Tensor) -> torch.Tensor:
    """Gives the state of torch that its kernel sees: inference, grad, autocast, default dtype is double."""
    seen = [
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype() is torch.float64,
    ]
    return torch.tensor(seen)


@state.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(4, dtype=torch.bool)


class TestReplay:
    def test_does_not_run_python(self, record: Record, x: torch.Tensor) -> None:
        """The step runs once, whatever the number of replays."""
        runs = []

        def step() -> None:
            runs.append(1)
            x.add_(1)

        graph = record(step)
        for _ in range(3):
            graph.replay()
        assert ([1], [4] * 4) == (runs, x.tolist())

    def test_writes_into_the_recorded_outputs(self, record: Record, x: torch.Tensor) -> None:
        """Every replay fills the tensors that the recording returned, at their addresses (fault E1)."""
        made = []
        graph = record(lambda: made.append((x + 1, x.topk(2), x.view(2, 2).split(1), torch._foreach_add([x, x], 1))))
        leaves = [made[0][0], *made[0][1], *made[0][2], *made[0][3]]
        addresses = [leaf.data_ptr() for leaf in leaves]
        for value in (1, 5):
            x.fill_(value)
            graph.replay()
            assert [value + 1] * 4 == made[0][0].tolist() == made[0][3][1].tolist()
            assert [value] * 2 == made[0][1].values.tolist()
        assert addresses == [leaf.data_ptr() for leaf in leaves]

    def test_no_mode_of_the_users_sees_it(self, record: Record, x: torch.Tensor) -> None:
        """Neither function modes nor dispatch modes are asked."""
        seen: list[object] = []

        class Functions(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        graph = record(lambda: torch.softmax(x + 1, 0))
        with Functions(), Operators():
            graph.replay()
            graph.replay()
        assert [] == seen

    def test_runs_in_the_state_of_torch_that_held_at_record(self, record: Record, x: torch.Tensor) -> None:
        """Inference mode, grad mode, autocast and default dtype are those of each operation, and put back."""
        made = []

        def step() -> None:
            made.append(state(x))
            with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
                made.append(state(x))
            torch.set_default_dtype(torch.float64)
            made.append(state(x))
            torch.set_default_dtype(torch.float32)

        with torch.no_grad():
            graph = record(step)
        graph.replay()
        expected = [[False, False, False, False], [True, False, True, False], [False, False, False, True]]
        assert expected == [seen.tolist() for seen in made]
        after = (torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
        assert (False, True, False, torch.float32) == (*after, torch.get_default_dtype())

    def test_tracks_no_gradient(self, record: Record, x: torch.Tensor) -> None:
        """A replay in grad mode, of operations on what has come to require a gradient, builds no backward pass."""
        made = []
        graph = record(lambda: made.append(x.mul_(2) + 1))
        x.requires_grad_()
        graph.replay()
        assert ([3] * 4, None, True) == (made[0].tolist(), made[0].grad_fn, x.is_leaf)

    def test_checks_the_first_replay_against_the_fake_kernel(self, record: Record, x: torch.Tensor) -> None:
        """A fake kernel that promised another shape is found before anybody reads the output."""
        graph = record(lambda: liar(x))
        with pytest.raises(ReplayFailed, match=r"liar.* returned \(1,\) float32 where its fake kernel promised \(4,\)"):
            graph.replay()
