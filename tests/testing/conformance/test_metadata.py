"""`check_attention` and `check_drafter`: right metadata pass, and each planted fault is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from tests.testing.conformance.planting import assert_all_planted, assert_found
from tsgraph.backends.choice import choose_backend
from tsgraph.buffers.contract import Rows
from tsgraph.buffers.hostile import hostile_value
from tsgraph.keys import Batch, Geometry
from tsgraph.protocols.backend import Backend
from tsgraph.protocols.null import NullDrafter
from tsgraph.testing.conformance import ATTENTION, DRAFTER, Ground, Nonconformance, check_attention, check_drafter
from tsgraph.testing.fakes import FakeAttention, fake_drafter

INPUTS = {
    "seq_lens": Rows(torch.int32, pad=1),
    "table": Rows(torch.int32, shape=(3,), pad=-1, column_pad=-1),
}


class PagedMetadata(NullDrafter):
    """Right metadata: lengths, their running sums and a page table, each a view of one buffer."""

    honours: Mapping[str, Any] = {"seq_lens": (1,), "table": (-1, 0)}

    def __init__(self, backend: Backend, rows: int = 8) -> None:
        self.backend = backend
        self.allocate(rows)
        self.current: dict[str, Any] = {}

    def allocate(self, rows: int) -> None:
        self.lens = self.backend.allocate((rows,), torch.int32, 1)
        self.starts = self.backend.allocate((rows + 1,), torch.int32, 0)
        self.pages = self.backend.allocate((rows, 3), torch.int32, 0)

    def views(self, rows: int) -> dict[str, Any]:
        return {"lens": self.lens[:rows], "starts": self.starts[: rows + 1], "pages": self.pages[:rows], "splits": 2}

    def fill(self, views: dict[str, Any], batch: Batch, live: int) -> None:
        views["lens"].copy_(batch.seq_lens)
        views["starts"][1:].copy_(batch.seq_lens.cumsum(0))
        views["pages"].copy_(batch.table.clamp(min=0))

    def bind(self, batch: Batch) -> None:
        self.current = self.views(batch.rows)

    def refresh(self, batch: Batch, live: int) -> None:
        self.current = self.views(batch.rows)
        self.fill(self.current, batch, live)

    def begin_eager(self, batch: Batch) -> None:
        self.current = {name: torch.zeros(batch.rows) for name in ("lens", "starts", "pages")}


class BindsAnew(PagedMetadata):
    def bind(self, batch: Batch) -> None:
        self.allocate(8)
        super().bind(batch)


class GrowsLazily(PagedMetadata):
    def bind(self, batch: Batch) -> None:
        if batch.rows > len(self.lens):
            self.allocate(batch.rows)
        super().bind(batch)


class KeepsOnePerSize(PagedMetadata):
    """Right too: as many buffers as sizes, each at addresses that stay."""

    def bind(self, batch: Batch) -> None:
        made = self.__dict__.setdefault("made", {})
        if batch.rows not in made:
            self.allocate(batch.rows)
            made[batch.rows] = self.views(batch.rows)
        self.current = made[batch.rows]


class RefreshesCopies(PagedMetadata):
    def refresh(self, batch: Batch, live: int) -> None:
        super().refresh(batch, live)
        self.current = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in self.current.items()}


class BakesTheLiveRows(PagedMetadata):
    def refresh(self, batch: Batch, live: int) -> None:
        super().refresh(batch, live)
        self.current["splits"] = live


class RefreshesAShadow(PagedMetadata):
    def refresh(self, batch: Batch, live: int) -> None:
        self.allocate(8)
        super().refresh(batch, live)


class LeavesTheTail(PagedMetadata):
    def fill(self, views: dict[str, Any], batch: Batch, live: int) -> None:
        views["lens"][:live].copy_(batch.seq_lens[:live])


class CountsPads(PagedMetadata):
    def fill(self, views: dict[str, Any], batch: Batch, live: int) -> None:
        super().fill(views, batch, live)
        views["lens"].add_(batch.rows - live)


class WritesBuffers(PagedMetadata):
    def refresh(self, batch: Batch, live: int) -> None:
        batch.seq_lens.add_(1)
        super().refresh(batch, live)


class BindWritesBuffers(PagedMetadata):
    def bind(self, batch: Batch) -> None:
        batch.seq_lens.fill_(1)
        super().bind(batch)


class EagerReallocates(PagedMetadata):
    def begin_eager(self, batch: Batch) -> None:
        self.allocate(batch.rows)


class RefreshesTheCurrent(PagedMetadata):
    def refresh(self, batch: Batch, live: int) -> None:
        self.fill({name: v[: batch.rows + (name == "starts")] for name, v in self.current.items()}, batch, live)

    def views(self, rows: int) -> dict[str, Any]:
        return {name: view for name, view in super().views(rows).items() if name != "splits"}

    def begin_eager(self, batch: Batch) -> None:
        self.current = {"lens": torch.zeros(99), "starts": torch.zeros(99), "pages": torch.zeros(99, 3)}


class HonoursWords(PagedMetadata):
    honours = {"seq_lens": "1"}  # noqa: RUF012 - a fault, not a field


class HonoursNothing(PagedMetadata):
    honours = {"seq_lens": (0,), "elsewhere": ()}  # noqa: RUF012 - a fault, not a field


class ScansPads(PagedMetadata):
    honours = {"table": (-1, 7)}  # noqa: RUF012 - a fault, not a field

    def fill(self, views: dict[str, Any], batch: Batch, live: int) -> None:
        super().fill(views, batch, live)
        views["lens"].add_((batch.table.max() > 3).int())


SHARED: dict[str, Any] = {
    "bind_repeats_addresses": BindsAnew,
    "bind_keeps_other_sizes": lambda backend: GrowsLazily(backend, 1),
    "refresh_keeps_addresses": RefreshesCopies,
    "refresh_changes_no_value": BakesTheLiveRows,
    "refresh_reaches_recordings": RefreshesAShadow,
    "refresh_forgets_history": LeavesTheTail,
    "refresh_ignores_pads": CountsPads,
    "buffers_stay": WritesBuffers,
    "eager_leaves_bound": EagerReallocates,
    "eager_leaves_recordings": RefreshesTheCurrent,
}
HONOURS: dict[str, Any] = {
    "honours_are_numbers": HonoursWords,
    "honours_cover_declared_pads": HonoursNothing,
    "honoured_pads_stay_out": ScansPads,
}


class Draft(PagedMetadata):
    """A right drafter: its lengths are those of its metadata."""


class DraftKeepsItsIndices(Draft):
    def share_kv_indices(self, indices: torch.Tensor) -> None:
        self.kv_indices = indices.clone()


class DraftCountsLiveRows(Draft):
    def fill(self, views: dict[str, Any], batch: Batch, live: int) -> None:
        super().fill(views, batch, live)
        views["lens"][live:].fill_(0)


class DraftTakesTheTargets(Draft):
    def refresh(self, batch: Batch, live: int) -> None:
        self.lens = batch.seq_lens
        super().refresh(batch, live)


LENGTHS: dict[str, Any] = {
    "lengths_are_the_batchs": DraftCountsLiveRows,
    "lengths_are_its_own": DraftTakesTheTargets,
    "indices_are_shared": DraftKeepsItsIndices,
}


@pytest.fixture
def ground(backend: Backend) -> Ground:
    """Lengths and a page table."""
    return Ground.of(INPUTS, backend=backend)


def attention(make: Callable[[Backend], Any], ground: Ground) -> None:
    """Check what `make` makes as attention."""
    check_attention(lambda: make(ground.backend), ground=ground, metadata=lambda part: part.current)


def drafter(make: Callable[[Backend], Any], ground: Ground) -> None:
    """Check what `make` makes as a drafter."""
    check_drafter(
        lambda: make(ground.backend),
        ground=ground,
        metadata=lambda part: part.current,
        lengths=lambda part: part.lens,
    )


def test_right_metadata_pass(ground: Ground):
    """Both suites, on every backend."""
    attention(PagedMetadata, ground)
    drafter(Draft, ground)


def test_metadata_may_have_buffers_for_each_size(ground: Ground):
    """What matters is that the addresses of a size stay."""
    with pytest.raises(Nonconformance) as caught:
        attention(KeepsOnePerSize, ground)
    assert not [violation for violation in caught.value.violations if violation.member == "bind"]


def test_the_fakes_pass(ground: Ground):
    """They have no metadata, and disturb nothing."""
    check_attention(FakeAttention, ground=ground, metadata=lambda part: ())
    check_drafter(lambda: fake_drafter([]), ground=ground, metadata=lambda part: (), lengths=None)


def test_every_promise_has_a_planted_fault():
    """None of the checks is idle."""
    assert_all_planted(ATTENTION, [*SHARED, *HONOURS])
    assert_all_planted(DRAFTER, [*SHARED, *LENGTHS])


EMULATED = choose_backend("emulated", [], "cpu")


class HonoursNoMapping(PagedMetadata):
    honours: Any = ("seq_lens",)


FURTHER: list[tuple[str, Any]] = [
    ("buffers_stay", BindWritesBuffers),
    ("honours_are_numbers", HonoursNoMapping),
]


@pytest.mark.parametrize(("name", "faulty"), [*SHARED.items(), *HONOURS.items(), *FURTHER])
def test_a_fault_of_attention_is_found(name: str, faulty: Any):
    """Planted, and named by protocol and member."""
    assert_found(ATTENTION, name, lambda: attention(faulty, Ground.of(INPUTS)))


@pytest.mark.parametrize("name", [*SHARED, *LENGTHS])
def test_a_fault_of_a_drafter_is_found(name: str):
    """Planted, and named by protocol and member."""
    faulty = (SHARED | LENGTHS)[name]
    assert_found(DRAFTER, name, lambda: drafter(faulty, Ground.of(INPUTS)))


def test_a_pad_that_is_nothing_like_the_others_is_found_among_floats():
    """Honoured pads need not be finite where a buffer holds floats; where it does not, they are passed over."""
    made = PagedMetadata(EMULATED)
    made.honours = {"seq_lens": (1, float("inf"))}
    attention(lambda backend: made, Ground.of(INPUTS))


class TestGround:
    def test_rows_pads_and_garbage(self):
        """Live rows hold numbers of the step, then pads, then what must not be read."""
        ground = Ground.of(INPUTS)
        first = ground.stage(2, 1, 0).seq_lens.clone()
        batch = ground.stage(2, 1, 1)
        assert (2, 1) == (batch.rows, batch.seq_lens[1].item())
        assert first[0] != batch.seq_lens[0]
        assert hostile_value(torch.int32) == ground.batch(4).seq_lens[2].item()

    def test_eager_batches_have_memory_of_their_own(self):
        """As many rows as one likes."""
        ground = Ground.of(INPUTS, tokens_per_request=2)
        batch = ground.eager_batch(9)
        assert (9, 18, (9, 3)) == (batch.rows, batch.tokens, tuple(batch.table.shape))

    def test_values_may_be_given(self):
        """By buffer, entries and step."""
        ground = Ground.of(
            INPUTS, values=lambda name, entries, step: torch.full((entries, 3)[: 1 + (name == "table")], 9)
        )
        assert [9, 1] == ground.stage(2, 1, 0).seq_lens.tolist()

    def test_buffers_of_a_spec(self):
        """Those that an engine with these parts has."""
        geometry = Geometry(rows=4, extents={"pages": {"full": 2}}, sinks={"dummy_cache_slot": 0, "sentinel": 5})
        ground = Ground.for_spec("decode", geometry, present=("recurrent",), sizes=(4, 2))
        assert (2, 4) == tuple(ground.sizes)
        assert {"recurrent_slots", "seq_lens"} <= set(ground.batch(2).buffers)
        assert "shifted_ids" not in ground.batch(2).buffers
