"""Entries as tickets: each is claimed, consumed or cancelled, once, and whatever is out of balance says who pushed."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.errors import RuleViolation
from tsgraph.grammar.tickets import SHOWN, TicketQueue, listed, require_claimed


@pytest.fixture
def queue():
    """An empty queue."""
    return TicketQueue()


def test_entries_are_consumed_in_the_order_of_their_pushes(queue):
    """First in, first out; each ticket hands over what was pushed with it."""
    pushed = [queue.push(entry, who="the engine") for entry in "abc"]
    taken = [queue.consume() for _ in range(3)]
    assert (pushed, ["a", "b", "c"]) == (taken, [ticket.entry for ticket in taken])
    assert {"consumed"} == {ticket.state for ticket in taken}


def test_a_slots_entry_goes_ahead_of_those_that_wait_and_not_of_claimed_ones(queue):
    """What a forward under way will consume stays first; the engine's waiting entry comes after the slot's."""
    under_way = queue.push(who="the engine")
    queue.claim()
    live, own = queue.push(who="the engine"), queue.push(who="slot default/4", ahead=True)
    assert [under_way, own, live] == [queue.consume() for _ in range(3)]


@pytest.mark.parametrize("take", [TicketQueue.claim, TicketQueue.consume])
def test_an_underflow_raises_and_says_who_pushed_last(queue, take):
    """R24: nothing is taken, and the message names the pusher of the entry that was consumed last."""
    with pytest.raises(RuleViolation, match="nothing was ever consumed"):
        take(queue)
    queue.push(who="engine.py:12")
    queue.consume()
    with pytest.raises(RuleViolation, match=r"entry 1, pushed by engine.py:12 \(consumed\)") as caught:
        take(queue)
    assert ("R24", 1, 1) == (caught.value.rule, queue.pushed, queue.consumed)


def test_only_a_waiting_ticket_can_be_cancelled(queue):
    """A claimed, consumed, cancelled or strange one is left as it is (R25), and so is every other entry."""
    tickets = [queue.push(who="the engine") for _ in range(4)]
    queue.consume()
    queue.claim()
    assert [False, False, True, False] == [queue.cancel(tickets[n]) for n in (0, 1, 2, 2)]
    assert [False, False] == [queue.cancel(strange) for strange in (None, TicketQueue().push(who="nobody"))]
    assert (["consumed", "claimed", "cancelled", "waiting"], (tickets[3],)) == (
        [ticket.state for ticket in tickets], queue.waiting,
    )  # fmt: skip


def test_a_replays_claim_may_come_before_its_host_function_or_after(queue):
    """Before: the entry can no longer be cancelled, and is consumed in turn. After: there is nothing left to claim."""
    early, late = queue.push(who="the engine"), queue.push(who="the engine")
    queue.claim_for(early)
    assert (False, early, late) == (queue.cancel(early), queue.consume(), queue.consume())
    queue.claim_for(late)
    assert ("consumed", 0) == (late.state, len(queue))


def test_a_forward_that_leaves_its_entry_is_told_at_once(queue):
    """R25: a step that does not fork leaves its entry to the next forward."""
    ticket = queue.push(who="slot default/4")
    with pytest.raises(RuleViolation, match="left entry 1, pushed by slot default/4") as caught:
        require_claimed(ticket)
    queue.claim()
    require_claimed(ticket)
    require_claimed(object())
    assert "R25" == caught.value.rule


def test_errors_list_the_first_few(queue):
    """Long queues are cut."""
    tickets = tuple(queue.push(who=f"w{n}") for n in range(SHOWN + 2))
    assert "nobody has an entry in it" == str(TicketQueue())
    assert str(queue) == listed(tickets)
    assert (SHOWN, True) == (str(queue).count("pushed by"), str(queue).endswith("and 2 more"))


@given(st.lists(st.sampled_from(["push", "ahead", "claim", "consume", "cancel", "claim_for"]), max_size=30))
def test_it_balances_whatever_is_done(deeds):
    """Pushes are pops, cancelled entries and those that are left; no ticket is taken twice."""
    queue, tickets, taken = TicketQueue(), [], []
    for number, deed in enumerate(deeds):
        try:
            if deed in ("push", "ahead"):
                tickets.append(queue.push(who="x", ahead=deed == "ahead"))
            elif deed in ("cancel", "claim_for") and tickets:
                getattr(queue, deed)(tickets[number % len(tickets)])
            elif deed in ("claim", "consume"):
                ticket = getattr(queue, deed)()
                taken += [ticket] if deed == "consume" else []
        except RuleViolation:
            assert () == queue.waiting
    assert queue.pushed == queue.consumed + queue.cancelled + len(queue)
    assert len(taken) == len(set(map(id, taken))) == queue.consumed


def test_many_threads_take_each_entry_once(queue):
    """Host functions run in a thread of their own, beside the engine's pushes."""
    taken = []

    def consume():
        while len(taken) < 500:
            try:
                taken.append(queue.consume())
            except RuleViolation:
                continue

    worker = threading.Thread(target=consume)
    worker.start()
    pushed = [queue.push(who="the engine") for _ in range(500)]
    worker.join(timeout=60)
    assert pushed == taken
