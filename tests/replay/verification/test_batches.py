"""Batches: the same rows whenever they are asked for, dummies that are legal anywhere, and garbage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import Rows, as_buffers, resolve_fields
from tsgraph.errors import BadBatch
from tsgraph.keys import Geometry
from tsgraph.replay.verification.batches import Batches, Dummies, litter
from tsgraph.replay.verification.standstill import Random
from tsgraph.spec.model import Buffer, Pad

IDS = Rows(torch.int64, pad=7)
TABLE = Rows(torch.int32, shape=(4,), pad=0, column_pad=-1)


def arena_of(inputs: Mapping[str, Rows] | None = None, *, tokens: int = 1, **buffers: Buffer) -> Arena:
    """An arena of four rows."""
    geometry = Geometry(rows=4, tokens_per_request=tokens, extents={"pages": {"full": 2, "window": 1}})
    fields = resolve_fields({**as_buffers(inputs or {}), **buffers}, geometry)
    return Arena(fields, 4, EmulatedBackend())


def batches(make: Any, arena: Arena | None = None) -> Batches:
    """Batches of `make`."""
    return Batches(make, arena or arena_of({"ids": IDS}), Random.now(torch.device("cpu")))


def test_random_rows_are_the_same_each_time():
    """Torch's generators are rewound before each batch, so that rows which are drawn need no seed."""
    made = batches(lambda rows: {"ids": torch.randint(100, (rows,))})
    first = made.of(3)["ids"]
    torch.rand(5)
    assert torch.equal(first, made.of(3)["ids"])
    assert {} == made.of(0)


def test_rows_that_change_are_refused():
    """What is compared must be the same rows."""
    calls: list[int] = []

    def make(rows: int) -> dict[str, torch.Tensor]:
        calls.append(rows)
        return {"ids": torch.full((rows,), len(calls))}

    made = batches(make)
    made.of(2)
    with pytest.raises(BadBatch, match=r"inputs\(2\) gave other rows than before"):
        made.of(2)


@pytest.mark.parametrize(
    ("make", "says"), [(lambda rows: 1 / 0, "ZeroDivisionError"), (lambda rows: [rows], "gave list")]
)
def test_inputs_that_fail_are_the_callers(make: Any, says: str):
    """It is told which call it was."""
    with pytest.raises(BadBatch, match=rf"inputs\(2\) .*{says}"):
        batches(make).of(2)


def test_a_batch_may_begin_like_another():
    """Row by row; a column that one of them lacks is a column pad."""
    arena = arena_of({"table": TABLE})
    full = torch.tensor([[1, 2, -1, -1], [3, -1, -1, -1]], dtype=torch.int32)
    for head, alike in (
        (full[:1], True),
        (full[:1, :2], True),
        (full[:1, :1], False),
        (full[1:], False),
    ):
        made = batches(lambda rows, head=head: {"table": full if rows == 2 else head}, arena)
        made.of(2), made.of(1)
        assert alike == made.begin_alike(2, 1)


def test_the_last_row_may_be_first():
    """Tokens of a row stay in their order, groups are groups, and buffers written in place are turned, too."""
    held = Rows(torch.int64, pad=0, source="engine")
    grouped = Buffer(name="tables", dtype="int32", per="request", pad=Pad(value=0), shape=("pages",), grouped=True)
    arena = arena_of({"ids": Rows(torch.int64, pad=0, per="token"), "held": held}, tokens=2, tables=grouped)
    tables = {"full": torch.tensor([[1, 2], [3, 4]]).int(), "window": torch.tensor([[5], [6]]).int()}

    def make(rows: int) -> dict[str, Any]:
        arena.tensors()["held"][:rows] = torch.arange(10, 10 + rows)
        return {"ids": torch.arange(2 * rows), "tables": tables}

    turned = batches(make, arena).reversed(2)
    assert [2, 3, 0, 1] == turned["ids"].tolist()
    assert {"full": [[3, 4], [1, 2]], "window": [[6], [5]]} == {g: t.tolist() for g, t in turned["tables"].items()}
    assert [11, 10] == arena.tensors()["held"][:2].tolist()


def test_buffers_that_never_varied_are_told():
    """One number in all rows of all batches shows nothing about a buffer; elements of one row may vary."""
    arena = arena_of({"ids": IDS, "table": TABLE, "held": Rows(torch.int64, pad=3, source="engine")})
    made = batches(
        lambda rows: {"ids": torch.full((rows,), 5), "table": torch.arange(4 * rows).int().view(rows, 4)}, arena
    )
    made.of(1), made.of(3)
    assert ["ids", "held"] == made.unvaried()


def test_what_buffers_are_to_hold_is_known_without_staging():
    """Live rows, column pads beside them, pads behind; a mirror holds what it mirrors, unless it has its own source."""
    mirror = {"dtype": "int64", "per": "request", "pad": Pad(value=9), "mirrors": "ids"}
    arena = arena_of(
        {"ids": IDS, "table": TABLE}, again=Buffer(name="again", **mirror), own=Buffer(name="own", **mirror)
    )
    made = batches(
        lambda rows: {
            "ids": torch.arange(rows),
            "table": torch.ones(rows, 2, dtype=torch.int32),
            "own": torch.full((rows,), 4),
        },
        arena,
    )
    made.of(2)
    held = {label: tensor.tolist() for label, tensor in made.declared(2, 3).items()}
    assert {"ids": [0, 1, 7], "again": [0, 1, 9], "own": [4, 4, 9]} == {k: v for k, v in held.items() if k != "table"}
    assert [[1, 1, -1, -1], [1, 1, -1, -1], [0, 0, 0, 0]] == held["table"]
    assert [7, 7] == made.declared(0, 2)["ids"].tolist()


# -- dummies ----------------------------------------------------------------------------------------------------------


def test_dummies_hold_what_warm_ups_probes_and_pads_do():
    """One kind a row, for all buffers; which one depends on the seed and the row's place."""
    inputs = {
        "ids": IDS,
        "lens": Rows(torch.int32, pad=1, warm=3, probe=9),
        "held": Rows(torch.int64, pad=0, warm=5, source="engine"),
        "scale": Rows(torch.float32, pad=0.5, shape=(2, 1), per="token"),
    }
    arena = arena_of(inputs, tokens=2)
    seen: set[tuple[int, int]] = set()
    for seed in range(8):
        sources = Dummies(arena, seed)(4)
        assert ["ids", "lens", "scale"] == list(sources)
        assert ([7] * 4, (8, 2, 1)) == (sources["ids"].tolist(), tuple(sources["scale"].shape))
        seen |= set(zip(sources["lens"].tolist(), arena.tensors()["held"].tolist(), strict=True))
        assert torch.equal(sources["lens"][:3], Dummies(arena, seed)(3)["lens"])
    assert {(1, 0), (3, 5), (9, 5)} == seen
    assert "lens 1 or 3 or 9" in Dummies(arena, 0).told()


def test_dummies_of_groups_and_mirrors():
    """A grouped buffer has a source for each group; a mirror has none, it takes what it mirrors."""
    grouped = Buffer(name="tables", dtype="int32", per="request", pad=Pad(value=-1), shape=("pages",), grouped=True)
    mirror = Buffer(name="again", dtype="int64", per="request", pad=Pad(value=0), mirrors="ids")
    sources = Dummies(arena_of({"ids": IDS}, tables=grouped, again=mirror), 0)(2)
    assert {"ids", "tables"} == sources.keys()
    assert {"full": (2, 2), "window": (2, 1)} == {g: tuple(t.shape) for g, t in sources["tables"].items()}


# -- garbage ----------------------------------------------------------------------------------------------------------


def test_hostile_garbage_is_no_index_and_no_number():
    """In static buffers and in what earlier replays returned."""
    arena, output = arena_of({"ids": IDS, "scale": Rows(torch.float32, pad=0.0)}), torch.zeros(3)
    litter(arena, [output], hostile=True)
    tensors = arena.tensors()
    assert tensors["ids"].min() > 1 << 60
    assert tensors["scale"].isnan().all()
    assert output.isnan().all()


def test_other_garbage_is_another_rows():
    """Integers stay legal ones where a wrong index cannot be told, and would end the process."""
    arena, count = arena_of({"ids": IDS}), torch.tensor(3)
    arena.tensors()["ids"].copy_(torch.arange(4))
    litter(arena, [count], hostile=False)
    assert ([3, 0, 1, 2], 3) == (arena.tensors()["ids"].tolist(), count.item())
