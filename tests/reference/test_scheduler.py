"""Continuous batching: who is admitted, who runs, who leaves, and that nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.errors import BadBatch
from tsgraph.keys import Mode
from tsgraph.reference.cache import PageAllocator
from tsgraph.reference.scheduler import NO_ROW, Request, Sampling, Scheduler, Sequence, Work

EOS = 7
PAGE = 4
PATIENCE = 500


def scheduler(rows: int = 2, pages: int = 9, per_request: int = 8) -> Scheduler:
    """A small scheduler over pages of 4 tokens."""
    return Scheduler(PageAllocator(pages), rows=rows, page_size=PAGE, pages_per_request=per_request, eos=EOS)


def request(prompt: int = 3, max_tokens: int = 2, arrival: int = 0) -> Request:
    """A request with a prompt of so many tokens."""
    return Request(prompt=(1,) * prompt, max_tokens=max_tokens, arrival=arrival)


def run(it: Scheduler, token: int = 1) -> list[Work]:
    """Every step until all is done, each sequence getting `token` from each."""
    steps = []
    while work := it.next():
        assert it.now < PATIENCE, "it never ends"
        steps.append(work)
        for sequence in work.sequences:
            it.record(sequence, token, -1.0)
    return steps


def test_a_request_is_prefilled_then_decoded():
    """One request of three tokens takes one prompt step and two decode steps."""
    it = scheduler()
    it.submit(request(max_tokens=3))
    assert [Mode.EXTEND, Mode.DECODE, Mode.DECODE] == [work.mode for work in run(it)]


def test_prompts_go_before_decodes():
    """A waiting prompt is read first, so that the two decode together from then on."""
    it = scheduler()
    it.submit(request())
    it.submit(request())
    assert [(Mode.EXTEND, 1), (Mode.EXTEND, 1), (Mode.DECODE, 2)] == [(w.mode, len(w.sequences)) for w in run(it)]


def test_idle_until_the_first_arrival():
    """Before anybody has arrived a step is idle and runs nothing."""
    it = scheduler()
    it.submit(request(max_tokens=1, arrival=2))
    assert [Mode.IDLE, Mode.IDLE, Mode.EXTEND] == [work.mode for work in run(it)]


def test_the_end_token_ends_early():
    """An end-of-sequence token finishes a request before its budget; it is part of what was generated."""
    it = scheduler()
    sequence = it.submit(request(max_tokens=5))
    run(it, token=EOS)
    assert ("eos", [EOS]) == (sequence.status, sequence.generated)


def test_a_full_house_waits():
    """With one row the second request starts only after the first has left, in its row and pages."""
    it = scheduler(rows=1)
    it.submit(request(max_tokens=2))
    it.submit(request(max_tokens=1))
    assert [Mode.EXTEND, Mode.DECODE, Mode.EXTEND] == [work.mode for work in run(it)]


def test_pages_for_the_whole_budget_are_needed():
    """A request whose budget does not fit beside the running one waits, even though its prompt alone would fit."""
    it = scheduler(pages=4)
    it.submit(request(prompt=4, max_tokens=4))
    it.submit(request(prompt=4, max_tokens=4))
    steps = run(it)
    assert 1 == max(len(work.sequences) for work in steps)


@pytest.mark.parametrize(("pages", "per_request"), [(3, 8), (9, 2)])
def test_a_request_that_can_never_run_is_refused(pages: int, per_request: int):
    """A budget over the cache or over one page table is refused at once, with the limit in tokens."""
    it = scheduler(pages=pages, per_request=per_request)
    with pytest.raises(BadBatch, match="9 tokens needs 3 pages, one may have 2") as caught:
        it.submit(request(prompt=4, max_tokens=5))
    assert 8 == caught.value.context["limit"]
    assert it.next() is None


@pytest.mark.parametrize("wrong", [{"prompt": ()}, {"max_tokens": 0}, {"arrival": -1}, {"max_tokens": 1.5}])
def test_a_request_is_checked(wrong: dict[str, Any]):
    """A request without prompt, tokens or time is refused where it is made, by name."""
    with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
        attrs.evolve(request(), **wrong)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 2.0}, {"seed": 2**63}]
)
def test_sampling_is_checked(wrong: dict[str, Any]):
    """Sampling settings without a meaning are refused by name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)


def _drawn_requests() -> st.SearchStrategy[list[Request]]:
    lengths = st.integers(1, 12)
    drawn = st.builds(request, prompt=lengths, max_tokens=lengths, arrival=st.integers(0, 20))
    return st.lists(drawn, min_size=1, max_size=12)


def _check_step(it: Scheduler, work: Work, held: set[int]) -> None:
    """What must hold of every step, whoever came and went before."""
    rows = [sequence.row for sequence in it.running]
    assert len(rows) == len(set(rows)) <= it.rows
    assert set(rows) <= set(range(1, it.rows + 1))
    pages = [page for sequence in it.running for page in sequence.pages]
    assert len(pages) == len(set(pages)) == it.allocator.usable_pages - it.allocator.free_pages
    for sequence in work.sequences:
        assert sequence.request.arrival < it.now
        assert len(sequence.tokens) <= len(sequence.pages) * PAGE
        assert (work.mode is Mode.EXTEND) == (sequence.cached == 0)
        assert work.mode is Mode.EXTEND or 1 == len(sequence.unread)
        held.add(id(sequence))


@given(_drawn_requests(), st.integers(1, 4), st.integers(7, 20), st.integers(0, 2**32))
def test_every_request_gets_exactly_its_budget(requests: list[Request], rows: int, pages: int, coins: int):
    """Whatever arrives when, all finish within budget, no row or page has two owners, and all pages come back."""
    it = scheduler(rows=rows, pages=pages)
    sequences = [it.submit(each) for each in requests]
    ran: set[int] = set()
    while work := it.next():
        assert it.now < PATIENCE, "it never ends"
        _check_step(it, work, ran)
        for sequence in work.sequences:
            coins = coins * 6364136223846793005 + 1442695040888963407 & 2**64 - 1
            it.record(sequence, EOS if coins >> 60 == 0 else 1, -1.0)
    assert {id(sequence) for sequence in sequences} == ran
    assert all(_kept_budget(sequence) for sequence in sequences)
    assert it.allocator.usable_pages == it.allocator.free_pages
    assert all((NO_ROW, ()) == (sequence.row, sequence.pages) for sequence in sequences)


def _kept_budget(sequence: Sequence) -> bool:
    generated, most = sequence.generated, sequence.request.max_tokens
    if sequence.status == "eos":
        return generated[-1] == EOS and EOS not in generated[:-1] and len(generated) <= most
    return sequence.status == "length" and len(generated) == most and EOS not in generated


@given(_drawn_requests())
def test_first_come_first_served(requests: list[Request]):
    """Requests are admitted in the order of arrival; of those that arrive together the first submitted goes first."""
    it = scheduler(rows=2)
    sequences = [it.submit(each) for each in requests]
    admitted = [work.sequences[0] for work in run(it) if work.mode is Mode.EXTEND]
    assert sorted(sequences, key=lambda each: each.request.arrival) == admitted


# -- several tokens a step --------------------------------------------------------------------------------------------


def drafting(lookahead: int = 3, pages: int = 9) -> Scheduler:
    """A scheduler whose requests have room for some drafts."""
    words = {"rows": 2, "page_size": PAGE, "pages_per_request": 8, "eos": EOS}
    return Scheduler(PageAllocator(pages), lookahead=lookahead, **words)


def started(it: Scheduler, asked: Request) -> Sequence:
    """A request that is running."""
    sequence = it.submit(asked)
    it.next()
    return sequence


def test_a_step_may_give_several_tokens():
    """All that was gained is taken in order; the last token and the drafts are read next."""
    it = drafting()
    sequence = started(it, request(prompt=2, max_tokens=9))
    it.accept(sequence, [(4, -1.0), (5, -2.0), (6, -3.0)], [8, 9])
    assert ([4, 5, 6], [-1.0, -2.0, -3.0]) == (sequence.generated, sequence.logprobs)
    assert (4, [6, 8, 9]) == (sequence.cached, sequence.unread)


@pytest.mark.parametrize(("gained", "status"), [((4, 5, 6), "length"), ((4, EOS, 6), "eos")])
def test_what_is_gained_beyond_the_end_is_dropped(gained: tuple[int, ...], status: str):
    """A sequence ends within a step, at its budget or its end-of-sequence token, and leaves once."""
    it = drafting()
    sequence = started(it, request(max_tokens=2))
    it.accept(sequence, [(token, -1.0) for token in gained], [8])
    assert (status, list(gained[:2])) == (sequence.status, sequence.generated)
    assert it.allocator.usable_pages == it.allocator.free_pages


def test_drafts_have_pages_of_their_own():
    """A request takes pages for its budget and its drafts, and one that would have none for these is refused."""
    it = drafting()
    assert 2 == len(started(it, request(prompt=3, max_tokens=2)).pages)
    with pytest.raises(BadBatch, match="within 29 tokens") as caught:
        it.submit(request(prompt=3, max_tokens=27))
    assert 29 == caught.value.context["limit"]
