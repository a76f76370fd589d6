"""Static tensors: full of pads from the start, at addresses that stay, in views that are the same objects each time."""

import math

import pytest
import torch

from tsgraph.errors import BadBatch, ContractViolation


@pytest.fixture
def mixed(field, arena_of):
    """An arena of 4 rows: one number a request, two tokens a request, one table per group."""
    return arena_of(
        field("lens", dtype=torch.int32, pad=1, warm=2),
        field("ids", per="token", rows_per_request=2, pad=7),
        field("tables", group="full", shape=(3,), pad=-1),
        field("tables", group="window", shape=(1,), pad=-1),
    )


def test_memory_starts_as_pads(field, arena_of):
    """Nothing is uninitialised: every element of every dtype holds its pad (fault B3)."""
    dtypes = (torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float8_e4m3fn)
    arena = arena_of(*(field(str(dtype), dtype=dtype, pad=1, shape=(2,)) for dtype in dtypes))
    for dtype in dtypes:
        assert torch.equal(torch.ones(4, 2), arena.tensors()[str(dtype)].float())


def test_an_index_pad_keeps_all_its_bits(field, arena_of):
    """A large int64 pad is not squeezed through a float."""
    assert 2**53 + 1 == arena_of(field("slot", pad=2**53 + 1)).tensors()["slot"][0].item()


def test_views_are_prefixes_of_one_memory(mixed):
    """Every size reads the same addresses; per-token buffers have tokens-per-request entries for each row."""
    views = mixed.views(3)
    assert ((3,), (6,), (3, 3), (3, 1)) == tuple(
        tuple(v.shape) for v in (views["lens"], views["ids"], views["tables"]["full"], views["tables"]["window"])
    )
    assert mixed.addresses() == {
        "lens": views["lens"].data_ptr(),
        "ids": views["ids"].data_ptr(),
        "tables[full]": views["tables"]["full"].data_ptr(),
        "tables[window]": views["tables"]["window"].data_ptr(),
    }


def test_views_are_the_same_objects_at_each_call(mixed):
    """What a slot holds can be compared by identity (rule R19)."""
    first, second = mixed.views(2), mixed.views(2)
    assert all(first[name] is second[name] for name in first)


@pytest.mark.parametrize("size", [-1, 5])
def test_sizes_beyond_the_memory_are_refused(mixed, size):
    """More rows than there are is an error with both numbers."""
    with pytest.raises(BadBatch, match=f"the static buffers hold 0 to 4 rows, not {size}"):
        mixed.views(size)


def test_fills_reach_exactly_the_rows_of_a_size(mixed):
    """Warm-up values and pads fill the first rows of every buffer, and none beyond."""
    mixed.fill_warm(3)
    assert [2, 2, 2, 1] == mixed.tensors()["lens"].tolist()
    for tensor in mixed.tensors().values():
        tensor.fill_(5)
    mixed.fill_pads(1)
    assert [1, 5, 5, 5] == mixed.tensors()["lens"].tolist()
    assert [7, 7, *[5] * 6] == mixed.tensors()["ids"].tolist()
    assert [[-1] * 3, *[[5] * 3] * 3] == mixed.tensors()["tables[full]"].tolist()
    mixed.fill_warm(2)
    assert [7, 7, 7, 7, *[5] * 4] == mixed.tensors()["ids"].tolist()


def test_a_probe_fills_what_is_declared_for_it(field, arena_of):
    """Where a buffer says nothing of probes, its rows are as in a warm-up; none beyond the size is touched."""
    arena = arena_of(field("lens", pad=1, warm=2, probe=64), field("ids", pad=7))
    arena.fill_probe(3)
    assert ([64, 64, 64, 1], [7] * 4) == tuple(arena.tensors()[name].tolist() for name in ("lens", "ids"))
    arena.fill_warm(3)
    assert [2, 2, 2, 1] == arena.tensors()["lens"].tolist()


@pytest.mark.parametrize("leaves", [None, ValueError, KeyboardInterrupt])
def test_saved_contents_come_back_on_every_exit(field, arena_of, contents, leaves):
    """A late capture disturbs no row that the engine wrote in place, NaN included, even when it fails."""
    arena = arena_of(field("lens"), field("scale", dtype=torch.float32, pad=math.nan))
    arena.tensors()["lens"].copy_(torch.arange(4))
    before = contents(arena)
    with pytest.raises(leaves) if leaves else torch.no_grad(), arena.saved():
        arena.fill_warm(4)
        arena.tensors()["scale"].zero_()
        if leaves:
            raise leaves
    assert before == contents(arena)


def test_an_arena_made_in_inference_mode_is_written_outside_it(field, arena_of):
    """Buffers and their views are ordinary tensors in whatever mode they were made (fault R3)."""
    with torch.inference_mode():
        arena = arena_of(field("ids"))
        view = arena.views(2)["ids"]
    assert not view.is_inference()
    view.add_(1)
    with torch.inference_mode(), arena.saved():
        view.add_(1)
    assert [1, 1, 0, 0] == arena.tensors()["ids"].tolist()


# -- counting rows ----------------------------------------------------------------------------------------------------


def test_rows_are_counted_from_requests_before_tokens(mixed):
    """A source of one entry a request says the rows; a prefill's tokens would not."""
    assert 3 == mixed.count_rows({"ids": torch.zeros(11), "lens": torch.zeros(3)})
    assert 2 == mixed.count_rows({"ids": torch.zeros(11), "tables": {"full": torch.zeros(2, 3)}})
    assert 5 == mixed.count_rows({"ids": torch.zeros(10)})


def test_rows_that_nothing_says_must_be_given(mixed):
    """No source, or one that is no tensor of rows, is an error that says what to pass."""
    for sources in ({}, {"lens": None}, {"lens": [1, 2]}, {"lens": torch.tensor(1)}, {"tables": {}}):
        with pytest.raises(BadBatch, match=r"no source says how many rows there are\n  fix: pass rows="):
            mixed.count_rows(sources)


def test_tokens_that_are_no_whole_requests_say_no_rows(mixed):
    """Eleven tokens at two a request are an error, not five rows."""
    with pytest.raises(BadBatch, match="buffer 'ids': 11 token rows are not 2 tokens for each request"):
        mixed.count_rows({"ids": torch.zeros(11)})


def test_memory_of_the_engine_becomes_static(field, arena_of):
    """A buffer may be the engine's own tensor: at its own address, with its contents, and with more rows."""
    own = torch.arange(6, dtype=torch.int32)
    arena = arena_of(field("lens", dtype=torch.int32, pad=1), memory={"lens": own})

    assert own.data_ptr() == arena.addresses()["lens"]
    assert [0, 1, 2, 3] == arena.views(4)["lens"].tolist()


@pytest.mark.parametrize(
    "own",
    [
        torch.zeros(6, dtype=torch.int64),
        torch.zeros(3, dtype=torch.int32),
        torch.zeros(6, 1, dtype=torch.int32),
        torch.zeros(12, dtype=torch.int32)[::2],
    ],
    ids=["dtype", "rows", "shape", "strides"],
)
def test_memory_that_does_not_fit_is_refused(field, arena_of, own):
    """The message names the buffer, what it takes, and what was given."""
    with pytest.raises(ContractViolation, match=r"memory.lens: expected contiguous torch.int32 of \(4,\).*, got torch"):
        arena_of(field("lens", dtype=torch.int32, pad=1), memory={"lens": own})


def test_memory_for_no_buffer_is_refused(field, arena_of):
    """A name that no buffer has is a mistake, told with those there are."""
    with pytest.raises(ContractViolation, match=r"memory.len: expected one of lens"):
        arena_of(field("lens", dtype=torch.int32, pad=1), memory={"len": torch.zeros(4, dtype=torch.int32)})
