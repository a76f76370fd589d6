"""Whatever comes, goes and fails: each token is accepted once, by its own matcher, and every row sees its own mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.grammar.service import OPERATIONS, Program, Service, run
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.errors import RuleViolation
from tsgraph.grammar.bitmask import ALL
from tsgraph.grammar.entry import Entry
from tsgraph.grammar.masks import Masks
from tsgraph.grammar.tickets import TicketQueue

OFTEN = ("step",) * 5 + ("arrive",) * 2
NUMBERS = st.integers(0, 98)
BEGINNING = st.lists(st.tuples(st.just("arrive"), NUMBERS), min_size=2, max_size=4)
THEN = st.lists(st.tuples(st.sampled_from((*OPERATIONS, *OFTEN)), NUMBERS), min_size=2, max_size=12)
PROGRAMS = st.builds(lambda first, then: [*first, *then], BEGINNING, THEN)


@pytest.mark.parametrize("kind", ["capturable", "eager"])
@pytest.mark.parametrize("draws", [1, 3])
@given(program=PROGRAMS)
@settings(max_examples=6, suppress_health_check=list(HealthCheck), deadline=None)
def test_every_token_is_accepted_once_and_every_row_sees_its_own_mask(kind: str, draws: int, program: Program):
    """Through arrivals, ends, aborts, retractions, failures before a forward, captures and eager steps at any time."""
    assert [] == run(Service(EmulatedBackend(), draws=draws, kind=kind), program)


COURSE = [
    *[("arrive", seed) for seed in (1, 3, 5)], *[("step", 0)] * 3, ("retract", 0), ("arrive", 8), ("step", 0),
    ("settle", 0), ("step", 0), ("come_back", 0), ("fail", 0), ("step", 0), ("recapture", 1), ("step", 0),
    ("fail_capture", 0), ("step", 0), ("recapture", 0), ("abort", 1), ("switch", 0), ("step", 0), ("switch", 0),
    ("step", 0), ("abort", 0), ("abort", 0), ("abort", 0), ("step", 0), ("arrive", 2), ("step", 0),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["capturable", "eager"])
@pytest.mark.parametrize("draws", [1, 3])
def test_a_course_with_everything_in_it(backend: Any, kind: str, draws: int):
    """In real graphs, too."""
    assert [] == run(Service(backend, draws=draws, kind=kind), COURSE)


# -- planted faults ---------------------------------------------------------------------------------------------------

Fault = Callable[[pytest.MonkeyPatch], None]


def mask_row_offset(patch: pytest.MonkeyPatch) -> None:
    """Each row's mask goes to the row below it."""
    walk = Masks._walk

    def off(masks: Masks, matcher: Any, row: int, draws: int) -> None:
        walk(masks, matcher, (row + 1) % (len(masks.words) // draws), draws)

    patch.setattr(Masks, "_walk", off)


def stale_free_rows(patch: pytest.MonkeyPatch) -> None:
    """Free rows keep what the row before them in time had."""
    fill = Masks._fill

    def stale(masks: Masks, rows: int, draws: int) -> Any:
        before = masks.words.copy()
        errors = fill(masks, rows, draws)
        for row, matcher in enumerate(masks.current.matchers if masks.current else ()):
            if matcher is None:
                masks.words[row * draws : (row + 1) * draws] = before[row * draws : (row + 1) * draws]
        return errors

    patch.setattr(Masks, "_fill", stale)


def double_advance(patch: pytest.MonkeyPatch) -> None:
    """Build and host both accept what was drawn."""
    advance = Masks._advance

    def again(masks: Masks, entry: Entry | None) -> Any:
        if entry is not None and entry.outcome == "advanced":
            entry.outcome = "pending"
        return advance(masks, entry)

    patch.setattr(Masks, "_advance", again)


def no_advance(patch: pytest.MonkeyPatch) -> None:
    """Nobody accepts what was drawn."""
    patch.setattr(Masks, "_advance", lambda masks, entry: [])


def no_rollback(patch: pytest.MonkeyPatch) -> None:
    """Drafts stay accepted."""
    patch.setattr("tests.grammar.service.NotedMatcher.rollback", lambda matcher, count: None)


def reset_drops_live(patch: pytest.MonkeyPatch) -> None:
    """A capture while requests run forgets what they drew last."""

    def forget(masks: Masks) -> None:
        masks.previous = masks.current = None

    patch.setattr(Masks, "reset", forget)


def no_drain(patch: pytest.MonkeyPatch) -> None:
    """Entries that are to be taken back stay in the queue."""
    patch.setattr(TicketQueue, "cancel", lambda queue, ticket: False)


def swallowed_underflow(patch: pytest.MonkeyPatch) -> None:
    """A forward without an entry goes on with the one before, and an abandoned entry is consumed for nothing."""
    fetch = Masks.fetch

    def swallow(masks: Masks, rows: int, draws: int) -> None:
        if len(masks.queue) > 0 and masks.queue.pushed % 5 == 0:
            masks.queue.consume()  # somebody took an entry that was not theirs
        try:
            fetch(masks, rows, draws)
        except RuleViolation:
            masks._unfilled = False

    patch.setattr(Masks, "fetch", swallow)


def double_push(patch: pytest.MonkeyPatch) -> None:
    """Of each third push there are two."""
    push = TicketQueue.push

    def twice(queue: TicketQueue, entry: Any = None, **words: Any) -> Any:
        if queue.pushed % 3 == 0:
            push(queue, Entry(0), who="a second push")
        return push(queue, entry, **words)

    patch.setattr(TicketQueue, "push", twice)


FAULTS = (
    mask_row_offset, stale_free_rows, double_advance, no_advance, no_rollback, reset_drops_live, no_drain,
    swallowed_underflow, double_push,
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault: Fault):
    """The course, and with it the property, is not idle: it shows each of these faults."""
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        assert run(Service(EmulatedBackend(), draws=3), COURSE)


def test_what_is_free_is_all_ones(backend: Any):
    """Rows without a grammar, pads among them, are -1 after a row there had a mask (fault I3)."""
    service = Service(backend)
    mask = service.grammar.bind(service.runtime.slots["default", 4].batch)
    run(service, [("arrive", seed) for seed in (1, 2, 5)])
    assert [ALL] != mask.unique().tolist()
    for _ in range(3):
        service.abort(0)
    run(service, [("arrive", seed) for seed in (3, 6, 9)])
    assert ([3, 6, 9], [ALL]) == ([request.seed for request in service.running], mask.unique().tolist())
