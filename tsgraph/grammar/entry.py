"""What one forward gets from the queue, and what becomes of the tokens that it draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs

from tsgraph.errors import BadBatch
from tsgraph.protocols.matching import Matcher

Outcome = Literal["pending", "advanced", "void"]


@attrs.define(eq=False)
class Entry:
    """One forward's grammars: for each of its first rows a matcher, or None for a free one; all further rows are free.

    `advances`: which rows draw a token that counts; a prompt read in chunks has one only at its end. `repeats`: the
    forward is the last one once more: it finds the same masks, and what it draws counts for nothing.

    `outcome` is settled once: by the next build or by the host, whoever is first, or it is void, as its step failed.
    """

    rows: int
    matchers: tuple[Matcher | None, ...] = ()
    advances: tuple[bool, ...] = ()
    repeats: bool = False
    draws: int = attrs.field(default=1, init=False)
    outcome: Outcome = attrs.field(default="pending", init=False)

    @classmethod
    def of(
        cls, rows: int, matchers: Sequence[Matcher | None] | None = None, advances: Sequence[bool] | None = None
    ) -> Entry:
        """An entry for `rows` rows, free ones unless there are `matchers`. Without `advances` all rows advance.

        Raises: BadBatch for lists that do not fit the rows, or a matcher in two rows.
        """
        matchers = tuple(matchers or ())
        advances = (True,) * len(matchers) if advances is None else tuple(advances)
        if len(matchers) > rows or len(advances) != len(matchers):
            what = f"{len(matchers)} matchers and {len(advances)} advances for {rows} rows"
            raise BadBatch(what, hint="give a matcher, or None, and whether it advances for each live row")
        held = [id(matcher) for matcher in matchers if matcher is not None]
        if len(held) != len(set(held)):
            raise BadBatch("a matcher stands in two rows", hint="each request has a matcher of its own")
        return cls(rows, matchers, advances)

    @property
    def counts(self) -> bool:
        """Whether a matcher still waits for what its forward draws."""
        return self.outcome == "pending" and any(matcher is not None for matcher in self.matchers)
