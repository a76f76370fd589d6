"""Recordings under the modes of torch that change what a step does: gradients, autocast, compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import is_in_any_mode_without_ignore_compile_internals

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.errors import CaptureUnsupported

Record = Callable[[Callable[[], object]], EmulatedGraph]


def outer(x: torch.Tensor) -> torch.Tensor:
    """Composed of operators that autocast casts, though not cast itself."""
    return torch.einsum("i,j->ij", x, x) @ x


def attend(x: torch.Tensor) -> torch.Tensor:
    """Cast as a whole; the softmax inside would be cast otherwise, were it cast by itself."""
    heads = x.view(1, 1, 2, 2)
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(heads * 3.1, heads.sin(), heads.cos())


class TestAutograd:
    def test_refuses_to_record_gradients(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """A parameter in grad mode is refused with the way out; without grad mode it is recorded."""
        weight = nn.Parameter(torch.ones(4))
        backend.adopt([weight])
        with pytest.raises(CaptureUnsupported, match="'other' requires a gradient") as caught:
            record(lambda: x * weight)
        assert "torch.inference_mode()" in caught.value.hint
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                assert 1 == len(record(lambda: x * weight).nodes)

    def test_detached_parameters_are_welcome(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """Grad mode alone is no reason to refuse."""
        weight = nn.Parameter(torch.ones(4))
        backend.adopt([weight])
        assert 1 == len(record(lambda: x * weight.detach()).nodes)


class TestAutocast:
    @pytest.fixture(params=[torch.no_grad, torch.inference_mode], ids=["no_grad", "inference"])
    def mode(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Without gradients, one way or the other."""
        with request.param():
            yield

    @pytest.mark.usefixtures("mode")
    @pytest.mark.parametrize("inside", [False, True])
    @pytest.mark.parametrize("step", [nn.Linear(4, 4), outer, attend], ids=["linear", "einsum", "attention"])
    def test_casts_as_eager(
        self, backend: EmulatedBackend, record: Record, x: torch.Tensor, step: Callable[..., torch.Tensor], inside: bool
    ) -> None:
        """Autocast around or inside a recording gives eager's dtypes and bits."""
        if isinstance(step, nn.Module):
            backend.adopt(step.parameters())
        x.copy_(torch.tensor([0.3, 1.7, -2.2, 0.9]))
        made = []

        def cast() -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return step(x) + step(x)

        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
            graph = record(lambda: made.append(cast() if inside else step(x) + step(x)))
        graph.replay()
        expected = cast()
        assert expected.dtype is made[0].dtype
        assert torch.equal(expected, made[0])

    def test_leaves_no_cast_behind(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """What autocast cast in a recording is not found by eager code after it, nor the other way round."""
        linear = nn.Linear(4, 4)
        backend.adopt(linear.parameters())
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            expected = linear(x)
            record(lambda: linear(x))
            assert torch.equal(expected, linear(x))


class TestCompile:
    def test_a_compiled_callable_is_recorded_operator_by_operator(self, record: Record, x: torch.Tensor) -> None:
        """Inside a recording it runs its eager code; afterwards it compiles as ever."""
        compiled: list[object] = []

        def compiler(module: torch.fx.GraphModule, _: object) -> Callable[..., object]:
            compiled.append(module)
            return module.forward

        def step(x: torch.Tensor) -> torch.Tensor:
            hidden.append(is_in_any_mode_without_ignore_compile_internals())
            return compiled_step(x)

        hidden: list[bool] = []
        compiled_step = torch.compile(lambda x: torch.sin(x) * 2, backend=compiler)
        made = []
        graph = record(lambda: made.append(step(x)))
        assert (["aten.sin.default", "aten.mul.Tensor"], []) == ([node.operator for node in graph.nodes], compiled)
        graph.replay()
        assert torch.equal(compiled_step(x), made[0])
        assert ([False], 1) == (hidden, len(compiled))
