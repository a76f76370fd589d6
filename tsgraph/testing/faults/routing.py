"""Faults of where a step goes, and of which slots there are (R1, R4, R13, R26 to R29)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from tsgraph import assembly, upkeep
from tsgraph.capture import plan
from tsgraph.dispatch import sizes
from tsgraph.dispatch.decision import Dispatch
from tsgraph.dispatch.peers import Peers
from tsgraph.keys import DEFAULT_VARIANT, Mode, RankCounts
from tsgraph.replay.routes import Routes
from tsgraph.testing.faults.fault import Fault, Patch, nothing, replaced

Decide = Callable[..., Any]


def _any_mode(decide: Decide) -> Decide:
    def as_decode(self: Dispatch, rows: int, **words: Any) -> Any:
        return decide(self, rows, **{**words, "mode": Mode.DECODE})

    return as_decode


def _always_enabled(decide: Decide) -> Decide:
    return lambda self, rows, **words: decide(attrs.evolve(self, enabled=True), rows, **words)


def _always_padding(decide: Decide) -> Decide:
    return lambda self, rows, **words: decide(attrs.evolve(self, padding=True), rows, **words)


def _rank_local(self: Peers, counts: RankCounts | None) -> int | None:
    return None if counts is None else counts.tokens[self.index] // self.tokens_per_request


def _floored(self: Peers, counts: RankCounts | None) -> int | None:
    return None if counts is None else max(counts.tokens) // self.tokens_per_request


def _next_smaller(self: Dispatch, rows: int) -> int:
    return self.sizes[max(0, bisect_right(self.sizes, rows) - 1)]


def _next_but_one(self: Dispatch, rows: int) -> int:
    return self.sizes[min(bisect_left(self.sizes, rows) + 1, len(self.sizes) - 1)]


def _default_only(renewed: Callable[..., Routes]) -> Callable[..., Routes]:
    """Every variant is served by the slots of the default one."""

    def wrong(self: Routes, *args: Any, **words: Any) -> Routes:
        routes = renewed(self, *args, **words)
        tables = routes.tables.get(DEFAULT_VARIANT, ())
        return attrs.evolve(routes, tables=dict.fromkeys(routes.tables, tables))

    return wrong


def _as_asked(variants: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(variants)) or (DEFAULT_VARIANT,)


def _ascending(planned: Callable[..., Any]) -> Callable[..., Any]:
    return lambda sizes, variants, **words: planned(sizes, variants, **{**words, "largest_first": False})


def _without_largest(chosen: Callable[..., Any]) -> Callable[..., Any]:
    """Defaults that reach beyond the most live rows are cut, and nothing is put in their place."""

    def cut(spec: Any, rows: int, asked: Sequence[int] | None = None) -> Any:
        wanted = asked if asked is not None else spec.default if spec.padding else spec.default_without_padding
        return chosen(spec, rows, [size for size in wanted if size <= rows])

    return cut


def _first_published(published: Callable[..., None]) -> Callable[..., None]:
    """Routes are made once, with whatever is ready then."""

    def once(self: upkeep.Upkeep) -> None:
        if not self._server.routes.programs:
            published(self)

    return once


FAULTS = (
    Fault(
        "graph_for_extend_mode",
        "a step of any mode is replayed, as if it decoded",
        ("R26",),
        (Patch(Dispatch, "decide", _any_mode),),
    ),
    Fault(
        "graph_while_disabled",
        "a runtime that is switched off goes on replaying",
        ("R26",),
        (Patch(Dispatch, "decide", _always_enabled),),
    ),
    Fault(
        "replay_after_invalidation",
        "a slot that became stale or was released goes on serving",
        ("R26",),
        (Patch(upkeep.Upkeep, "_publish", _first_published),),
    ),
    Fault(
        "other_ranks_ignored",
        "a step is replayed whatever the other ranks do, or when nobody knows it",
        ("R26",),
        (Patch(Dispatch, "_refusal_of_ranks", replaced(nothing)),),
    ),
    Fault(
        "rank_local_size",
        "each rank picks the slot of its own rows, whatever the widest has",
        ("R27",),
        (Patch(Peers, "widest", replaced(_rank_local)),),
    ),
    Fault(
        "counts_rounded_down",
        "tokens of the widest rank are divided without rounding up",
        ("R27",),
        (Patch(Peers, "widest", replaced(_floored)),),
    ),
    Fault(
        "misrouted_size",
        "a step goes to the next smaller slot",
        ("R28",),
        (Patch(Dispatch, "_size", replaced(_next_smaller)),),
    ),
    Fault(
        "wasteful_size",
        "a step goes past the smallest slot that fits",
        ("R26",),
        (Patch(Dispatch, "_size", replaced(_next_but_one)),),
    ),
    Fault(
        "padding_when_off",
        "steps are padded although the spec says that they are not",
        ("R29",),
        (Patch(Dispatch, "decide", _always_padding),),
    ),
    Fault(
        "variant_ignored",
        "every variant is served by the default one's slots",
        ("R4",),
        (Patch(Routes, "renewed", _default_only),),
    ),
    Fault(
        "missing_default_slot",
        "only the variants that the sampler names are captured",
        ("R4",),
        (Patch(plan, "with_default", replaced(_as_asked)), Patch(assembly, "with_default", replaced(_as_asked))),
    ),
    Fault(
        "smallest_first",
        "slots are captured in ascending order",
        ("R13",),
        (Patch(assembly, "plan_capture", _ascending),),
    ),
    Fault(
        "unsorted_sizes",
        "sizes are taken in any order",
        ("R1",),
        (Patch(sizes, "_check_increasing", replaced(nothing)),),
    ),
    Fault(
        "largest_batch_unserved",
        "no slot is added for the largest batch",
        ("R1",),
        (Patch(assembly, "capture_sizes", _without_largest),),
    ),
)
