"""The eager path's inputs: checked like a slot's, without its limits, and the caller's tensors as they were."""

import pytest
import torch

from tsgraph.buffers.staging import eager_inputs
from tsgraph.errors import BadBatch


@pytest.fixture
def arena(field, arena_of):
    """Four rows of two tokens, with a mirror, groups, a table that may be narrower and rows written in place."""
    return arena_of(
        field("ids", per="token", rows_per_request=2, pad=1),
        field("write", mirrors="pool", pad=5),
        field("pool", pad=0),
        field("table", shape=(3,), pad=-1, column_pad=-2),
        field("groups", group="full", shape=(2,), pad=-1),
        field("groups", group="window", shape=(1,), pad=-1),
        field("lens", pad=9, source="engine"),
        field("draft", mirrors="lens", pad=0),
    )


def batch(rows, tokens):
    """Sources of one eager step."""
    return {
        "ids": torch.arange(tokens),
        "pool": torch.arange(rows),
        "table": torch.ones(rows, 3, dtype=torch.int64),
        "groups": {"full": torch.ones(rows, 2).long(), "window": torch.ones(rows, 1).long()},
    }


def test_sources_are_passed_on_as_they_are(arena):
    """Device tensors that fit reach the step without a copy; grouped ones as a dict; nothing is staged or padded."""
    sources = batch(3, 6)
    inputs, tokens = eager_inputs(arena, 3, sources, tokens=6)
    assert all(sources[name] is inputs[name] for name in ("ids", "pool", "table"))
    assert all(sources["groups"][group] is inputs["groups"][group] for group in ("full", "window"))
    assert [field.name for field in arena.fields if field.group != "window"] == list(inputs)
    assert 6 == tokens
    assert [0] * 4 == arena.tensors()["pool"].tolist()


def test_more_rows_than_any_slot_are_served(field, arena_of):
    """No static buffer limits an eager step whose rows all come with the call."""
    arena = arena_of(field("ids"), field("table", shape=(2,), column_pad=0))
    inputs, _ = eager_inputs(arena, 9, {"ids": torch.arange(9), "table": torch.ones(9, 5).long()})
    assert (9, (9, 5)) == (len(inputs["ids"]), tuple(inputs["table"].shape))


def test_a_narrow_table_is_widened(arena):
    """The step sees the declared width, filled with the column pad; the caller's table stays as it was."""
    narrow = torch.tensor([[4], [5]])
    inputs, _ = eager_inputs(arena, 2, {**batch(2, 4), "table": narrow})
    assert [[4, -2, -2], [5, -2, -2]] == inputs["table"].tolist()
    assert [[4], [5]] == narrow.tolist()


def test_a_mirror_is_memory_of_its_own(arena):
    """What a step does to a mirror changes neither the source nor the rows that the engine wrote in place."""
    arena.tensors()["lens"].copy_(torch.tensor([3, 4, 5, 6]))
    sources = batch(2, 4)
    inputs, _ = eager_inputs(arena, 2, sources)
    assert ([0, 1], [3, 4], [3, 4]) == tuple(inputs[name].tolist() for name in ("write", "lens", "draft"))
    inputs["write"].add_(1)
    inputs["draft"].add_(1)
    assert ([0, 1], [3, 4]) == (sources["pool"].tolist(), inputs["lens"].tolist())
    own = torch.tensor([8, 8])
    assert eager_inputs(arena, 2, {**sources, "write": own})[0]["write"] is own


def test_rows_in_place_are_views_of_the_static_buffer(arena):
    """The step reads, and may write, what the engine wrote in place."""
    inputs, _ = eager_inputs(arena, 2, batch(2, 4))
    inputs["lens"].fill_(7)
    assert [7, 7, 9, 9] == arena.tensors()["lens"].tolist()


def test_rows_in_place_are_only_as_many_as_the_buffer_holds(arena, contents):
    """An eager step of more rows than the static buffer has is refused by that buffer's name."""
    before = contents(arena)
    with pytest.raises(BadBatch, match="buffer 'lens' is written in place and holds 4 request rows, not 5"):
        eager_inputs(arena, 5, batch(5, 10))
    assert before == contents(arena)


def test_host_tensors_are_copied_to_the_device(field, arena_of, fake_backend):
    """Only what is not on the device is copied, to memory that the backend gave."""
    device, host, there = fake_backend(), torch.arange(3), torch.arange(3)
    device.hosts.add(host.data_ptr())
    arena = arena_of(field("host"), field("there"), backend=device)
    inputs, _ = eager_inputs(arena, 3, {"host": host, "there": there})
    assert inputs["there"] is there
    assert inputs["host"] is not host
    assert [0, 1, 2] == inputs["host"].tolist()


def test_tokens_may_be_any_number_where_none_is_asked(arena):
    """A prefill has tokens of its own number; every source per token must have as many."""
    assert 11 == eager_inputs(arena, 2, batch(2, 11))[1]
    assert 4 == eager_inputs(arena, 2, batch(2, 4), tokens=4)[1]
    with pytest.raises(BadBatch, match="buffer 'ids': expected 4 token rows, got 11"):
        eager_inputs(arena, 2, batch(2, 11), tokens=4)


def test_sources_per_token_agree_on_their_number(field, arena_of):
    """Two sources per token of different lengths are refused, naming the second."""
    arena = arena_of(field("ids", per="token"), field("positions", per="token"))
    sources = {"ids": torch.arange(7), "positions": torch.arange(6)}
    with pytest.raises(BadBatch, match="buffer 'positions': expected 7 token rows, got 6"):
        eager_inputs(arena, 2, sources)


def test_tokens_without_a_source_are_those_of_a_decode_step(field, arena_of):
    """Where only the engine writes tokens, there are tokens-per-request for each row; where nobody does, one."""
    in_place = arena_of(field("ids", per="token", rows_per_request=2, source="engine"))
    inputs, tokens = eager_inputs(in_place, 3, {})
    assert (6, 6) == (tokens, len(inputs["ids"]))
    assert 3 == eager_inputs(arena_of(field("ids")), 3, {"ids": torch.arange(3)})[1]


def test_an_idle_eager_step_needs_no_sources(arena):
    """No rows: every buffer has its trailing shape and no entries."""
    inputs, tokens = eager_inputs(arena, 0, {})
    assert 0 == tokens
    assert ((0,), (0, 3), (0, 2), (0,)) == tuple(
        tuple(t.shape) for t in (inputs["ids"], inputs["table"], inputs["groups"]["full"], inputs["draft"])
    )


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"pool": torch.zeros(3).long()}, "buffer 'pool': expected 2 request rows, got 3"),
        ({"pool": None}, "buffer 'pool' was not supplied"),
        ({"tabel": 1}, "there is no buffer 'tabel'"),
        ({"lens": torch.zeros(2).long()}, "buffer 'lens' is written in place by the engine"),
        ({"groups": {"full": torch.zeros(2, 2).long()}}, "buffer 'groups': group 'window' was not supplied"),
        ({"table": torch.zeros(2, 3)}, "buffer 'table': expected torch.int64, got torch.float32"),
        ({"table": torch.zeros(2, 2, 3).long()}, "buffer 'table': expected shape (2, 3), got (2, 2, 3)"),
    ],
)
def test_wrong_sources_are_refused_as_by_a_slot(arena, sources, message):
    """The same checks and words as on the way into a slot."""
    with pytest.raises(BadBatch) as error:
        eager_inputs(arena, 2, {**batch(2, 4), **sources})
    assert message in str(error.value)
