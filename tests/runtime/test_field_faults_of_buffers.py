"""Faults from the field about metadata, tables and pads, each planted: verification names it, or it was refused."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.planting import EARLY, IDS, captured, found, ids, rows_of, suspected
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.buffers.contract import Fixed, Rows
from tsgraph.buffers.staging import Cut, TableCut
from tsgraph.errors import BadBatch
from tsgraph.protocols.null import NullAttention
from tsgraph.replay.verification.report import VerifyReport

# -- A: metadata ------------------------------------------------------------------------------------------------------


class Paged(NullAttention):
    """Metadata of one page table, which the step reads. `rebinds`: each step makes a new one, captured or not."""

    def __init__(self, backend: EmulatedBackend, *, rebinds: bool) -> None:
        self.own = backend.allocate((4,), torch.int64, 0)
        self.table, self.rebinds = self.own, rebinds

    def refresh(self, batch, live):
        if self.rebinds:
            self.own = batch.pages.clone()
        else:
            self.own[: batch.rows].copy_(batch.pages)
        self.table = self.own

    def begin_eager(self, batch):
        self.table = batch.pages.clone()


def paged(*, rebinds: bool, staleness: str = "always") -> VerifyReport:
    """What verification says of an engine that gathers by a page table."""
    backend = EmulatedBackend()
    attention, cache = Paged(backend, rebinds=rebinds), Fixed(torch.arange(10.0, 20.0))
    runtime = captured(
        lambda pages, cache: cache[attention.table[: len(pages)]],
        inputs={"pages": EARLY, "cache": cache},
        backend=backend,
        attention=attention,
        policy={"staleness": staleness},
    )
    return runtime.verify(lambda rows: {"pages": torch.arange(3, 3 - rows, -1) + 1})


def test_a1_a_page_table_that_is_replaced():
    """The tensor is named that a replay would go on reading, and no replay is let to."""
    finding = found(report := paged(rebinds=True), "addresses", "collaborator attention.")
    assert ["moved"] == suspected(finding)
    assert "equality" not in {each.check for each in report.findings}
    assert paged(rebinds=False).ok


def test_a1_is_seen_by_its_results_too():
    """Where nobody looks at addresses before replays, the rows that it spoils are told, and the tensor all the same."""
    report = paged(rebinds=True, staleness="off")
    assert "recorded at 0x" in found(report, "addresses", "collaborator attention.").says
    finding = found(report, "equality")
    assert ("output", ["moved"], (0, 1, 2)) == (
        finding.name,
        suspected(finding),
        rows_of(finding),
    )


class Offsets(NullAttention):
    """Offsets of three queries a request: laid out evenly, but a refresh packs them by what was accepted."""

    def __init__(self, backend: EmulatedBackend) -> None:
        self.offsets = backend.allocate((4,), torch.int64, 0)
        self.current = self.offsets

    def even(self, batch):
        return torch.arange(0, 3 * batch.rows, 3)

    def bind(self, batch):
        self.offsets[: batch.rows].copy_(self.even(batch))
        self.current = self.offsets

    def refresh(self, batch, live):
        self.offsets[1 : batch.rows].copy_(batch.accepted[:-1].cumsum(0))
        self.current = self.offsets

    def begin_eager(self, batch):
        self.current = self.even(batch)


def test_a3_offsets_of_another_layout_than_the_one_recorded():
    """A refresh that lays queries out otherwise than an eager step: the first request is right, the next are not."""
    backend = EmulatedBackend()
    attention, queries = Offsets(backend), Fixed(torch.arange(12.0))
    runtime = captured(
        lambda accepted, queries: queries[attention.current[: len(accepted)]],
        inputs={"accepted": EARLY, "queries": queries},
        backend=backend,
        attention=attention,
    )
    finding = found(runtime.verify(lambda rows: {"accepted": torch.arange(rows) % 2 + 1}), "equality")
    assert ("refresh", (1, 2)) == (suspected(finding)[0], rows_of(finding))


def test_a4_an_optional_input_that_is_left_out():
    """It is refused by name, so that no step reads what an earlier one passed; a wrong length is, too."""
    inputs = {"ids": IDS, "delta": Rows(torch.int64, pad=0)}
    runtime = captured(lambda ids, delta: ids + delta, inputs=inputs)
    with pytest.raises(BadBatch, match="'delta' was not supplied"):
        runtime(ids=torch.tensor([1, 1]))
    with pytest.raises(BadBatch, match="'delta': expected 2 request rows, got 1"):
        runtime(ids=torch.tensor([1, 1]), delta=torch.tensor([1]))
    assert runtime.verify(lambda rows: {**ids(rows), "delta": torch.arange(rows)}).ok


TABLE = {"table": Rows(torch.int64, shape=(4,), pad=0, column_pad=0)}


def tables(rows: int) -> dict[str, torch.Tensor]:
    """Wide tables for many rows, and narrow ones for few."""
    return {"table": torch.arange(1, rows * rows + 1).view(rows, rows)}


def test_a5_columns_that_an_earlier_table_left(monkeypatch: pytest.MonkeyPatch):
    """Planted: the columns that a narrow table does not have are not padded. The buffer is named, and its rows."""

    def copy_body(cut: TableCut, head: torch.Tensor, source: torch.Tensor) -> None:
        head[..., : source.shape[-1]].copy_(source)

    policy = {"staging": "copies"}
    assert captured(lambda table: table.sum(-1), inputs=TABLE, policy=policy).verify(tables).ok
    monkeypatch.setattr(TableCut, "copy", copy_body)
    report = captured(lambda table: table.sum(-1), inputs=TABLE, policy=policy).verify(tables)
    finding = found(report, "staging", "buffer table")
    assert ("unstaged", (0, 1, 2)) == (suspected(finding)[0], rows_of(finding))
    assert "output" == found(report, "equality").name


def test_a5_a_table_that_is_too_wide():
    """One that does not fit is refused, with what it may be at most."""
    runtime = captured(lambda table: table.sum(-1), inputs=TABLE)
    with pytest.raises(BadBatch, match="at most 4 columns"):
        runtime(table=torch.zeros(2, 5, dtype=torch.int64))


class Planned(NullAttention):
    """A plan that is made from the table. `replans`: a refresh makes it anew."""

    def __init__(self, backend: EmulatedBackend, *, replans: bool) -> None:
        self.plan, self.replans = backend.allocate((4,), torch.int64, 0), replans

    def begin_eager(self, batch):
        self.plan[: batch.rows].copy_(batch.pages * 2)

    def bind(self, batch):
        self.begin_eager(batch)

    def refresh(self, batch, live):
        if self.replans:
            self.begin_eager(batch)


def test_a6_a_plan_of_an_earlier_table():
    """A refresh that leaves the plan alone replays with whatever plan is there: eager makes its own."""
    for replans in (True, False):
        backend = EmulatedBackend()
        attention = Planned(backend, replans=replans)
        runtime = captured(
            lambda pages, attention=attention: pages + attention.plan[: len(pages)],
            inputs={"pages": EARLY},
            backend=backend,
            attention=attention,
        )
        report = runtime.verify(lambda rows: {"pages": torch.arange(3, 3 + rows)})
        assert replans == report.ok
    assert "refresh" in suspected(found(report, "equality"))


def test_a7_a_builder_that_is_called_inside_the_step():
    """It runs while recording and never again: what it builds from the host is baked in, and eager's is not."""
    host = {"length": 1}

    def step(ids: torch.Tensor) -> torch.Tensor:
        return ids + torch.full_like(ids, host["length"])

    def inputs(rows: int) -> dict[str, torch.Tensor]:
        host["length"] = 10 + rows
        return ids(rows)

    finding = found(captured(step).verify(inputs), "equality")
    assert "baked" == suspected(finding)[0]


# -- B: pads ----------------------------------------------------------------------------------------------------------


def test_b3_pad_rows_that_keep_garbage(monkeypatch: pytest.MonkeyPatch):
    """Planted: pad rows are not staged. Over dirty buffers a gather by them is out of range; the buffer is named."""

    def write_head(cut: Cut, source: torch.Tensor | None) -> None:
        if source is not None and cut.head is not None:
            cut.copy(cut.head, source)

    table, policy = Fixed(torch.arange(8.0)), {"staging": "copies"}
    inputs = {"ids": IDS, "table": table}
    assert captured(lambda ids, table: table[ids], inputs=inputs, policy=policy).verify(ids).ok
    monkeypatch.setattr(Cut, "write", write_head)
    report = captured(lambda ids, table: table[ids], inputs=inputs, policy=policy).verify(ids)
    assert "dirty" == found(report, "errors").places[0].history
    report = captured(lambda ids: ids + 1, policy=policy).verify(ids)
    finding = found(report, "staging", "buffer ids")
    assert ("unstaged", (3,)) == (suspected(finding)[0], rows_of(finding))


def test_b11_keys_of_more_rows_than_there_are_slots_for():
    """Five slots for eight keys are refused before any copy: every source of a step has its rows."""
    inputs = {"key": Rows(torch.float32, pad=0.0), "place": Rows(torch.int64, pad=0)}
    runtime = captured(lambda key, place: key + place, inputs=inputs, sizes=(8,))
    with pytest.raises(BadBatch, match="'place': expected 8 request rows, got 5"):
        runtime(rows=8, key=torch.zeros(8), place=torch.zeros(5, dtype=torch.int64))
