"""`check_grammar`: whether a grammar queue keeps its protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from tsgraph.protocols.collaborators import Grammar
from tsgraph.testing.conformance.ground import Ground
from tsgraph.testing.conformance.promises import Promises
from tsgraph.testing.conformance.readings import copy_of, difference, places_of


@attrs.frozen(eq=False)
class GrammarTrial:
    """One grammar queue on its ground. `fresh` makes further ones alike."""

    fresh: Callable[[], Grammar]
    ground: Ground
    waiting: Callable[[Any], Sequence[Any]]
    consume: Callable[[Any], object]
    current: Callable[[Any], Any]
    part: Grammar = attrs.field(init=False)

    @part.default
    def _make(self) -> Grammar:
        return self.fresh()

    def entries(self) -> list[Any]:
        """The entries that wait, oldest first."""
        return list(self.waiting(self.part))

    def mask(self, rows: int) -> list[Any]:
        """Where the mask for `rows` rows lies; empty for none."""
        return places_of(self.part.bind(self.ground.batch(rows)))


GRAMMAR: Promises[GrammarTrial] = Promises(Grammar)


def check_grammar(
    factory: Callable[[], Grammar],
    *,
    ground: Ground,
    waiting: Callable[[Any], Sequence[Any]],
    consume: Callable[[Any], object],
    current: Callable[[Any], Any],
) -> None:
    """Check every promise of `Grammar` on what `factory` makes, anew for each.

    `waiting(grammar)`: the entries that no forward has consumed, oldest first. `consume(grammar)` does to the queue
    what one forward does. `current(grammar)`: what it remembers of the entries that were consumed last, any nesting of
    tensors and values that compare; `()` where it remembers nothing.

    Raises: Nonconformance that lists all promises broken.
    """
    GRAMMAR.check(lambda: GrammarTrial(factory, ground, waiting, consume, current))


@GRAMMAR.promise("push", "one entry more at each call, the newest last")
def push_adds_one(trial: GrammarTrial) -> str | None:
    """For every size (R22)."""
    for rows in trial.ground.sizes:
        before = trial.entries()
        trial.part.push(rows)
        now = trial.entries()
        if len(now) != len(before) + 1 or now[:-1] != before:
            return f"{now} after {before}"
    return None


@GRAMMAR.promise("push", "entries that forwards consume in the order of their pushes")
def push_is_first_in_first_out(trial: GrammarTrial) -> str | None:
    """The oldest goes first."""
    for rows in trial.ground.sizes:
        trial.part.push(rows)
    while left := trial.entries():
        trial.consume(trial.part)
        if trial.entries() != left[1:]:
            return f"{trial.entries()} left of {left}"
    return None


@GRAMMAR.promise("push", "with ahead, an entry that is consumed before all that wait")
def push_goes_ahead(trial: GrammarTrial) -> str | None:
    """A slot is captured while an engine's entry waits: that one is left for the engine's forward."""
    trial.part.push(1)
    before = trial.entries()
    trial.part.push(1, who="a slot", ahead=True)
    now = trial.entries()
    return None if len(now) == len(before) + 1 and now[1:] == before else f"{now} after {before}"


@GRAMMAR.promise("claim", "no cancelling afterwards of an entry whose forward was launched")
def claim_outlasts_cancel(trial: GrammarTrial) -> str | None:
    """Its graph is about to take it; where the graph is faster than the claim, another entry is not hit."""
    ticket, _ = trial.part.push(1), trial.part.push(1)
    trial.part.claim(ticket)
    before = trial.entries()
    for again in (trial.part.cancel, trial.part.abandon, trial.part.claim):
        again(ticket)
        if trial.entries() != before:
            return f"{trial.entries()} left of {before}"
    return None


@GRAMMAR.promise("abandon", "the entry of its ticket taken back where no forward has consumed it, and no other")
def abandon_takes_its_own(trial: GrammarTrial) -> str | None:
    """As a cancel does; a consumed ticket hits no other entry."""
    tickets = [trial.part.push(1) for _ in range(3)]
    trial.consume(trial.part)
    left = trial.entries()
    for ticket in tickets[:2]:
        trial.part.abandon(ticket)
    return None if trial.entries() == left[1:] else f"{trial.entries()} left of {left}"


@GRAMMAR.promise("cancel", "the entry of its ticket taken back, and no other")
def cancel_takes_its_own(trial: GrammarTrial) -> str | None:
    """Whichever of three it is."""
    for chosen in range(3):
        tickets = [trial.part.push(rows) for rows in (1, 1, 1)]
        left = [entry for index, entry in enumerate(trial.entries()) if index != chosen]
        trial.part.cancel(tickets[chosen])
        if trial.entries() != left:
            return f"{trial.entries()} instead of {left}"
        for ticket in tickets:
            trial.part.cancel(ticket)
    return None


@GRAMMAR.promise("cancel", "a consumed ticket ignored")
def cancel_ignores_consumed(trial: GrammarTrial) -> str | None:
    """Also while a later entry waits, which it must not hit."""
    ticket = trial.part.push(1)
    trial.consume(trial.part)
    return _ignored(trial, ticket)


@GRAMMAR.promise("cancel", "a ticket that was cancelled before ignored")
def cancel_ignores_cancelled(trial: GrammarTrial) -> str | None:
    """Twice is once."""
    ticket = trial.part.push(1)
    trial.part.cancel(ticket)
    return _ignored(trial, ticket)


@GRAMMAR.promise("cancel", "an unknown ticket ignored")
def cancel_ignores_unknown(trial: GrammarTrial) -> str | None:
    """One of another queue, None, and what no queue ever gave."""
    stranger = trial.fresh()
    foreign = [stranger.push(1) for _ in range(5)][-1]
    return next((told for ticket in (foreign, None, object()) if (told := _ignored(trial, ticket))), None)


def _ignored(trial: GrammarTrial, ticket: Any) -> str | None:
    kept = trial.part.push(1)
    before = trial.entries()
    trial.part.cancel(ticket)
    now = trial.entries()
    trial.part.cancel(kept)
    return None if now == before else f"{now} left of {before}"


@GRAMMAR.promise("bind", "the same mask memory at every bind for a size")
def bind_repeats_the_mask(trial: GrammarTrial) -> str | None:
    """Also after other sizes, forwards and a reset: replays refill what was recorded (R18)."""
    before = {rows: trial.mask(rows) for rows in trial.ground.sizes}
    for rows in reversed(trial.ground.sizes):
        if trial.mask(rows) != before[rows]:
            return f"another mask for {rows} rows, after other sizes"
        trial.part.push(rows)
        trial.consume(trial.part)
        trial.part.reset()
        if trial.mask(rows) != before[rows]:
            return f"another mask for {rows} rows, after a forward and a reset"
    return None


@GRAMMAR.promise("bind", "no entry pushed or consumed")
def bind_leaves_the_queue(trial: GrammarTrial) -> str | None:
    """Entries are the forwards' alone."""
    trial.part.push(1)
    before = trial.entries()
    trial.mask(trial.ground.sizes[0])
    return None if trial.entries() == before else f"{trial.entries()} after {before}"


@GRAMMAR.promise("reset", "nothing remembered of the entries that were consumed")
def reset_forgets(trial: GrammarTrial) -> str | None:
    """After two forwards, previous and current entry are those of a new queue (R23)."""
    for _ in range(2):
        trial.part.push(1)
        trial.consume(trial.part)
    trial.part.reset()
    return difference(copy_of(trial.current(trial.fresh())), copy_of(trial.current(trial.part)))


@GRAMMAR.promise("reset", "entries that wait left in the queue")
def reset_keeps_waiting(trial: GrammarTrial) -> str | None:
    """They belong to forwards still to come; who pushed them cancels them."""
    trial.part.push(1)
    before = trial.entries()
    trial.part.reset()
    return None if trial.entries() == before else f"{trial.entries()} left of {before}"
