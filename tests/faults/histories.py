"""What is served: live rows that come, grow and go, and the garbage that they find. Plain values, to be pasted."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.faults.shape import COLUMNS, CONTEXT, PAGE, VOCABULARY, Shape

Sources = dict[str, Any]
"""For each buffer a tensor, or one for each cache group."""


@attrs.frozen
class Turn:
    """One decode step: the request-pool rows that are live, in order, and how many tokens each holds then."""

    rows: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    variant: str = "default"


@attrs.frozen(kw_only=True)
class History:
    """Turns of one engine. `garbage`: what fills static buffers before each (None: what the turn before left)."""

    shape: Shape
    turns: tuple[Turn, ...]
    garbage: int | None = None


@attrs.frozen
class Rows:
    """The live rows of one turn as an engine's own tables have them; `turn` is its number in the history."""

    shape: Shape
    live: Turn
    turn: int

    def pages(self, row: int) -> list[int]:
        """The pages of a request, as many as its tokens need; the request-pool row decides which it owns."""
        length = self.live.lengths[self.live.rows.index(row)]
        first = 1 + (row - 1) * COLUMNS["full"]
        return list(range(first, first + -(-length // PAGE)))

    def owned(self) -> dict[str, list[int]]:
        """The rows of each state that these requests may write."""
        pages = [page for row in self.live.rows for page in self.pages(row)]
        pool, slots = list(self.live.rows), [slot for row in self.live.rows for slot in self._slots(row)]
        return {"keys": pages, "values": pages, "lengths": pool, "counts": pool, "recurrent": slots}

    def sources(self) -> Sources:
        """What the engine passes: host tensors of the live rows."""
        rows, lengths, tokens = self.live.rows, self.live.lengths, self.shape.tokens
        at = [length - tokens + i for length in lengths for i in range(tokens)]
        owner = [row for row in rows for _ in range(tokens)]
        places = [self.pages(row)[p // PAGE] * PAGE + p % PAGE for row, p in zip(owner, at, strict=True)]
        ids = [(7 * self.turn + 3 * row + p) % VOCABULARY for row, p in zip(owner, at, strict=True)]
        slots = [self._slots(row) for row in rows]
        drafts: Sources = {"shifted_ids": _int32([(i + 1) % VOCABULARY for i in ids])} if self.shape.drafts else {}
        return {
            "input_ids": _int32(ids),
            "positions": torch.tensor(at, dtype=torch.int64),
            "cache_locations": _int32(places),
            "seq_lens": _int32(lengths),
            "request_pool": torch.tensor(rows, dtype=torch.int64),
            "recurrent_slots": _int32([each[0] for each in slots]),
            "recurrent_sources": _int32([each[1] if self.turn % 2 else -1 for each in slots]),
            "recurrent_branches": _int32([each[2] if self.turn % 3 else -1 for each in slots]),
            "recurrent_tracks": _int32([each[3] for each in slots]),
            **self._tables(),
            **drafts,
        }

    def _tables(self) -> Sources:
        pages = [self.pages(row) for row in self.live.rows]
        past = [max(0, len(each) - COLUMNS["window"]) for each in pages]
        tails = [each[skipped:] for each, skipped in zip(pages, past, strict=True)]
        near = [each[: COLUMNS["window"]] for each in pages]
        return {
            "paged_tables": {"full": _table(pages, COLUMNS["full"]), "window": _table(tails, COLUMNS["window"])},
            "paged_offsets": {"full": _int32([0] * len(pages)), "window": _int32(past)},
            "flat_tables": {"full": _ragged(pages), "window": _ragged(near)},
        }

    def _slots(self, row: int) -> tuple[int, int, int, int]:
        """A request's recurrent slots: its state, what that is copied from, a branch and a track. Slot 0 is live."""
        first = 4 * (row - 1)
        return first, first + 1, first + 2, first + 3


def _int32(numbers: list[int] | tuple[int, ...]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _table(rows: list[list[int]], width: int) -> Tensor:
    return _int32([]).view(0, width) if not rows else _int32_rows([[*row, *[-1] * (width - len(row))] for row in rows])


def _ragged(rows: list[list[int]]) -> Tensor:
    """Tables as wide as the widest row: narrower than the buffer, whose other columns are the runtime's to pad."""
    return _table([[*row] for row in rows], max((len(row) for row in rows), default=1)).clamp(min=0)


def _int32_rows(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


# -- strategies --------------------------------------------------------------------------------------------------------

SHAPES = (
    Shape(sizes=(3,)),
    Shape(spec="speculative", sizes=(3,)),
    Shape(spec="speculative", sizes=(1, 4), row_products=False),
    Shape(sizes=(2,), variants=("default", "greedy"), row_products=False),
)
GARBAGE = (None, None, 1, 3, 2**31 - 1)


@st.composite
def turns(draw: st.DrawFn, shape: Shape) -> tuple[Turn, ...]:
    """One to five turns: each keeps some requests, which have grown by a step's tokens, and lets others come and go."""
    held: dict[int, int] = {}
    made = []
    for _ in range(draw(st.integers(1, 5))):
        count = draw(st.integers(0, shape.rows))
        order = draw(st.permutations(range(1, shape.rows + 1)))[:count]
        fresh = draw(st.lists(st.integers(shape.tokens, CONTEXT), min_size=count, max_size=count))
        held = {row: _grown(held.get(row, 0), new, shape) for row, new in zip(order, fresh, strict=True)}
        variant = draw(st.sampled_from(shape.variants))
        made.append(Turn(tuple(held), tuple(held.values()), variant))
    return tuple(made)


def _grown(length: int, fresh: int, shape: Shape) -> int:
    """A request that was there has grown; one that would outgrow its context has made room for another."""
    return length + shape.tokens if length and length + shape.tokens <= CONTEXT else fresh


@st.composite
def histories(draw: st.DrawFn, shapes: tuple[Shape, ...] = SHAPES) -> History:
    """Histories of an engine of one of `shapes`."""
    shape = draw(st.sampled_from(shapes))
    return History(shape=shape, turns=draw(turns(shape)), garbage=draw(st.sampled_from(GARBAGE)))
