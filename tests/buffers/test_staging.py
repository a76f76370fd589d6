"""Staging: live rows copied, pad rows padded, whatever was there before; wrong sources refused with nothing changed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.buffers.staging import Staging
from tsgraph.errors import BadBatch

# -- properties -------------------------------------------------------------------------------------------------------

DTYPES = [torch.bool, torch.int32, torch.int64, torch.float32, torch.bfloat16, torch.float8_e5m2]
ROWS = 6
CANARY = 3
"""What every element that no batch may reach is filled with; drawn numbers are 0, 1 or 2."""


@st.composite
def layouts(draw):
    """Words of some fields, of every kind that staging tells apart."""
    tokens, made = draw(st.integers(1, 3)), []
    for index in range(draw(st.integers(1, 4))):
        per = draw(st.sampled_from(["request", "token"]))
        shape = tuple(draw(st.lists(st.integers(1, 4), max_size=2)))
        word = {
            "name": f"b{index}",
            "dtype": draw(st.sampled_from(DTYPES)),
            "per": per,
            "rows_per_request": tokens if per == "token" else 1,
            "shape": shape,
            "pad": draw(st.integers(0, 2)),
            "column_pad": draw(st.none() | st.integers(0, 2)) if shape else None,
            "source": draw(st.sampled_from(["call", "call", "call", "engine"])),
        }
        groups = draw(st.sampled_from([(None,), (None,), ("x", "y")]))
        made += [{**word, "group": group} for group in groups]
    for name in draw(st.sets(st.sampled_from([word["name"] for word in made]))):
        mirror = {"name": f"m_{name}", "mirrors": name, "pad": draw(st.integers(0, 2)), "source": "call"}
        made += [{**root, **mirror} for root in made if root["name"] == name]
    return [{**w, "pad": bool(w["pad"]), "column_pad": None} if w["dtype"] is torch.bool else w for w in made]


def source_for(data, field, live):
    """A tensor that `field` takes: of any content, width and stride that are allowed."""
    shape = [live * field.rows_per_request, *field.shape]
    if field.column_pad is not None:
        shape[-1] = data.draw(st.integers(0, shape[-1]))
    tensor = numbers_for(data, shape).to(field.dtype)
    return tensor.mT.contiguous().mT if tensor.dim() > 1 and data.draw(st.booleans()) else tensor


def sources_for(data, fields, live):
    """Sources of one batch by name, grouped ones as mappings; mirrors only sometimes have one of their own."""
    sources, mirrored = {}, {f.name for f in fields if f.mirrors and data.draw(st.booleans())}
    for field in fields:
        if field.source == "engine" or (field.mirrors and field.name not in mirrored):
            continue
        tensor = source_for(data, field, live)
        if field.group is None:
            sources[field.name] = tensor
        else:
            sources.setdefault(field.name, {})[field.group] = tensor
    return sources


def write_in_place(data, arena, live):
    """What an engine does before a call: its live rows, and now and then whatever it likes behind them."""
    for field in arena.fields:
        if field.source == "engine":
            rows = (live if data.draw(st.booleans()) else ROWS) * field.rows_per_request
            arena.tensors()[field.label][:rows] = numbers_for(data, [rows, *field.shape]).to(field.dtype)


def numbers_for(data, shape):
    """Numbers 0, 1 or 2."""
    return torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))


def expected_rows(field, fields, sources, before, live, size):
    """What the first `size` rows of `field` must hold: written with `cat` and slices, as no buffer would be."""
    rows, whole = live * field.rows_per_request, size * field.rows_per_request
    pads = torch.full((whole - rows, *field.shape), field.pad, dtype=field.dtype)
    name = field.name if field.name in sources or not field.mirrors else field.mirrors
    if name in sources:
        source = sources[name] if field.group is None else sources[name][field.group]
        if field.column_pad is not None:
            margin = torch.full((*source.shape[:-1], field.shape[-1] - source.shape[-1]), field.column_pad)
            source = torch.cat([source.float(), margin.float()], dim=-1).to(field.dtype)
    else:
        root = next(f for f in fields if f.name == name and f.group == field.group)
        source = before[root.label][:rows]
    return torch.cat([source.float(), pads.float()])


@given(st.data())
def test_every_batch_leaves_its_rows_and_pads_and_nothing_else(field, arena_of, data):
    """Live rows equal their sources, rows up to the slot's size hold pads, rows beyond it and sources are untouched.

    For any fields, and any history of batches that grow and shrink through slots of two sizes of one arena.
    """
    fields = data.draw(st.permutations([field(**word) for word in data.draw(layouts())]))  # a mirror may come first
    arena = arena_of(*fields, rows=ROWS)
    slots = [Staging(arena, size) for size in (ROWS, data.draw(st.integers(1, ROWS - 1)))]
    for tensor in arena.tensors().values():
        tensor.fill_(True if tensor.dtype is torch.bool else CANARY)
    for _ in range(data.draw(st.integers(1, 5))):
        slot = data.draw(st.sampled_from(slots))
        live = data.draw(st.integers(0, slot.size))
        sources = sources_for(data, fields, live)
        write_in_place(data, arena, live)
        before = {label: tensor.clone() for label, tensor in arena.tensors().items()}
        given_ = {name: dict(s) if isinstance(s, dict) else s.clone() for name, s in sources.items()}
        slot.stage(live, sources)
        for f in fields:
            tensor, whole = arena.tensors()[f.label], slot.size * f.rows_per_request
            assert torch.equal(expected_rows(f, fields, given_, before, live, slot.size), tensor[:whole].float()), (
                f.label
            )
            assert torch.equal(before[f.label][whole:].float(), tensor[whole:].float()), f.label
        assert all(torch.equal(given_[n].float(), s.float()) for n, s in sources.items() if isinstance(s, torch.Tensor))


# -- cases ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def arena(field, arena_of):
    """Four rows of two tokens: ids per token, lengths, a table that may be narrower, two groups, one row in place."""
    return arena_of(
        field("ids", per="token", rows_per_request=2, pad=1),
        field("lens", dtype=torch.int32, pad=1),
        field("table", shape=(4,), pad=-1, column_pad=-2),
        field("groups", group="full", shape=(2,), pad=-1),
        field("groups", group="window", shape=(1,), pad=-1),
        field("cached", pad=9, source="engine"),
    )


def batch(live):
    """Sources of one batch of `live` rows."""
    return {
        "ids": torch.arange(2 * live) + 10,
        "lens": torch.arange(live, dtype=torch.int32) + 20,
        "table": torch.arange(3 * live).view(live, 3) + 30,
        "groups": {"full": torch.ones(live, 2, dtype=torch.int64), "window": torch.ones(live, 1, dtype=torch.int64)},
    }


def test_a_narrow_table_leaves_no_old_columns_behind(arena):
    """Columns of a live row beyond the table's width hold the column pad, pad rows the pad (faults A5, B4)."""
    stage = Staging(arena, 4).stage
    stage(2, {**batch(2), "table": torch.full((2, 4), 5)})
    stage(2, {**batch(2), "table": torch.tensor([[6], [7]])})
    assert [[6, -2, -2, -2], [7, -2, -2, -2], [-1] * 4, [-1] * 4] == arena.tensors()["table"].tolist()
    stage(2, {**batch(2), "table": torch.empty(2, 0, dtype=torch.int64)})
    assert [[-2] * 4, [-2] * 4, [-1] * 4, [-1] * 4] == arena.tensors()["table"].tolist()


def test_rows_written_in_place_stay_and_only_their_tail_is_padded(arena):
    """The engine's own rows are its own; what an earlier batch left behind them is not."""
    arena.tensors()["cached"].copy_(torch.tensor([3, 4, 5, 6]))
    Staging(arena, 3).stage(2, batch(2))
    assert [3, 4, 9, 6] == arena.tensors()["cached"].tolist()


def test_an_idle_step_is_all_pads(arena):
    """With no live rows every row is a pad, and sources may be left out, empty or None."""
    stage = Staging(arena, 4).stage
    empty = {"ids": torch.empty(0), "lens": None, "table": torch.empty(0, 7), "groups": {}}
    for sources in ({}, empty, batch(0)):
        stage(4, batch(4))
        stage(0, sources)
        pads = {"ids": 1, "lens": 1, "table": -1, "groups[full]": -1, "groups[window]": -1, "cached": 9}
        assert all(tensor.eq(pads[label]).all() for label, tensor in arena.tensors().items())


def test_a_mirror_takes_the_source_of_another_with_its_own_pad(field, arena_of):
    """State-write indices are the pool's live rows, then the sentinel (rule R32), unless they are passed."""
    arena = arena_of(field("write", mirrors="pool", pad=5), field("pool", pad=0))
    stage = Staging(arena, 4).stage
    stage(2, {"pool": torch.tensor([3, 4])})
    assert ([3, 4, 5, 5], [3, 4, 0, 0]) == tuple(arena.tensors()[name].tolist() for name in ("write", "pool"))
    stage(1, {"pool": torch.tensor([3]), "write": torch.tensor([8])})
    assert ([8, 5, 5, 5], [3, 0, 0, 0]) == tuple(arena.tensors()[name].tolist() for name in ("write", "pool"))


def test_a_mirror_of_rows_in_place_copies_them(field, arena_of):
    """The draft's lengths follow those that the engine wrote, without a source."""
    arena = arena_of(field("lens", source="engine", pad=1), field("draft", mirrors="lens", pad=0))
    arena.tensors()["lens"].copy_(torch.tensor([5, 6, 7, 8]))
    Staging(arena, 4).stage(3, {})
    assert ([5, 6, 7, 1], [5, 6, 7, 0]) == tuple(arena.tensors()[name].tolist() for name in ("lens", "draft"))


def test_a_grouped_mirror_of_rows_in_place_copies_each_group_from_its_own(field, arena_of):
    """Each group follows the group of the same name."""
    groups = ("full", "window")
    roots = [field("offsets", group=group, source="engine") for group in groups]
    arena = arena_of(*roots, *(field("draft", group=group, mirrors="offsets") for group in groups))
    arena.tensors()["offsets[full]"].fill_(1)
    arena.tensors()["offsets[window]"].fill_(2)
    Staging(arena, 4).stage(2, {})
    assert ([1, 1, 0, 0], [2, 2, 0, 0]) == tuple(arena.tensors()[f"draft[{group}]"].tolist() for group in groups)


def test_sources_with_gradients_do_not_make_buffers_part_of_a_graph(field, arena_of):
    """A buffer never requires gradients, whatever is copied into it; the source stays as it was."""
    arena, source = arena_of(field("scale", dtype=torch.float32)), torch.ones(2, requires_grad=True)
    with torch.enable_grad():
        Staging(arena, 4).stage(2, {"scale": source})
    assert (False, True) == (arena.tensors()["scale"].requires_grad, source.requires_grad)
    assert [1, 1, 0, 0] == arena.tensors()["scale"].tolist()


def test_modes_may_change_between_calls(arena):
    """Views cut in inference mode are written outside it, and the other way round (fault R3)."""
    stage = Staging(arena, 4).stage
    for live, inference in ((2, True), (2, False), (3, False), (3, True)):
        with torch.inference_mode(mode=inference):
            stage(live, batch(live))
    assert [20, 21, 22, 1] == arena.tensors()["lens"].tolist()


def test_a_call_makes_no_views_that_it_made_before(arena):
    """The second call with as many rows and as wide a table writes through the very same views."""
    staging = Staging(arena, 4)

    def views():
        return [getattr(cut, name, None) for cut in staging._plans[2].cuts for name in ("head", "tail", "columns")]

    staging.stage(2, batch(2))
    kept = views()
    staging.stage(2, batch(2))
    assert list(map(id, kept)) == list(map(id, views()))


def test_a_slot_larger_than_the_arena_is_refused(arena):
    """Staging for more rows than there is memory for fails when it is made."""
    with pytest.raises(BadBatch, match="the static buffers hold 0 to 4 rows, not 5"):
        Staging(arena, 5)


# -- wrong sources ----------------------------------------------------------------------------------------------------

WRONG = {
    "missing": ({"lens": None}, "buffer 'lens' was not supplied: expected a tensor of torch.int32 and shape (3,)"),
    "unknown": (
        {"lenz": torch.zeros(3)},
        "there is no buffer 'lenz'; the buffers are ids, lens, table, groups, cached",
    ),
    "a list": ({"lens": [1, 2, 3]}, "buffer 'lens': expected a tensor of torch.int32 and shape (3,), got list"),
    "numpy": ({"lens": np.zeros(3, np.int32)}, "expected a tensor of torch.int32 and shape (3,), got ndarray"),
    "dtype": ({"lens": torch.zeros(3)}, "buffer 'lens': expected torch.int32, got torch.float32"),
    "short": ({"lens": torch.zeros(2, dtype=torch.int32)}, "buffer 'lens': expected 3 request rows, got 2"),
    "long": ({"lens": torch.zeros(4, dtype=torch.int32)}, "buffer 'lens': expected 3 request rows, got 4"),
    "requests for tokens": ({"ids": torch.zeros(3).long()}, "buffer 'ids': expected 6 token rows, got 3"),
    "scalar": ({"lens": torch.tensor(1, dtype=torch.int32)}, "buffer 'lens': expected shape (3,), got ()"),
    "flat": ({"table": torch.zeros(12).long()}, "buffer 'table': expected shape (3, 4), got (12,)"),
    "deep": ({"lens": torch.zeros(3, 1, dtype=torch.int32)}, "buffer 'lens': expected shape (3,), got (3, 1)"),
    "wide": ({"table": torch.zeros(3, 5).long()}, "buffer 'table': expected at most 4 columns, got 5"),
    "sparse": ({"table": torch.zeros(3, 4).long().to_sparse()}, "expected a strided tensor, got torch.sparse_coo"),
    "meta": (
        {"lens": torch.zeros(3, dtype=torch.int32, device="meta")},
        "expected a tensor on cpu or cpu, got one on meta",
    ),
    "in place": (
        {"cached": torch.zeros(3).long()},
        "buffer 'cached' is written in place by the engine: expected no source",
    ),
    "no groups": (
        {"groups": torch.zeros(3, 2)},
        "buffer 'groups': expected a mapping from group (full, window) to tensor",
    ),
    "a group missing": (
        {"groups": {"full": torch.ones(3, 2).long()}},
        "buffer 'groups': group 'window' was not supplied",
    ),
    "a group unknown": ({"groups": {**batch(3)["groups"], "ful": 1}}, "buffer 'groups': there is no group 'ful'"),
    "a group short": (
        {"groups": {**batch(3)["groups"], "window": torch.ones(2, 1).long()}},
        "buffer 'groups', group 'window': expected 3 request rows, got 2",
    ),
    "a group long": (
        {"groups": {**batch(3)["groups"], "full": torch.ones(4, 2).long()}},
        "buffer 'groups', group 'full': expected 3 request rows, got 4",
    ),
    "a group narrow": (
        {"groups": {**batch(3)["groups"], "full": torch.ones(3, 1).long()}},
        "buffer 'groups', group 'full': expected shape (3, 2), got (3, 1)",
    ),
    "a group of nothing": ({"groups": {**batch(3)["groups"], "full": None}}, "group 'full' was not supplied"),
    "empty groups": ({"groups": {}}, "buffer 'groups': group 'full' was not supplied; its groups are full, window"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_source_is_named_and_nothing_changes(arena, contents, wrong):
    """Every kind of misfit says which buffer, what was expected and what was got, before any buffer is written."""
    stage = Staging(arena, 4).stage
    stage(4, batch(4))
    before, (sources, message) = contents(arena), WRONG[wrong]
    with pytest.raises(BadBatch) as error:
        stage(3, {**batch(3), **sources})
    assert message in str(error.value)
    assert next(iter(sources)) == error.value.context["buffer"]
    assert before == contents(arena)


@pytest.mark.parametrize("live", [5, -1, 2.5, "2", None])
def test_rows_that_do_not_fit_the_slot_are_refused(arena, contents, live):
    """More rows than the slot has, or what is no number of rows, is refused with the range (rule R28)."""
    before = contents(arena)
    with pytest.raises(BadBatch, match="expected 0 to 4 live rows, got"):
        Staging(arena, 4).stage(live, batch(4))
    assert before == contents(arena)


def test_a_misspelt_buffer_is_suggested(arena):
    """The hint names the buffer that was likely meant, and a group likewise."""
    with pytest.raises(BadBatch) as error:
        Staging(arena, 4).stage(3, {**batch(3), "tabel": torch.zeros(3, 4)})
    assert "did you mean 'table'?" == error.value.hint
    with pytest.raises(BadBatch) as error:
        Staging(arena, 4).stage(3, {**batch(3), "groups": {"ful": 1}})
    assert "did you mean 'full'?" == error.value.hint


def test_idle_sources_with_rows_are_refused(arena):
    """A source with rows in a step without rows is a contradiction."""
    with pytest.raises(BadBatch, match="buffer 'lens': expected 0 request rows, got 1"):
        Staging(arena, 4).stage(0, {"lens": torch.zeros(1, dtype=torch.int32)})


def test_a_wrong_source_of_a_mirror_blames_the_one_that_was_passed(field, arena_of):
    """Where a mirror takes another's source, the error names the buffer that the caller knows."""
    arena = arena_of(field("write", mirrors="pool"), field("pool"))
    for sources in ({}, {"pool": torch.zeros(2)}):
        with pytest.raises(BadBatch, match="buffer 'pool'"):
            Staging(arena, 4).stage(2, sources)
    with pytest.raises(BadBatch, match="buffer 'write': expected 2 request rows, got 1"):
        Staging(arena, 4).stage(2, {"pool": torch.zeros(2).long(), "write": torch.zeros(1).long()})
