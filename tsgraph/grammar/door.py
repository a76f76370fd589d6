"""Where the engine's entries wait for their forward: the runtime's own door to the queue, under the spec's rules.

The engine pushes one entry before each forward, an idle one included. Whatever forward the runtime serves next takes
it. One that raises before its work is launched leaves the entry to be cancelled, or to the next try.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from tsgraph.errors import CallerError, RuleViolation
from tsgraph.grammar.tickets import require_claimed
from tsgraph.lifecycle import FLOOR_RULE, Kind, Lifecycle
from tsgraph.protocols.collaborators import Grammar

PUSH = "push one entry before each forward, an idle one included"


@attrs.define(eq=False, kw_only=True)
class Door:
    """The engine's side of the queue of `grammar`, as far as the law of `lifecycle` declares one.

    `holders`: who else has entries in the queue, for errors. `waiting`: the ticket that the next forward takes, with
    who pushed it; None for none. Where the spec has no step for pushing, the engine's pushes are its own affair.
    """

    lifecycle: Lifecycle
    grammar: Grammar
    holders: Callable[[], Iterable[str]] = tuple
    waiting: tuple[Any, str] | None = attrs.field(default=None, init=False)
    _last: str = attrs.field(default="", init=False)

    def push(self, rows: int, *entry: Any, who: str, by: Callable[..., Any] | None = None, **words: Any) -> Any:
        """Push the entry of the next forward, of `rows` live rows; returns its ticket.

        `entry` and `words` go to the grammar's `push`, or to `by` in its place. `who` pushes, as errors will say.

        Raises: RuleViolation while another waits (R22); CallerError where the spec has no step for it; what pushing
        raises. Nothing is pushed then.
        """
        if not self.lifecycle.serving.push:
            hint = "push into the grammar itself, or declare steps of [serving] push"
            raise CallerError(f"spec {self.lifecycle.spec.name} does not say what pushing an entry means", hint=hint)
        self.admit("push")
        ticket = (by or self.grammar.push)(rows, *entry, who=who, **words)
        self._feed("push")
        self.waiting, self._last = (ticket, who), who
        return ticket

    def cancel(self, ticket: Any) -> bool:
        """Take back the entry that waits, if `ticket` is its own; whether it was. Any other ticket is ignored."""
        if self.waiting is None or self.waiting[0] is not ticket:
            return False
        self.admit("abandon")
        self.grammar.abandon(ticket)
        self._feed("abandon")
        self.waiting = None
        return True

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Lay the entry that waits aside: forwards of the block have their own, pushed ahead of it."""
        waiting, last = self.waiting, self._last
        if waiting is not None:
            self._feed("abandon")
            self.waiting = None
        try:
            yield
        finally:
            self.waiting, self._last = waiting, last
            if waiting is not None:
                self._feed("push")

    def admit(self, kind: Kind) -> None:
        """Ask the rules that guard a serving of `kind`. Raises: RuleViolation, which names who pushed what waits."""
        try:
            self.lifecycle.admit(kind)
        except RuleViolation as refusal:
            raise self._named(refusal) from None

    def launched(self) -> None:
        """A replay was launched: its graph takes the entry that waits, which can no longer be cancelled."""
        if self.waiting is not None:
            self.grammar.claim(self.waiting[0])
            self.waiting = None

    def served(self) -> None:
        """A forward that Python ran has taken the entry that waits. Raises: RuleViolation (R25) where it did not."""
        if self.waiting is not None:
            ticket, self.waiting = self.waiting[0], None
            require_claimed(ticket)
            self.grammar.claim(ticket)

    def _feed(self, kind: Kind) -> None:
        for effect in getattr(self.lifecycle.serving, kind):
            self.lifecycle.runtime_scope.apply(effect)

    def _named(self, refusal: RuleViolation) -> RuleViolation:
        """The refusal, saying who has pushed what waits."""
        held = [f"{holder} holds an entry" for holder in self.holders()]
        facts = {key: fact for key, fact in refusal.context.items() if key != "rule"}
        hint = PUSH if refusal.rule == FLOOR_RULE else refusal.hint
        return RuleViolation("; ".join([refusal.what, self._pushed(), *held]), rule=refusal.rule, hint=hint, **facts)

    def _pushed(self) -> str:
        if self.waiting is not None:
            return f"an entry waits that was pushed by {self.waiting[1]}"
        last = f", since the last, pushed by {self._last}, was taken or cancelled" if self._last else ""
        return f"the engine has pushed no entry{last}"


def callers_line() -> str:
    """The line that called the method that asks, as `file:line`."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame and frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "somebody"
