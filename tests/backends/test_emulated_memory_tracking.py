"""Warm-ups on the side stream: they compute as ever, and what they make on the device is a device tensor after them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.errors import CaptureUnsupported


@pytest.fixture
def backend() -> EmulatedBackend:
    """A fresh one."""
    return EmulatedBackend()


@pytest.fixture
def x(backend: EmulatedBackend) -> torch.Tensor:
    """A static input of four ones."""
    return backend.allocate((4,), torch.float32, 1)


class Lazy(nn.Module):
    """Keeps a table that its first call makes."""

    table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds the table to `x`, and one to the table."""
        if self.table is None:
            self.table = torch.arange(4, dtype=torch.float32, device=x.device)
        self.table.add_(1)
        return x + self.table


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
def test_a_buffer_cached_in_a_warm_up_works_in_the_recording(
    backend: EmulatedBackend, x: torch.Tensor, inference: bool
) -> None:
    """A lazily made buffer is captured as an input, and updated by replays."""
    module = Lazy()
    with torch.inference_mode(inference), torch.no_grad():
        with backend.side_stream():
            warm = module(x)
        assert [2, 3, 4, 5] == warm.tolist()
        with backend.record(backend.pool()) as graph:
            out = module(x)
        graph.replay()
    assert [3, 4, 5, 6] == out.tolist()
    assert module.table is not None
    assert backend.holds(module.table)


def test_r3_a_buffer_cached_under_inference_mode_is_refused_outside_it(
    backend: EmulatedBackend, x: torch.Tensor
) -> None:
    """R3: what a warm-up made under inference mode cannot be written in a recording outside it; torch says so."""
    module = Lazy()
    with torch.inference_mode(), backend.side_stream():
        module(x)
    with pytest.raises(RuntimeError, match="inference tensor"), torch.no_grad(), backend.record(backend.pool()):
        module(x)


def test_a_buffer_cached_elsewhere_stays_on_the_host(backend: EmulatedBackend, x: torch.Tensor) -> None:
    """Only the side stream is watched: what other eager code makes is host memory until it is adopted."""
    module = Lazy()
    module(x)
    with pytest.raises(CaptureUnsupported, match="host tensor"), torch.no_grad(), backend.record(backend.pool()):
        module(x)


MADE = {
    "operator": lambda x: x + 1,
    "operator and host scalar": lambda x: x * torch.tensor(2.0),
    "several outputs": lambda x: x.topk(2).indices,
    "list": lambda x: torch._foreach_add([x, x], 1)[1],
    "composite": lambda x: x.view(2, 2).t().reshape(4),
    "composite copy": lambda x: nn.functional.linear(x, x.view(1, 4)),
    "view": lambda x: x.view(2, 2)[0],
    "factory": lambda x: torch.zeros(2, device=x.device),
    "factory of a like": torch.zeros_like,
    "new": lambda x: x.new_zeros(2),
    "data": lambda x: torch.tensor([1, 2], device=x.device),
    "data of a device tensor": torch.as_tensor,
    "array": lambda x: torch.as_tensor(torch.zeros(2).numpy(), device=x.device),
    "new data": lambda x: x.new_tensor([1.0]),
    "moved": lambda x: torch.zeros(2).to(x.device),
    "moved to another": lambda x: torch.zeros(2).to(x),
    "cast": lambda x: x.to(torch.float64),
    "nonzero": lambda x: x.nonzero(),
    "masked": lambda x: x[x > 0],
    "saved for the backward pass": lambda x: nn.Parameter(x.clone()).square(),
}
LEFT = {
    "host": lambda x: torch.zeros(2) + 1,
    "host factory": lambda x: torch.zeros(2),
    "host data": lambda x: torch.tensor([1.0]),
    "another device": lambda x: torch.zeros_like(x, device="meta"),
    "host target": lambda x: torch.zeros(4).copy_(x),
    "moved back": lambda x: x.cpu(),
    "moved and cast": lambda x: x.to("cpu", torch.float64),
    "read and rebuilt": lambda x: torch.tensor(x.tolist()),
}


@pytest.mark.parametrize("inference", [False, True], ids=["grad", "inference"])
@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_the_device_lives_there(
    backend: EmulatedBackend, x: torch.Tensor, name: str, inference: bool
) -> None:
    """Results, factories with a device and moves to it give device tensors, with the values of plain eager code."""
    with torch.inference_mode(inference):
        expected = MADE[name](x.clone())
        with backend.side_stream():
            made = MADE[name](x)
        assert torch.equal(expected, made)
        assert (True, expected.requires_grad) == (backend.holds(made), made.requires_grad)


@pytest.mark.parametrize("inference", [False, True], ids=["grad", "inference"])
@pytest.mark.parametrize("name", LEFT)
def test_what_is_on_the_host_stays_there(backend: EmulatedBackend, x: torch.Tensor, name: str, inference: bool) -> None:
    """Host tensors, and copies to the host, are none; a copy is not the device tensor itself."""
    with torch.inference_mode(inference), backend.side_stream():
        left = LEFT[name](x)
    assert not backend.holds(left)
    assert backend.holds(x)


def test_a_move_to_where_a_tensor_is_moves_nothing(backend: EmulatedBackend, x: torch.Tensor) -> None:
    """So it is the tensor itself."""
    host = torch.zeros(2)
    with backend.side_stream():
        assert x is x.to(x.device)
        assert host is host.to("cpu") is host.cpu()
        assert x is torch.as_tensor(x, device=x.device)


def test_a_move_makes_a_copy(backend: EmulatedBackend, x: torch.Tensor) -> None:
    """As between two memories, later changes of the one are not seen in the other."""
    host = torch.zeros(4)
    with backend.side_stream():
        down, up, shared = x.cpu(), host.to(x.device), torch.as_tensor(host, device=x.device)
    x.fill_(7)
    host.fill_(8)
    assert ([1] * 4, [0] * 4, [0] * 4) == (down.tolist(), up.tolist(), shared.tolist())


def test_autocast_casts_as_ever(backend: EmulatedBackend, x: torch.Tensor) -> None:
    """Whatever mode a warm-up runs in, its numbers are those of eager code."""
    for inference in (False, True):
        with torch.inference_mode(inference), torch.autocast("cpu", dtype=torch.bfloat16):
            expected = nn.functional.linear(x, x.view(1, 4))
            with backend.side_stream():
                made = nn.functional.linear(x, x.view(1, 4))
        assert (torch.bfloat16, expected.item()) == (made.dtype, made.item())


def test_gradients_flow(backend: EmulatedBackend, x: torch.Tensor) -> None:
    """A warm-up may train."""
    weight = nn.Parameter(torch.full((4,), 3.0))
    with backend.side_stream():
        (x * weight).sum().backward()
    assert torch.equal(torch.ones(4), weight.grad)  # type: ignore[arg-type]  # it is there


def test_nothing_compiles(backend: EmulatedBackend, x: torch.Tensor) -> None:
    """A compiled function runs eagerly in the block, or its outputs would not be seen, and compiles after it."""
    compilations = []

    def compile_it(module, inputs):
        compilations.append(len(inputs))
        return module.forward

    compiled = torch.compile(lambda t: t + 1, backend=compile_it)
    with backend.side_stream():
        assert backend.holds(compiled(x))
    assert [] == compilations
    compiled(x)
    assert [1] == compilations


def test_a_recording_inside_is_a_recording(backend: EmulatedBackend, x: torch.Tensor) -> None:
    """A block of the side stream may record; what is refused there is refused, and nothing runs twice."""
    with torch.no_grad(), backend.side_stream():
        with backend.record(backend.pool()) as graph:
            out = x.view(2, 2).add_(1) * 2
        with pytest.raises(CaptureUnsupported), backend.record(backend.pool()):
            x.cpu()
    assert [1] * 4 == x.tolist()
    graph.replay()
    assert [[4, 4], [4, 4]] == out.tolist()


def test_the_block_over_nothing_is_tracked(backend: EmulatedBackend, x: torch.Tensor) -> None:
    """Modes end with the block, also when it raises."""
    with pytest.raises(ZeroDivisionError), backend.side_stream():
        raise ZeroDivisionError
    assert not backend.holds(x + 1)
    assert 0 == torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
