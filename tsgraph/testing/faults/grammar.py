"""Faults of the grammar queue: entries that nobody counts, that another forward takes, or that nobody takes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tsgraph.capture.pipeline import Pipeline
from tsgraph.grammar.door import Door
from tsgraph.grammar.tickets import Ticket, TicketQueue
from tsgraph.replay import eager, program
from tsgraph.replay.server import Server
from tsgraph.testing.faults.fault import Fault, Patch, nothing, replaced


def _twice(push: Callable[..., Any]) -> Callable[..., Any]:
    """The queue gets two entries for one forward."""

    def wrong(self: Door, rows: int, *entry: Any, **words: Any) -> Any:
        ticket = push(self, rows, *entry, **words)
        self.grammar.push(rows, who="nobody")
        return ticket

    return wrong


def _behind(push: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, entry=None, *, who, ahead=False: push(self, entry, who=who)  # noqa: ARG005


def _blank(claim: Callable[..., Ticket]) -> Callable[..., Ticket]:
    """Where no entry waits, a forward goes on with none."""

    def wrong(self: TicketQueue) -> Ticket:
        if not self._waiting:
            self._waiting.append(Ticket(0, None, "nobody"))
        return claim(self)

    return wrong


def _of_all(drain: Callable[[Pipeline], None]) -> Callable[[Pipeline], None]:
    """The whole queue is emptied, whoever waits in it."""

    def wrong(self: Pipeline) -> None:
        drain(self)
        queue: Any = getattr(self.engine.grammar, "queue", None)
        for ticket in getattr(queue, "waiting", ()):
            queue.cancel(ticket)

    return wrong


def _kept(_cancel: Callable[..., bool]) -> Callable[..., bool]:
    """An entry that is cancelled is forgotten here, and stays in the queue."""

    def wrong(self: Door, ticket: Any) -> bool:
        waits = self.waiting is not None and self.waiting[0] is ticket
        if waits:
            self._feed("abandon")
            self.waiting = None
        return waits

    return wrong


def _unmasked(_self: Any, batch: Any) -> Any:
    batch.mask = None
    return batch


UNASKED = (Patch(program, "asking", replaced(nothing)), Patch(eager, "asking", replaced(nothing)))

FAULTS = (
    Fault("double_push", "two entries are pushed for one forward", ("R22",), (Patch(Door, "push", _twice),)),
    Fault(
        "slot_entry_behind",
        "a slot that is captured takes the entry of the engine's that waits, and leaves its own",
        ("R22",),
        (Patch(TicketQueue, "push", _behind),),
    ),
    Fault("forwards_not_asked", "no rule is asked before a served forward", ("R22", "R23"), UNASKED),
    Fault(
        "drain_of_all",
        "a drain empties the queue, a live request's entry included",
        ("R23",),
        (Patch(Pipeline, "drain_grammar", _of_all),),
    ),
    Fault(
        "swallowed_underflow",
        "a forward without an entry goes on, as if it had one",
        ("R24",),
        (Patch(TicketQueue, "_claim", _blank),),
    ),
    Fault("cancel_forgotten", "a cancelled entry stays in the queue", ("R25",), (Patch(Door, "cancel", _kept),)),
    Fault(
        "eager_mask_unbound",
        "an eager step has no mask, and is unconstrained",
        ("R18",),
        (Patch(Server, "_masked", replaced(_unmasked)),),
    ),
)
