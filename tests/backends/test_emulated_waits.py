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
    lambda many: torch.linspace(many[0], 1, 3, out=many.new_empty(3)),
    lambda many: torch.logspace(0, many[1], 3, out=many.new_empty(3)),
    lambda many: many.masked_fill(many > 0, many[0]),
    lambda many: many.masked_fill_(many > 0, many[0]),
    lambda many: many.index_fill(0, many[:2], many[0]),
    lambda many: many.index_fill_(0, many[:2], many[0]),
    lambda many: torch.normal(many.float(), many.float(), out=many.float()),
    lambda many: many.expand(100, 24).reshape(-1).mode(),
    lambda many: torch.segment_reduce(many.float(), "sum", lengths=many[:24]),
], ids=[
    "isin", "isin scalar", "isin out", "to_sparse", "to_sparse dim", "linspace", "logspace", "linspace out",
    "logspace out", "masked_fill", "masked_fill_", "index_fill", "index_fill_", "normal out", "mode of long slices",
    "segment_reduce of lengths",
])  # fmt: skip
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
    torch.linalg.eig,
    torch.linalg.eigvals,
    lambda square: torch.linalg.eig(square[:0]),
    torch.linalg.eigh,
    lambda square: torch.linalg.lu(square[:, :2]),
    lambda square: torch.linalg.lu_factor_ex(square[:, :2]),
    torch.linalg.ldl_factor_ex,
    lambda square: torch.linalg.ldl_solve(square, torch.ones(2, 3, dtype=torch.int32, device=square.device), square),
    lambda square: torch.linalg.pinv(square, hermitian=True),
    torch.cholesky_inverse,
    lambda square: torch.cholesky_solve(square[0], square),
], ids=[
    "eig", "eigvals", "eig of none", "eigh", "lu", "lu_factor", "ldl_factor", "ldl_solve", "pinv", "cholesky_inverse",
    "cholesky_solve",
])  # fmt: skip
def test_decompositions_that_wait(record: Record, square: torch.Tensor, step: Callable[..., object]) -> None:
    """CUDA's libraries wait within, or torch checks on the host whether they went well."""
    with pytest.raises(CaptureUnsupported, match="on the host") as caught:
        record(lambda: step(square))
    assert UNSUPPORTED == caught.value.context["cuda"]


@pytest.mark.parametrize("step", [
    lambda square: torch.linalg.eigh(square[:0])[0],
    lambda square: torch.linalg.svd(square[:0])[1],
    lambda square: torch.linalg.svdvals(square[:, :0]),
    lambda square: torch.linalg.lu_factor_ex(square)[0],
    lambda square: torch.linalg.lu_factor_ex(square[:0, :2])[0],
    lambda square: torch.linalg.ldl_factor_ex(square[:0])[0],
    lambda square: torch.linalg.pinv(square[:0]),
    lambda square: torch.cholesky_inverse(square[0]),
    lambda square: torch.matrix_exp(square[:, :1, :1]),
], ids=[
    "eigh of none", "svd of none", "svd of no columns", "square lu", "lu of none", "ldl of none", "pinv of none",
    "one cholesky_inverse", "exponential of numbers",
])  # fmt: skip
def test_decompositions_that_do_not_wait(record: Record, square: torch.Tensor, step: Callable[..., object]) -> None:
    """Nothing to compute, or a kernel that reports on the device: it is recorded, and replays as eager."""
    made: list[object] = []
    record(lambda: made.append(step(square))).replay()
    assert torch.equal(step(square), made[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [
    lambda many: torch.isin(many, many[:10]),
    lambda many: torch.isin(many, many, assume_unique=True),
    lambda many: torch.isin(many, 1),
    lambda many: torch.isin(many[:0], many),
    lambda many: many.float().histc(4, 0, 2),
    lambda many: torch.linspace(torch.tensor(0.0), torch.tensor(1.0), 3, device=many.device),
    lambda many: torch.linspace(0, 1, 3, device=many.device),
    lambda many: torch.logspace(torch.tensor(0.0), 1, 3, out=torch.empty(3, device=many.device)),
    lambda many: many.masked_fill(many > 0, torch.tensor(7)),
    lambda many: many.index_fill(0, many[:2], torch.tensor(7)),
    lambda many: many.view(4, 6).mode().values,
    lambda many: torch.segment_reduce(many.float(), "sum", lengths=many, unsafe=True),
], ids=[
    "few", "unique", "one", "none", "histc", "linspace of host tensors", "linspace", "logspace out of host tensors",
    "masked_fill with a host value", "index_fill with a host value", "mode of short slices", "segment_reduce unsafe",
])  # fmt: skip
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


def _svd(many: torch.Tensor) -> object:
    return torch.linalg.svd(many.view(4, 6).float())


def _svd_into(many: torch.Tensor) -> object:
    return torch.linalg.svdvals(many.view(4, 6).float(), out=many.new_empty(4, dtype=torch.float32))


def _invert(many: torch.Tensor) -> object:
    return torch.linalg.pinv(many.view(4, 6).float())


def _exponentiate(many: torch.Tensor) -> object:
    return torch.matrix_exp(many[:16].view(4, 4).float())


@pytest.mark.parametrize("step", [_count, _align, _svd, _svd_into, _invert, _exponentiate, torch.bincount])
def test_copies_to_the_host_leave_the_recording_valid(
    record: Record, many: torch.Tensor, step: Callable[[torch.Tensor], object]
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
