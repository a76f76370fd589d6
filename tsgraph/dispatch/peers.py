"""The ranks that serve one step together: what they tell of themselves, checked, and what a recording pretends."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tsgraph.errors import BadBatch
from tsgraph.keys import Mode, RankCounts

HINT = "every rank passes the same counts of all ranks, in the order of the ranks"


@attrs.frozen(kw_only=True)
class Peers:
    """How many ranks there are, which of them this is, and how many tokens a row carries in a decode step."""

    count: int = 1
    index: int = 0
    tokens_per_request: int = 1

    def uniform(self, rows: int) -> RankCounts | None:
        """What a recording of `rows` rows pretends: as many on every rank, all decoding (R14, R15). None if alone."""
        if self.count == 1:
            return None
        tokens = rows * self.tokens_per_request
        return RankCounts([tokens] * self.count, [rows] * self.count, all_decode_or_idle=True)

    def checked(self, counts: RankCounts | None, rows: int, mode: Mode) -> RankCounts | None:
        """`counts` of a step in which this rank has `rows` rows, with the rows of each rank where all decode or idle.

        Raises: BadBatch where they are of another number of ranks, negative or no integers; where all decode or idle,
        but tokens are no whole rows or contradict the rows; where they are not what this rank brings.
        """
        if counts is None:
            return None
        if not isinstance(counts, RankCounts):
            raise BadBatch(f"counts must be RankCounts, not {counts!r}", hint="pass RankCounts(tokens=…, …)")
        self._check_numbers("tokens", counts.tokens)
        if counts.rows is not None:
            self._check_numbers("rows", counts.rows)
        if counts.all_decode_or_idle:
            counts = self._whole_rows(counts, mode)
        self._check_own(counts, rows, mode)
        return counts

    def widest(self, counts: RankCounts | None) -> int | None:
        """Rows of the rank with most tokens; the last of them may be incomplete (R27). None where it is not known."""
        return None if counts is None else -(-max(counts.tokens) // self.tokens_per_request)

    def _check_numbers(self, what: str, numbers: Sequence[int]) -> None:
        if len(numbers) != self.count:
            raise BadBatch(f"counts.{what} are of {len(numbers)} ranks, but there are {self.count}", hint=HINT)
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise BadBatch(f"counts.{what} must be non-negative integers, not {list(numbers)}", hint=HINT)

    def _whole_rows(self, counts: RankCounts, mode: Mode) -> RankCounts:
        if mode not in (Mode.DECODE, Mode.IDLE):
            raise BadBatch(f"counts say that all ranks decode or idle, but this one's step is {mode.value}", hint=HINT)
        if any(tokens % self.tokens_per_request for tokens in counts.tokens):
            what = f"counts.tokens {list(counts.tokens)} are not all multiples of {self.tokens_per_request}"
            raise BadBatch(what, hint="in a decode step each row carries the tokens per request")
        rows = tuple(tokens // self.tokens_per_request for tokens in counts.tokens)
        if counts.rows not in (None, rows):
            raise BadBatch(
                f"counts.rows {list(counts.rows or ())} contradict the tokens, which are of {list(rows)} rows"
            )
        return attrs.evolve(counts, rows=rows)

    def _check_own(self, counts: RankCounts, rows: int, mode: Mode) -> None:
        tokens = rows * self.tokens_per_request
        if mode is Mode.DECODE and counts.tokens[self.index] != tokens:
            raise BadBatch(
                f"counts.tokens of rank {self.index}: {counts.tokens[self.index]}, not its {tokens}", hint=HINT
            )
        if counts.rows is not None and counts.rows[self.index] != rows:
            raise BadBatch(f"counts.rows of rank {self.index}: {counts.rows[self.index]}, not its {rows}", hint=HINT)
