"""The host's part alone: whose tokens are accepted when, and what happens to a step that fails."""

from __future__ import annotations

import threading
from typing import Any

import attrs
import numpy as np
import pytest

from tsgraph.errors import BadBatch, ContractViolation, RuleViolation
from tsgraph.grammar.bitmask import ALL, only
from tsgraph.grammar.entry import Entry
from tsgraph.grammar.masks import NO_TOKEN, Masks

ROWS, DRAWS, VOCABULARY = 3, 3, 64
CLOSED = only([63], VOCABULARY)


@attrs.define(eq=False)
class Scripted:
    """A matcher of one text, token by token. `breaks` raises at the token or the fill of that name."""

    text: tuple[int, ...]
    at: int = 0
    breaks: Any = None

    @property
    def terminated(self) -> bool:
        return self.at == len(self.text)

    def fill(self, words: Any) -> None:
        if self.breaks == "fill":
            raise ValueError("planted in fill")
        words[:] = only([self.text[self.at]], VOCABULARY)

    def accept(self, token: int) -> bool:
        if self.breaks == token:
            raise ValueError("planted in accept")
        accepted = not self.terminated and token == self.text[self.at]
        self.at += accepted
        return accepted

    def rollback(self, count: int) -> None:
        self.at -= count


@pytest.fixture
def masks() -> Masks:
    """Room for three rows of three draws, full of garbage."""
    return Masks(
        words=np.full((ROWS * DRAWS, 2), 7, dtype=np.int32),
        drafts=np.zeros(ROWS * (DRAWS - 1), dtype=np.int64),
        tokens=np.full(ROWS * DRAWS, 9, dtype=np.int64),
        gains=np.full(ROWS, 1, dtype=np.int64),
        closed=CLOSED,
    )


def forward(masks: Masks, *matchers: Any, rows: int = ROWS, draws: int = 1, **words: Any) -> Any:
    """Push, fetch and build."""
    ticket = masks.queue.push(Entry.of(len(matchers), matchers, **words), who="a test")
    masks.fetch(rows, draws)
    masks.build(rows, draws)
    return ticket


def row(*tokens: int) -> list[int]:
    """The mask that allows `tokens` alone."""
    words: list[int] = only(tokens, VOCABULARY).tolist()
    return words


def test_a_step_is_accepted_in_the_next(masks: Masks):
    """Not before: the build of the next forward accepts, then fills."""
    matcher = Scripted((5, 6, 7))
    forward(masks, None, matcher)
    assert [[ALL, ALL], row(5), [ALL, ALL]] == masks.words[:3].tolist()
    masks.tokens[:2] = (1, 5)
    assert 0 == matcher.at
    forward(masks, matcher)
    assert (1, row(6)) == (matcher.at, masks.words[0].tolist())


def test_a_chain_of_drafts_is_walked_and_taken_back(masks: Masks):
    """One mask a draw; after a draft that is refused, or the end, all is allowed; the state is as before."""
    whole, refused, ends = Scripted((5, 6, 7, 8)), Scripted((5, 6, 7)), Scripted((5, 6))
    masks.drafts[:] = (5, 6, 5, 9, 5, 6)
    forward(masks, whole, refused, ends, draws=3)
    expected = [row(5), row(6), row(7), row(5), row(6), [ALL, ALL], row(5), row(6), [ALL, ALL]]
    assert (expected, [0, 0, 0]) == (masks.words.tolist(), [whole.at, refused.at, ends.at])


def test_of_several_draws_those_gained_are_accepted(masks: Masks):
    """As many as each row gains, and none after the end."""
    long, short = Scripted((5, 6, 7)), Scripted((5, 6))
    forward(masks, long, short, draws=3)
    masks.tokens[:6], masks.gains[:2] = (5, 6, 9, 5, 6, 9), (2, 3)
    forward(masks)
    assert (2, True) == (long.at, short.terminated)


def test_a_chunk_of_a_prompt_does_not_advance(masks: Masks):
    """What such a row draws is nobody's token; the others' are accepted."""
    chunk, other = Scripted((5, 6)), Scripted((5, 6))
    forward(masks, chunk, other, advances=[False, True])
    masks.tokens[:2] = (5, 5)
    forward(masks, chunk, other)
    assert (0, 1) == (chunk.at, other.at)


def test_a_terminated_row_is_left_alone(masks: Masks):
    """Its mask allows all, nothing is accepted, nothing raises (fault I5)."""
    matcher = Scripted((5,))
    forward(masks, matcher)
    masks.tokens[0] = 5
    for _ in range(3):
        forward(masks, matcher)
        masks.tokens[0] = 9
    assert [ALL, ALL] == masks.words[0].tolist()


def test_host_and_build_never_both_accept(masks: Masks):
    """Whoever is first does it; also where both come at once, from two threads (fault I4)."""
    matcher = Scripted((5,) * 50)
    for step in range(40):
        ticket = forward(masks, matcher)
        masks.tokens[0] = 5
        masks.queue.push(Entry.of(1, [matcher]), who="a test")
        masks.fetch(1, 1)
        told: list[bool] = []
        host = threading.Thread(target=lambda told=told, ticket=ticket: told.append(masks.settle(ticket)))
        host.start()
        masks.build(1, 1)
        host.join()
        assert 2 * step + 1 == matcher.at
        masks.tokens[0] = 5
        matcher.text += (5,)


def test_the_host_may_be_first(masks: Masks):
    """It says so, once; a forward that has not begun cannot be settled."""
    matcher = Scripted((5, 6))
    ticket = forward(masks, matcher)
    masks.tokens[0] = 5
    assert [True, False] == [masks.settle(ticket), masks.settle(ticket)]
    waiting = masks.queue.push(Entry.of(1), who="a test")
    with pytest.raises(BadBatch, match="is not done"):
        masks.settle(waiting)


def test_what_the_host_finds_wrong_it_raises(masks: Masks):
    """As the build would have."""
    ticket = forward(masks, Scripted((5, 6)))
    masks.tokens[0] = 6
    with pytest.raises(ContractViolation, match="one that its grammar allows, got 6"):
        masks.settle(ticket)


def test_a_forward_that_repeats_finds_the_same_masks(masks: Masks):
    """Nothing is accepted twice, and the one after goes on from the one before."""
    matcher = Scripted((5, 6))
    forward(masks, matcher)
    masks.tokens[0] = 5
    masks.queue.push(Entry(1, repeats=True), who="a test")
    masks.fetch(2, 1)
    masks.build(2, 1)
    assert (row(5), 0) == (masks.words[0].tolist(), matcher.at)
    forward(masks, matcher)
    assert 1 == matcher.at


# -- failures ---------------------------------------------------------------------------------------------------------


def test_without_an_entry_the_step_is_closed_and_the_one_before_is_accepted(masks: Masks):
    """An underflow is an error (R24); what was drawn before it is not lost, what is drawn in it counts for nothing."""
    matcher = Scripted((5, 6))
    forward(masks, matcher)
    masks.tokens[0] = 5
    with pytest.raises(RuleViolation, match="runs without its entry"):
        masks.fetch(2, 1)
    masks.close(2, 1)
    masks.build(2, 1)
    assert (1, [CLOSED.tolist()] * 2) == (matcher.at, masks.words[:2].tolist())
    masks.tokens[0] = 63
    forward(masks, matcher)
    assert (1, row(6)) == (matcher.at, masks.words[0].tolist())


def test_an_entry_for_more_rows_than_the_forward_is_refused(masks: Masks):
    """Two sources of truth for the rows would put masks to the wrong rows (fault I2)."""
    masks.queue.push(Entry.of(3), who="a test")
    with pytest.raises(BadBatch, match="3 rows for a forward of 2"):
        masks.fetch(2, 1)


def test_a_fill_that_fails_closes_the_step(masks: Masks):
    """Every row of it, and nothing of it is accepted; the next step goes on where this one began."""
    broken, other = Scripted((5, 6), breaks="fill"), Scripted((5, 6))
    masks.queue.push(Entry.of(2, [broken, other]), who="a test")
    masks.fetch(3, 1)
    with pytest.raises(ValueError, match="planted in fill"):
        masks.build(3, 1)
    masks.close(3, 1)
    assert [CLOSED.tolist()] * 3 == masks.words[:3].tolist()
    masks.tokens[:3] = 63
    broken.breaks = None
    forward(masks, broken, other)
    assert (0, 0, row(5)) == (broken.at, other.at, masks.words[1].tolist())


def test_a_matcher_that_fails_keeps_no_other_from_its_token(masks: Masks):
    """The others accept theirs; its own rows stay closed from then on, since its state is nobody's; notes name all."""
    broken, refuses, other = Scripted((5, 6), breaks=5), Scripted((5, 6)), Scripted((5, 6))
    forward(masks, broken, refuses, other)
    masks.tokens[:3] = (5, 6, 5)
    with pytest.raises(ValueError, match="planted in accept") as caught:
        forward(masks, broken, refuses, other)
    masks.close(3, 1)
    assert ["also ContractViolation: step.tokens[1]: expected one that its grammar allows, got 6"] == [
        note.split("\n")[0] for note in caught.value.__notes__
    ]
    assert 1 == other.at
    forward(masks, broken, refuses, other)
    assert [CLOSED.tolist(), CLOSED.tolist(), row(6)] == masks.words[:3].tolist()


def test_a_step_that_hands_over_nothing_is_found(masks: Masks):
    """Old tokens are never taken for new ones."""
    matcher = Scripted((9, 9, 9))
    forward(masks, matcher)
    assert [NO_TOKEN] * len(masks.tokens) == masks.tokens.tolist()
    with pytest.raises(ContractViolation, match="expected a token, got none"):
        forward(masks, matcher)


@pytest.mark.parametrize("gained", [-1, 4])
def test_gains_beyond_the_draws_are_refused(masks: Masks, gained: int):
    """They would be another row's tokens."""
    forward(masks, Scripted((5, 6)), draws=3)
    masks.tokens[:3], masks.gains[0] = (5, 6, 5), gained
    with pytest.raises(ContractViolation, match=r"accept_lengths\[0\]"):
        forward(masks)


def test_what_an_abandoned_forward_drew_counts_for_nothing(masks: Masks):
    """Taken back if it waits; if it is consumed, its tokens are never accepted. What is no ticket is ignored."""
    matcher = Scripted((5, 6))
    ticket = forward(masks, matcher)
    masks.tokens[0] = 5
    masks.abandon(ticket)
    masks.abandon(None)
    waiting = masks.queue.push(Entry.of(1, [matcher]), who="a test")
    masks.abandon(waiting)
    forward(masks, matcher)
    assert (0, 1) == (matcher.at, masks.queue.cancelled)


def test_a_reset_forgets_dummies_and_keeps_requests(masks: Masks):
    """What a request drew before a capture is accepted after it (a slot's reset is no reset of the requests)."""
    forward(masks)
    masks.reset()
    assert () == masks.remembered
    matcher = Scripted((5, 6))
    forward(masks, matcher)
    masks.tokens[0] = 5
    masks.reset()
    assert 1 == len(masks.remembered)
    forward(masks, matcher)
    assert 1 == matcher.at
