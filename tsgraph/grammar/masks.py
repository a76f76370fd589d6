"""The host's part of an executor: whose turn it is, what their masks are, and whose tokens are accepted when.

It knows nothing of streams. A forward is `fetch` (previous ← current, current ← the next entry), then `build`: the
previous entry's matchers accept what its forward drew, and this forward's rows are filled. So what a step draws is
accepted during the next one, beside its forward; or by `settle`, if the host wants it earlier. Whoever is first does
it, under one lock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from tsgraph.errors import BadBatch, ContractViolation
from tsgraph.grammar.bitmask import ALL
from tsgraph.grammar.entry import Entry
from tsgraph.grammar.tickets import Ticket, TicketQueue
from tsgraph.protocols.matching import Matcher

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tsgraph.protocols.matching import Words

NO_TOKEN = -1
"""What lies where a forward has not put its tokens yet."""


@attrs.define(eq=False)
class Masks:
    """The masks of one queue. All memory is the executor's, of most rows times most draws.

    `words` [rows * draws, words] int32: the masks, row by row, as many for each row as its forward draws. `drafts`
    [rows * (draws - 1)] int64: what is verified. `tokens` [rows * draws] int64: what was drawn; `gains` [rows] int64:
    how many of a row's draws count. `closed` [words]: a row of a step that failed.
    """

    words: Words
    drafts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    gains: NDArray[np.int64]
    closed: Words
    queue: TicketQueue = attrs.field(factory=TicketQueue)
    previous: Entry | None = attrs.field(default=None, init=False)
    current: Entry | None = attrs.field(default=None, init=False)
    _unfilled: bool = attrs.field(default=False, init=False)
    _lost: list[Matcher] = attrs.field(factory=list, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    # -- a forward ----------------------------------------------------------------------------------------------------

    def fetch(self, rows: int, draws: int) -> None:
        """A forward of `rows` rows with `draws` draws each takes its entry.

        Raises: RuleViolation where there is none (R24), BadBatch where it is for more rows. The step is closed then.
        """
        with self._lock:
            self._unfilled = True
            try:
                entry = self.queue.consume().entry
            except BaseException:
                self.previous, self.current = self.current, None
                raise
            if entry.repeats:
                return
            self.previous, self.current = self.current, entry
            entry.draws = draws
            if entry.rows > rows:
                raise BadBatch(f"an entry of {entry.rows} rows for a forward of {rows}", hint="push the rows it has")
            self._unfilled = False

    def build(self, rows: int, draws: int) -> None:
        """The previous entry's matchers accept what was drawn; the masks of this forward are filled.

        A row whose matcher fails does not keep others from accepting theirs.

        Raises: what matchers raise, the first of it, with notes of the rest; ContractViolation for a token that its
        matcher refuses, or that its step never handed over. The step is to be closed then.
        """
        with self._lock:
            errors = self._advance(self.previous)
            self.previous = None
            if not self._unfilled:
                self.tokens[:] = NO_TOKEN
                errors += self._fill(rows, draws)
        if errors:
            for error in errors[1:]:
                errors[0].add_note(f"also {type(error).__name__}: {error}")
            raise errors[0]

    def close(self, rows: int, draws: int) -> None:
        """Close every row of a forward that failed: it may draw what `closed` allows, and nothing of it counts."""
        with self._lock:
            self.words[: rows * draws] = self.closed
            self._unfilled = True
            if self.current is not None:
                self._void(self.current)

    # -- beside it ----------------------------------------------------------------------------------------------------

    def settle(self, ticket: Ticket) -> bool:
        """Let the matchers accept what the ticket's forward drew, unless a build has; whether this call did it.

        The forward must be done. Raises: BadBatch where it has not even begun; and as `build` does.
        """
        if ticket.state in ("waiting", "claimed"):
            raise BadBatch(f"the forward of {ticket} is not done", hint="settle it after its step is ready")
        entry: Entry = ticket.entry
        with self._lock:
            pending = entry.counts
            errors = self._advance(entry)
        if errors:
            raise errors[0]
        return pending

    def abandon(self, ticket: Any) -> None:
        """Say that the forward of a ticket failed: its entry is taken back, or what was drawn counts for nothing."""
        if isinstance(ticket, Ticket) and not self.queue.cancel(ticket):
            with self._lock:
                self._void(ticket.entry)

    def reset(self) -> None:
        """Forget the entries that were consumed, but for a request's whose tokens its matcher has not accepted yet."""
        with self._lock:
            self.previous = None if self.previous is None or not self.previous.counts else self.previous
            self.current = None if self.current is None or not self.current.counts else self.current

    @property
    def remembered(self) -> tuple[Entry, ...]:
        """The previous and the current entry, if there are such."""
        with self._lock:
            return tuple(entry for entry in (self.previous, self.current) if entry is not None)

    # -- under the lock -----------------------------------------------------------------------------------------------

    def _void(self, entry: Entry) -> None:
        if entry.outcome == "pending":
            entry.outcome = "void"

    def _advance(self, entry: Entry | None) -> list[Exception]:
        """Let the entry's matchers accept what was drawn, if nobody has, each for itself; what went wrong."""
        if entry is None or entry.outcome != "pending":
            return []
        entry.outcome, errors = "advanced", []
        for row, (matcher, advances) in enumerate(zip(entry.matchers, entry.advances, strict=True)):
            if matcher is not None and advances and not self._is_lost(matcher):
                try:
                    self._accept(matcher, row, entry.draws)
                except Exception as error:  # noqa: BLE001 -- whatever it is, the other rows go on
                    self._lost.append(matcher)
                    errors.append(error)
        return errors

    def _accept(self, matcher: Matcher, row: int, draws: int) -> None:
        gained = int(self.gains[row]) if draws > 1 else 1
        if gained not in range(draws + 1):
            expected = f"at most the {draws} tokens it drew"
            raise ContractViolation("step", f"accept_lengths[{row}]", expected, f"{gained}")
        for token in self.tokens[row * draws : row * draws + gained].tolist():
            if matcher.terminated:
                return
            if token == NO_TOKEN:
                raise ContractViolation(
                    "step", f"tokens[{row}]", "a token", "none", hint="call `finish` at the end of every step"
                )
            if not matcher.accept(token):
                hint = "draw from logits that the mask was applied to"
                raise ContractViolation("step", f"tokens[{row}]", "one that its grammar allows", f"{token}", hint=hint)

    def _fill(self, rows: int, draws: int) -> list[Exception]:
        """Fill the masks of the current entry: free rows allow all, at every step anew. What went wrong."""
        self.words[: rows * draws] = ALL
        errors: list[Exception] = []
        for row, matcher in enumerate(self.current.matchers if self.current else ()):
            if matcher is None:
                continue
            if self._is_lost(matcher):
                self.words[row * draws : (row + 1) * draws] = self.closed
            elif not matcher.terminated:
                try:
                    self._walk(matcher, row, draws)
                except Exception as error:  # noqa: BLE001 -- it is raised when all rows have had their turn
                    errors.append(error)
        return errors

    def _walk(self, matcher: Matcher, row: int, draws: int) -> None:
        """Fill a row's masks along its drafts, and roll back. What follows a draft that is refused is never accepted.

        Those rows allow all, and so do those after a stop token.
        """
        drafts, walked = self.drafts[row * (draws - 1) : (row + 1) * (draws - 1)], 0
        try:
            matcher.fill(self.words[row * draws])
            for draft in drafts.tolist():
                if not matcher.accept(draft):
                    break
                walked += 1
                if matcher.terminated:
                    break
                matcher.fill(self.words[row * draws + walked])
        finally:
            if walked:
                matcher.rollback(walked)

    def _is_lost(self, matcher: Matcher) -> bool:
        """Whether its state no longer is what was drawn: its rows stay closed."""
        return any(each is matcher for each in self._lost)
