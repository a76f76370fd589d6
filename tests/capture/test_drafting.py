"""What a drafter's metadata see of a batch, and how often an eager step begins for them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tsgraph.buffers.contract import Field
from tsgraph.capture.drafting import Drafting
from tsgraph.groups import CacheGroup
from tsgraph.keys import Batch, Geometry, Mode, RankCounts
from tsgraph.protocols.collaborators import Capabilities
from tsgraph.protocols.null import NullDrafter

GROUPS = (
    CacheGroup(name="full", rows_per_page=4),
    CacheGroup(name="window", rows_per_page=4, retention="sliding_window", window=8),
)


@attrs.define(eq=False)
class Noting(NullDrafter):
    """A drafter that notes the batches that it is given."""

    capabilities: Capabilities = attrs.field(factory=lambda: Capabilities(flat_groups=True))
    seen: list[Batch] = attrs.field(factory=list)

    def bind(self, batch: Batch) -> None:
        self.seen.append(batch)

    def begin_eager(self, batch: Batch) -> None:
        self.seen.append(batch)

    def refresh(self, batch: Batch, live: int) -> None:
        self.seen.append(attrs.evolve(batch))


@pytest.fixture
def field():
    """Makes the field of one group's table."""
    import torch

    return lambda group: Field(name="tables", dtype=torch.int32, per="request", pad=0, group=group)


def _drafting(drafter: Noting, field: Any) -> Drafting:
    return Drafting.of(drafter, Geometry(rows=4, groups=GROUPS), (field("full"), field("window")))


def _batch(mode: Mode = Mode.DECODE) -> Any:
    buffers: Any = {"ids": "ids", "tables": {"full": "full table", "window": "window table"}}
    return Batch(4, 4, mode, "default", buffers)


def test_a_drafter_sees_the_tables_of_its_groups(field):
    """Other buffers are the target's own; the target's batch is left as it is."""
    drafter, batch = Noting(), _batch()
    _drafting(drafter, field).bind(batch)

    assert {"ids": "ids", "tables": {"full": "full table"}} == drafter.seen[0].buffers
    assert ["full", "window"] == list(batch.tables)


def test_a_drafter_of_paged_tables_sees_the_batch_itself(field):
    """Nothing is left out, and so nothing is made anew, per replay or otherwise."""
    drafter, batch = Noting(Capabilities(paged_groups=True)), _batch()
    drafting = _drafting(drafter, field)
    drafting.bind(batch)

    assert batch is drafter.seen[0]
    assert drafter.refresh == drafting.refresher(batch)


def test_a_refresh_has_the_counts_of_its_own_step(field):
    """What the ranks bring changes with every step, though the drafter's batch is made once."""
    drafter, batch = Noting(), _batch()
    refresh = _drafting(drafter, field).refresher(batch)
    counts = [RankCounts((4, 2)), RankCounts((1, 3))]
    for each in counts:
        batch.counts = each
        refresh(batch, 3)

    assert counts == [seen.counts for seen in drafter.seen]
    assert all({"full": "full table"} == seen.tables for seen in drafter.seen)


@pytest.mark.parametrize(
    ("mode", "own", "expected"),
    [
        (Mode.EXTEND, False, [Mode.EXTEND]),
        (Mode.MIXED, False, [Mode.MIXED]),
        (Mode.EXTEND, True, [Mode.EXTEND, Mode.DECODE]),
        (Mode.MIXED, True, [Mode.MIXED, Mode.DECODE]),
        (Mode.DECODE, True, [Mode.DECODE]),
        (Mode.DECODE, False, [Mode.DECODE]),
        (Mode.IDLE, False, [Mode.DECODE]),
    ],
)
def test_an_eager_step_begins_as_the_drafter_needs_it(field, mode, own, expected):
    """Once in the step's mode where it prefills, then as a decode step where that is another init; else as a decode."""
    drafter = Noting(Capabilities(flat_groups=True, prefill_on_target_lengths=own))
    _drafting(drafter, field).begin_eager(_batch(mode))

    assert expected == [seen.mode for seen in drafter.seen]
