"""Verification, and a draft model that follows what was accepted; pad rows stay numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tsgraph.keys import Batch, Mode
from tsgraph.reference.cache import DUMMY_SLOT, PagedCache
from tsgraph.reference.model import Decoder, DecoderConfig
from tsgraph.reference.speculation import Draft, Read, slots_at, verify

PAGE, T = 8, 4
SMALL = DecoderConfig(vocabulary=50, width=32, layers=3, heads=4, kv_heads=2, head_dim=8, hidden=40)
TEXT = [7, 3, 44, 20, 9, 31, 2, 18, 5, 27, 40, 11, 13]


def draft() -> Draft:
    """A draft of two layers over three pages, the first the dummy."""
    cache = PagedCache.empty(pages=4, layers=2, page_size=PAGE, kv_heads=2, head_dim=8)
    return Draft(Decoder(SMALL, seed=2).shortened((0, 2)), cache, T - 1)


def batch(mode: Mode, starts: list[int], tokens: list[list[int]], lengths: list[int], tables: list[list[int]]) -> Batch:
    """Greedy rows that read `tokens` from `starts` on; rows of page 0 are pads."""
    spans = [range(start, start + len(each)) for start, each in zip(starts, tokens, strict=True)]
    slots = [table[p // PAGE] * PAGE + p % PAGE for table, span in zip(tables, spans, strict=True) for p in span]
    rows = len(starts)
    buffers = {
        "input_ids": torch.tensor([token for each in tokens for token in each]),
        "positions": torch.tensor([p for span in spans for p in span]),
        "cache_locations": torch.tensor(slots),
        "draft_seq_lens": torch.tensor(lengths, dtype=torch.int32),
        "page_table": torch.tensor(tables, dtype=torch.int32),
        "temperature": torch.zeros(rows),
        "top_k": torch.zeros(rows, dtype=torch.int32),
        "top_p": torch.ones(rows),
        "seed": torch.zeros(rows, dtype=torch.int64),
    }
    return Batch(rows, sum(map(len, tokens)), mode, "greedy", buffers)


def propose(it: Draft, given: Batch, drawn: list[list[int]], gained: list[int]) -> Tensor:
    """The next drafts."""
    with torch.inference_mode():
        return it.propose(given, Read.of(given), torch.tensor(drawn), torch.tensor(gained))


def continued(text: list[int]) -> list[int]:
    """What the draft model makes of `text`, one whole prefill for each token."""
    text = list(text)
    for _ in range(T - 1):
        given = batch(Mode.EXTEND, [0], [text], [len(text)], [[1, 2]])
        fresh = draft()
        tokens, positions, slots, tables = (
            given[name] for name in ("input_ids", "positions", "cache_locations", "page_table")
        )
        logits = fresh.model(tokens, positions, slots, given.draft_seq_lens, tables, fresh.cache)
        text.append(int(logits.argmax()))
    return text[1 - T :]


# -- verification -----------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 2), min_size=8, max_size=8), min_size=1, max_size=5))
def test_a_row_gains_its_right_drafts_and_one_draw_more(rows: list[list[int]]):
    """Drafts count until the first that the target did not draw in its place; the draw after them is the target's."""
    read, drawn = [row[:4] for row in rows], [row[4:] for row in rows]
    expected = []
    for tokens, draws in zip(read, drawn, strict=True):
        gained = 1
        while gained < 4 and tokens[gained] == draws[gained - 1]:
            gained += 1
        expected.append(gained)
    assert expected == verify(torch.tensor(read), torch.tensor(drawn)).tolist()


def test_slots_follow_the_table():
    """A position lies in its row's page for it; beyond the table, in the dummy slot."""
    tables = torch.tensor([[3, 1], [2, 0], [3, 1]])
    assert [3 * PAGE + 5, 0 * PAGE, DUMMY_SLOT] == slots_at(torch.tensor([5, 8, 16]), tables, PAGE).tolist()


# -- drafts -----------------------------------------------------------------------------------------------------------


def test_a_prompt_is_followed_by_drafts():
    """After a prompt and the target's first token the drafts are what the draft model alone would write."""
    text, first = TEXT[:6], 33
    given = batch(Mode.EXTEND, [0], [text], [6], [[1, 2]])
    assert continued([*text, first]) == propose(draft(), given, [[first]], [1])[0].tolist()


@pytest.mark.parametrize("gained", [1, 2, 3, 4])
def test_drafts_go_on_after_what_was_accepted(gained: int):
    """However many of a step's draws were accepted, the next drafts follow the text with them, and only them."""
    it, text, drawn = draft(), TEXT[:6], [15, 16, 17, 18]
    propose(it, batch(Mode.EXTEND, [0], [text], [6], [[1, 2]]), [[drawn[0]]], [1])
    read = [*drawn[: gained - 1], *[49] * (T - gained)]  # right drafts, then wrong ones
    given = batch(Mode.DECODE, [5], [[text[-1], *read]], [5 + T], [[1, 2]])
    assert continued([*text, *drawn[:gained]]) == propose(it, given, [drawn], [gained])[0].tolist()


def test_lengths_end_at_the_last_draft():
    """The drafter moves its own lengths past what was gained and drafted."""
    given = batch(Mode.DECODE, [5], [TEXT[5:9]], [5 + T], [[1, 2]])
    propose(draft(), given, [[1, 2, 3, 4]], [2])
    assert [5 + 1 + 2 + T - 1] == given.draft_seq_lens.tolist()


@pytest.mark.parametrize("gained", [1, 4])
def test_pad_rows_stay_numbers(gained: int):
    """A pad row has length 1 and several tokens: what it writes to the dummy page is finite all the same.

    Live rows read the dummy page behind their mask, where a weight of 0 makes a number of anything but NaN.
    """
    it = draft()
    given = batch(Mode.DECODE, [5, 0], [TEXT[5:9], [1] * T], [5 + T, 1], [[1, 2], [0, 0]])
    given.buffers["positions"][T:] = 0  # type: ignore[index]
    given.buffers["cache_locations"][T:] = DUMMY_SLOT  # type: ignore[index]
    alone = batch(Mode.DECODE, [5], [TEXT[5:9]], [5 + T], [[1, 2]])
    expected = propose(draft(), alone, [[1, 2, 3, 4]], [2])
    assert torch.equal(expected, propose(it, given, [[1, 2, 3, 4]] * 2, [2, gained])[:1])
    assert torch.isfinite(it.cache.keys).all()
    assert torch.isfinite(it.cache.values).all()


def test_a_draft_model_is_made_of_the_targets_layers():
    """The draft has the target's own weights, and only those layers it was given."""
    target = Decoder(SMALL, seed=2)
    short = target.shortened((0, 2))
    assert [target.blocks[0], target.blocks[2]] == list(short.blocks)
    assert short.embedding is target.embedding
    assert {id(each) for each in short.parameters()} < {id(each) for each in target.parameters()}
