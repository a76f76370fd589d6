"""Recurrent layers against a slow recurrence in float64, and states that live rows alone own."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tsgraph.errors import BadBatch
from tsgraph.reference.cache import PagedCache
from tsgraph.reference.model import Decoder, DecoderConfig
from tsgraph.reference.recurrent import NO_SLOT, Passage, RecurrentMemory, RecurrentUpdate

HEADS, GROUP, D = 2, 3, 4
SMALL = DecoderConfig(vocabulary=50, width=32, layers=3, heads=4, kv_heads=2, head_dim=8, hidden=40, recurrent=(0, 2))


def memory(slots: int = 3, rows: int = 4, tokens: int = 4, **shape: int) -> RecurrentMemory:
    """Empty states for few requests."""
    words = {"layers": 2, "heads": HEADS, "head_dim": D, "device": "cpu"} | shape
    return RecurrentMemory.empty(slots=slots, rows=rows, tokens=tokens, **words)  # type: ignore[arg-type]


def inputs(rows: int, tokens: int, seed: int = 0) -> dict[str, Tensor]:
    """Queries, keys, values and decays of so many rows."""
    g = torch.Generator().manual_seed(seed)
    return {
        "queries": torch.randn(rows, tokens, HEADS * GROUP, D, generator=g),
        "keys": torch.randn(rows, tokens, HEADS, D, generator=g),
        "values": torch.randn(rows, tokens, HEADS, D, generator=g),
        "decay": torch.rand(rows, tokens, HEADS, generator=g),
    }


def slowly(given: dict[str, Tensor], row: int, head: int) -> list[Tensor]:
    """What one query head of one row sees after each token, by the sum that a state stands for, in float64."""
    queries, keys, values, decay = (given[name][row].double() for name in ("queries", "keys", "values", "decay"))
    shared, seen = head // GROUP, []
    for t in range(len(keys)):
        faded = [decay[s + 1 : t + 1, shared].prod() * (keys[s, shared] @ queries[t, head]) for s in range(t + 1)]
        seen.append(sum(weight * values[s, shared] for s, weight in enumerate(faded)))
    return seen  # type: ignore[return-value]


def run(memory: RecurrentMemory, slots: list[int], given: dict[str, Tensor], **words: bool) -> Tensor:
    """One layer over the rows of `slots`."""
    places = memory.locate(torch.tensor(slots, dtype=torch.int32))
    return Passage(memory, places, **({"fresh": False, "noted": False} | words)).run(1, **given)


def part(given: dict[str, Tensor], first: int, last: int) -> dict[str, Tensor]:
    """Some of the tokens."""
    return {name: value[:, first:last] for name, value in given.items()}


def test_a_state_is_the_faded_sum_of_what_came_before():
    """Each token sees itself and those before it, faded by all decays since, under grouped heads."""
    given = inputs(2, 5)
    seen = run(memory(), [2, 0], given, fresh=True)
    for row in range(2):
        for head in range(HEADS * GROUP):
            torch.testing.assert_close(torch.stack(slowly(given, row, head)).float(), seen[row, :, head])


def test_states_carry_a_row_from_step_to_step():
    """Tokens one by one, or several and then one, give what all at once give; slot 0 is a slot like any other."""
    given, once, stepwise = inputs(1, 5), memory(), memory()
    whole = run(once, [0], given, fresh=True)
    seen = [run(stepwise, [0], part(given, 0, 3), fresh=True)]
    seen += [run(stepwise, [0], part(given, t, t + 1)) for t in (3, 4)]
    torch.testing.assert_close(whole, torch.cat(seen, dim=1))
    torch.testing.assert_close(once.states, stepwise.states)


def test_a_fresh_row_forgets_whose_slot_it_was():
    """A request that begins starts from zeros, whatever the slot held."""
    given, used = inputs(1, 3), memory()
    expected = run(memory(), [1], given, fresh=True)
    used.states.fill_(9.0)
    assert torch.equal(expected, run(used, [1], given, fresh=True))


def test_pads_write_the_sink_alone():
    """Rows without a slot leave every live state as it was, slot 0 too."""
    it = memory()
    it.states[:-1] = 5.0
    run(it, [NO_SLOT, 1, NO_SLOT], inputs(3, 1))
    assert (it.states[[0, 2]] == 5).all()
    assert not (it.states[1, 1] == 5).any()
    assert it.states[it.sink, 1].any()


@pytest.mark.parametrize("accepted", [1, 2, 3, 4])
def test_an_accepted_step_leaves_the_state_after_its_last_token(accepted: int):
    """A noted step changes no state; accepted, a row has the state that so many tokens one by one would have left."""
    given, it, singly = inputs(1, 4), memory(), memory()
    first = inputs(1, 2, seed=1)
    for each in (it, singly):
        run(each, [2], first, fresh=True)
    before = it.states.clone()
    run(it, [2], given, noted=True)
    assert torch.equal(before, it.states)
    RecurrentUpdate(it).update({"state_slots": torch.tensor([2]), "accept_lengths": torch.tensor([accepted])}, 1)
    for t in range(accepted):
        run(singly, [2], part(given, t, t + 1))
    torch.testing.assert_close(singly.states[2, 1], it.states[2, 1])


def test_only_live_rows_are_updated():
    """An update takes the first `live` rows of what it is given: pad rows behind them have no slot to go to (R42)."""
    it = memory()
    it.trail[:] = 7.0
    outputs = {"state_slots": torch.tensor([1, NO_SLOT]), "accept_lengths": torch.tensor([2, 1])}
    RecurrentUpdate(it).update(outputs, 1)
    assert [False, True, False, False] == it.states.flatten(1).any(1).tolist()


def test_without_verification_there_is_nothing_to_update():
    """Where a step has one token a row, it has updated the states itself."""
    it = memory()
    it.trail[:] = 7.0
    RecurrentUpdate(it).update({"state_slots": torch.tensor([1])}, 1)
    assert not it.states.any()


# -- in a decoder -----------------------------------------------------------------------------------------------------


def decoded(tokens: list[int], steps: list[int]) -> Tensor:
    """Logits after the last token, read in steps of so many tokens."""
    model, cache = Decoder(SMALL, seed=2), PagedCache.empty(pages=3, layers=1, page_size=8, kv_heads=2, head_dim=8)
    states, start = memory(layers=2, head_dim=8), 0
    logits = torch.empty(0)
    with torch.inference_mode():
        for count in steps:
            span = torch.arange(start, start + count)
            passage = Passage(states, torch.tensor([1]), fresh=start == 0, noted=False)
            read = torch.tensor(tokens[start : start + count])
            table, length = torch.tensor([[1, 2]]), torch.tensor([start + count])
            logits = model(read, span, span + 8, length, table, cache, passage=passage)
            start += count
    return logits


def test_a_decoder_carries_its_states_through_decoding():
    """Reading a text at once, in parts, or token by token gives the same logits after it."""
    tokens = list(range(3, 13))
    at_once = decoded(tokens, [10])
    for steps in ([9, 1], [4, 1, 1, 1, 1, 1, 1]):
        torch.testing.assert_close(at_once, decoded(tokens, steps), atol=2e-5, rtol=0)


def test_recurrent_layers_see_what_came_before():
    """Another first token changes the logits at the end: a state is no decoration."""
    changed = decoded([9, *range(4, 13)], [9, 1])
    assert (decoded(list(range(3, 13)), [9, 1]) - changed).abs().max() > 1e-3


def test_only_attending_layers_take_room_in_the_cache():
    """Layers are numbered among their kind: one of three attends, so the cache has one layer."""
    assert (1, [0, 0, 1]) == (SMALL.attending, Decoder(SMALL)._numbers)


def test_a_recurrent_layer_without_states_is_refused():
    """A decoder with recurrent layers says what it lacks."""
    cache = PagedCache.empty(pages=2, layers=1, page_size=8, kv_heads=2, head_dim=8)
    one = torch.tensor([1])
    with pytest.raises(BadBatch, match="needs a passage"):
        Decoder(SMALL)(one, one, one, one, torch.tensor([[1]]), cache)


def test_recurrent_layers_must_be_layers():
    """A layer that there is not cannot be recurrent."""
    with pytest.raises(ValueError, match="only the layers 0 to 2"):
        attrs.evolve(SMALL, recurrent=(3,))


def test_shapes_follow_from_shapes_alone():
    """A noted passage runs on fake tensors, which have no values: nothing in it reads a value back or sizes by one."""
    with FakeTensorMode():
        seen = run(memory(), [0, NO_SLOT], inputs(2, 3), noted=True)
    assert (2, 3, HEADS * GROUP, D) == seen.shape
