"""Entries of a grammar queue as tickets: each is consumed by one forward, or taken back, and never both (R22 to R25).

A forward that Python runs claims its ticket when it starts (the executor's `fork`), so that nobody can take the entry
back while a host function that will consume it is still on its way. A replay's host function claims and consumes at
once. Whatever is out of balance is an error when it happens, and says who pushed.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Literal

import attrs

from tsgraph.errors import RuleViolation

State = Literal["waiting", "claimed", "consumed", "cancelled"]
SHOWN = 4
"""Tickets that an error names, the oldest first."""


@attrs.define(eq=False)
class Ticket:
    """One entry: `entry` is what its forward gets, `who` pushed it, `number` counts its queue's pushes from 1.

    `state`: waiting for its forward; claimed by one that has started; consumed; or cancelled.
    """

    number: int
    entry: Any
    who: str
    state: State = "waiting"

    def __str__(self) -> str:
        return f"entry {self.number}, pushed by {self.who} ({self.state})"


@attrs.define(eq=False)
class TicketQueue:
    """Entries, first in, first out. Any thread may use it: host functions run on one of their own.

    `pushed`, `consumed`, `cancelled`: how many there were; together with those that wait and are claimed they balance.
    `name` is for messages.
    """

    name: str = "the grammar queue"
    pushed: int = attrs.field(default=0, init=False)
    consumed: int = attrs.field(default=0, init=False)
    cancelled: int = attrs.field(default=0, init=False)
    _waiting: deque[Ticket] = attrs.field(factory=deque, init=False)
    _claimed: deque[Ticket] = attrs.field(factory=deque, init=False)
    _last: Ticket | None = attrs.field(default=None, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    @property
    def waiting(self) -> tuple[Ticket, ...]:
        """The tickets that no forward has claimed, oldest first."""
        with self._lock:
            return tuple(self._waiting)

    @property
    def claimed(self) -> tuple[Ticket, ...]:
        """The tickets whose forward has started and not consumed them yet, oldest first."""
        with self._lock:
            return tuple(self._claimed)

    def __len__(self) -> int:
        """How many entries nobody has consumed or cancelled."""
        return len(self._waiting) + len(self._claimed)

    def push(self, entry: Any = None, *, who: str, ahead: bool = False) -> Ticket:
        """A ticket for `entry`, behind all others, or `ahead` of all that wait. `who` pushes it, as errors will say.

        A slot's own entries go ahead: its forwards come before the engine's next one, whose entry may wait already.
        """
        with self._lock:
            self.pushed += 1
            ticket = Ticket(self.pushed, entry, who)
            (self._waiting.appendleft if ahead else self._waiting.append)(ticket)
        return ticket

    def claim(self) -> Ticket:
        """A forward starts: the oldest ticket that waits is its own, and can no longer be cancelled.

        Raises: RuleViolation (R24) where none waits.
        """
        with self._lock:
            return self._claim()

    def claim_for(self, ticket: Any) -> None:
        """A replay was launched that takes `ticket`: it can no longer be cancelled, also if it is not consumed yet.

        Anything that does not wait is left as it is: the replay may have consumed it by now.
        """
        with self._lock:
            if any(each is ticket for each in self._waiting):
                self._waiting.remove(ticket)
                self._claimed.append(self._claim_of(ticket))

    def consume(self) -> Ticket:
        """A forward takes its entry: the oldest claimed; where none is claimed, the oldest that waits.

        Raises: RuleViolation (R24) where there is none.
        """
        with self._lock:
            if not self._claimed:
                self._claim()
            ticket = self._last = self._claimed.popleft()
            ticket.state = "consumed"
            self.consumed += 1
        return ticket

    def cancel(self, ticket: Any) -> bool:
        """Take back an entry that no forward has claimed; whether it was one. Anything else is left as it is."""
        with self._lock:
            waits = any(each is ticket for each in self._waiting)
            if waits:
                self._waiting.remove(ticket)
                ticket.state = "cancelled"
                self.cancelled += 1
        return waits

    def _claim(self) -> Ticket:
        if not self._waiting:
            raise self._underflow()
        ticket = self._claim_of(self._waiting.popleft())
        self._claimed.append(ticket)
        return ticket

    @staticmethod
    def _claim_of(ticket: Ticket) -> Ticket:
        ticket.state = "claimed"
        return ticket

    def _underflow(self) -> RuleViolation:
        last = f"the last that was consumed is {self._last}" if self._last else "nothing was ever consumed"
        what = f"{self.name} is empty: a forward runs without its entry, or took another's before ({last})"
        facts = {"pushed": self.pushed, "consumed": self.consumed, "cancelled": self.cancelled}
        return RuleViolation(what, rule="R24", hint="push one entry before each forward", **facts)

    def __str__(self) -> str:
        """Who has entries in it, for errors."""
        return listed((*self.claimed, *self.waiting)) or "nobody has an entry in it"


def listed(tickets: tuple[Ticket, ...]) -> str:
    """`tickets` for an error, the first few of them."""
    more = f" and {len(tickets) - SHOWN} more" if len(tickets) > SHOWN else ""
    return "; ".join(map(str, tickets[:SHOWN])) + more


def require_claimed(ticket: Any) -> None:
    """After a forward that Python ran: it must have claimed `ticket`. Tickets of other kinds cannot be asked.

    Raises: RuleViolation (R25) where it did not: the next forward would take the entry.
    """
    if isinstance(ticket, Ticket) and ticket.state == "waiting":
        what = f"a forward has run and left {ticket} in the queue"
        raise RuleViolation(what, rule="R25", hint="fork the grammar once in every step", who=ticket.who)
