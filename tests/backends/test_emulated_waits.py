"""Operations whose CUDA kernels wait, though the shape of what they return is known, and some that only seem to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tests.backends.conftest import Record
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.errors import CaptureUnsupported

UNSUPPORTED = "cudaErrorStreamCaptureUnsupported"


@pytest.fixture
def many(backend: EmulatedBackend) -> torch.Tensor:
    """24 integers on the device."""
    return backend.allocate((24,), torch.int64, 1)


@pytest.fixture
def square(backend: EmulatedBackend) -> torch.Tensor:
    """Two positive matrices on the device."""
    matrices = torch.eye(3).repeat(2, 1, 1)
    backend.adopt([matrices])
    return matrices


@pytest.mark.parametrize("step", [
    lambda many: torch.isin(many, many),
    lambda many: torch.isin(1, many),
    lambda many: torch.isin(many, many, out=torch.empty_like(many, dtype=torch.bool)),
    lambda many: many.float().to_sparse(),
    lambda many: many.view(4, 6).float().to_sparse(1),
    lambda many: torch.linspace(many[0], many[1], 3),
    lambda many: torch.logspace(0, many[1], 3),
], ids=["isin", "isin scalar", "isin out", "to_sparse", "to_sparse dim", "linspace", "logspace"])  # fmt: skip
def test_refuses_what_waits(record: Record, many: torch.Tensor, step: Callable[[torch.Tensor], object]) -> None:
    """CUDA refuses it, so the recording is invalid from then on."""
    with pytest.raises(CaptureUnsupported) as caught:
        record(lambda: step(many))
    assert UNSUPPORTED == caught.value.context["cuda"]


def test_refuses_cholesky(record: Record, square: torch.Tensor) -> None:
    """It checks on the host whether each matrix is positive, also by its own fast path."""
    with pytest.raises(CaptureUnsupported, match="on the host"):
        record(lambda: torch.cholesky(square))


@pytest.mark.parametrize("step", [
    lambda many: torch.isin(many, many[:10]),
    lambda many: torch.isin(many, many, assume_unique=True),
    lambda many: torch.isin(many, 1),
    lambda many: torch.isin(many[:0], many),
    lambda many: many.float().histc(4, 0, 2),
    lambda many: torch.linspace(torch.tensor(0.0), torch.tensor(1.0), 3, device=many.device),
    lambda many: torch.linspace(0, 1, 3, device=many.device),
], ids=["few", "unique", "one", "none", "histc", "linspace of host tensors", "linspace"])  # fmt: skip
def test_records_what_does_not_wait(record: Record, many: torch.Tensor, step: Callable[..., torch.Tensor]) -> None:
    """It is recorded, and replays as eager."""
    made: list[torch.Tensor] = []
    graph = record(lambda: made.append(step(many)))
    graph.replay()
    assert torch.equal(step(many), made[0])


def _count(many: torch.Tensor) -> torch.Tensor:
    return many.float().histc(4)


def _align(many: torch.Tensor) -> torch.Tensor:
    scores, one = many.view(6, 1, 4).float().log_softmax(-1), many[:1]
    return functional.ctc_loss(scores, many[None, :2], one + 5, one + 1)


@pytest.mark.parametrize("step", [_count, _align])
def test_copies_to_the_host_leave_the_recording_valid(
    record: Record, many: torch.Tensor, step: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Torch refuses the copy before CUDA sees it: a step that catches the error goes on recording."""

    def steps() -> None:
        with pytest.raises(CaptureUnsupported, match="pageable memory") as caught:
            step(many)
        assert "cuda" not in caught.value.context
        many.add_(1)

    assert ["aten.add_.Tensor"] == [node.operator for node in record(steps).nodes][-1:]


@pytest.mark.parametrize("shapes", [((4,), (2, 2)), ((0,), (0,))])
def test_equal_goes_by_shapes_first(
    backend: EmulatedBackend, record: Record, shapes: tuple[tuple[int, ...], ...]
) -> None:
    """Tensors of other shapes are not equal, and empty ones are, without asking the device."""
    one, other = (backend.allocate(shape, torch.float32, 1) for shape in shapes)
    told: list[bool] = []
    record(lambda: told.append(torch.equal(one, other)))
    assert [shapes[0] == shapes[1]] == told


def test_seeding_anew_is_refused(record: Record, x: torch.Tensor) -> None:
    """The next operation of a recording that seeds the device's numbers is refused; the same seed is no change."""
    torch.manual_seed(5)
    assert 1 == len(record(lambda: [torch.manual_seed(5), x.add_(1)]).nodes)
    with pytest.raises(CaptureUnsupported, match="seeded anew"):
        record(lambda: [torch.manual_seed(6), x.add_(1)])
    assert 5 == torch.initial_seed()
