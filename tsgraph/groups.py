"""Cache groups: layers whose key-value pages live in one pool, and how wide a table of theirs is in a recording.

A model with sliding-window layers, or with compressed ones, has several kinds of pages. Each group has its own block
table. A table is recorded at its widest: what a request of `context` tokens may ever need, and the tokens that a step
ahead may add (the numbers are those of TokenSpeed's paged cache).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import attrs

from tsgraph.errors import BadGeometry

Retention = Literal["full_history", "sliding_window"]
STATE_FAMILY = "state"


@attrs.frozen(kw_only=True)
class CacheGroup:
    """One group of layers that share a pool of pages.

    `rows_per_page`: cache rows of one page. `entry_stride_tokens`: tokens that one row stands for. `retention`:
    whether a request keeps the pages of its whole history, or of the last `window` tokens. `family`: what the pages
    hold; a group of the family "state" holds no keys and values.

    Raises: BadGeometry where a number cannot be.
    """

    name: str
    rows_per_page: int
    entry_stride_tokens: int = 1
    retention: Retention = "full_history"
    window: int | None = None
    family: str = "attention"

    def __attrs_post_init__(self) -> None:
        if self.retention not in get_args(Retention):
            known = " or ".join(map(repr, get_args(Retention)))
            raise self._bad("retention", known, self.retention)
        if self.page_tokens <= 0:
            raise self._bad("tokens per page", "a positive number", self.page_tokens)
        if self.retention == "sliding_window" and (self.window is None or self.window <= 0):
            raise self._bad("window", "a positive number of tokens, since its retention is a window", self.window)

    def _bad(self, what: str, expected: str, got: object) -> BadGeometry:
        return BadGeometry(
            f"cache group {self.name!r}: expected {expected} as its {what}, got {got!r}", group=self.name
        )

    @property
    def page_tokens(self) -> int:
        """Tokens that one page holds."""
        return self.rows_per_page * self.entry_stride_tokens

    @property
    def for_drafter(self) -> bool:
        """Whether a draft model reads this group too: it keeps the whole history, and of keys and values."""
        return self.family != STATE_FAMILY and self.retention == "full_history"

    def width(self, context: int, tokens_per_request: int = 1, overlap_depth: int = 0) -> int:
        """Columns of a recorded table: pages for `context` tokens and for the tokens of `overlap_depth + 1` steps.

        Raises: BadGeometry for a negative context, no token per request, or another overlap depth than 0 and 1.
        """
        _check(context >= 0, "context", "0 or more tokens", context)
        _check(tokens_per_request > 0, "tokens per request", "1 or more", tokens_per_request)
        _check(overlap_depth in (0, 1), "overlap depth", "0 or 1 steps", overlap_depth)
        kept = context if self.window is None or self.retention == "full_history" else min(self.window, context)
        pages = -(-(kept + (overlap_depth + 1) * tokens_per_request) // self.page_tokens)
        return pages if self.retention == "full_history" else pages + 1


def table_widths(
    groups: Iterable[CacheGroup], context: int, *, largest: int, tokens_per_request: int = 1, overlap_depth: int = 0
) -> dict[str, int]:
    """The columns of each group's table, by group; an extent of a geometry.

    `context`: most tokens of a request. Where it is 0 or less it is not known, and taken as one step of the `largest`
    slot, in rows.

    Raises: BadGeometry as `CacheGroup.width`, and for two groups of one name.
    """
    known = context if context > 0 else tokens_per_request * largest
    widths: dict[str, int] = {}
    for group in groups:
        if group.name in widths:
            raise BadGeometry(f"two cache groups are called {group.name!r}", group=group.name)
        widths[group.name] = group.width(known, tokens_per_request, overlap_depth)
    return widths


def _check(holds: bool, what: str, expected: str, got: object) -> None:
    if not holds:
        raise BadGeometry(f"expected {expected} as {what}, got {got!r}")
