"""Faults of what rows beyond the live ones hold, and of what a call may pass (R12, R28, R30 to R37)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tsgraph.backends.emulated import staging as kernel
from tsgraph.buffers import packing, sources, staging
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import Field
from tsgraph.buffers.packing import Packing
from tsgraph.protocols.backend import Lane
from tsgraph.testing.faults.fault import Change, Fault, Patch, nothing, replaced


def _without_tail(write: Callable[..., None]) -> Callable[..., None]:
    def head_only(cut: staging.Cut, source: Any) -> None:
        tail, cut.tail = cut.tail, None
        write(cut, source)
        cut.tail = tail

    return head_only


def _pads(names: tuple[str, ...], pad: float) -> Change:
    """A change of `Staging._cut`: the pad rows of the buffers `names` (none: of all) get `pad`."""

    def change(cut_field: Callable[..., staging.Cut]) -> Callable[..., staging.Cut]:
        def wrong(self: staging.Staging, field: Field, live: int) -> staging.Cut:
            cut = cut_field(self, field, live)
            cut.pad = pad if field.name in names or not names else cut.pad
            return cut

        return wrong

    return change


def _lane_pads(names: tuple[str, ...], pad: float) -> Change:
    """The same of what a kernel is told."""

    def change(lane_of: Callable[..., Lane]) -> Callable[..., Lane]:
        def wrong(field: Field, *rest: Any) -> Lane:
            lane = lane_of(field, *rest)
            return attrs.evolve(lane, pad=pad) if field.name in names or not names else lane

        return wrong

    return change


def _padded(*names: str, pad: float) -> tuple[Patch, ...]:
    """Every way of staging pads the buffers `names` (none: all) with `pad`."""
    return Patch(staging.Staging, "_cut", _pads(names, pad)), Patch(packing, "_lane", _lane_pads(names, pad))


def _stale_margin(copy: Callable[..., None]) -> Callable[..., None]:
    def body_only(cut: staging.TableCut, head: Any, source: Any) -> None:
        margin = head[..., source.shape[-1] :].clone()
        copy(cut, head, source)
        head[..., source.shape[-1] :].copy_(margin)

    return body_only


def _without_mirror(roots: Callable[..., Any]) -> Callable[..., Any]:
    """Mirrors take their own old rows."""

    def unmirrored(fields: Any) -> Any:
        return [attrs.evolve(f, source="engine", mirrors=None) if f.mirrors else f for f in roots(fields)]

    return unmirrored


def _forgiving_groups(take: Callable[..., Any]) -> Callable[..., Any]:
    """A group that was not passed keeps what an earlier step left."""

    def forgiving(entry: sources.Entry, source: Any) -> Any:
        there = [demand for demand in entry.demands if demand.field.group in source]
        if len(there) == len(entry.demands):
            return take(entry, source)
        return [source.get(demand.field.group) for demand in entry.demands]

    return forgiving


def _idle_untouched(stage: Callable[..., None]) -> Callable[..., None]:
    def unless_idle(self: staging.Staging | Packing, live: int, given: Any) -> None:
        if live:
            stage(self, live, given)

    return unless_idle


def _emptied_sources(stage: Callable[..., None]) -> Callable[..., None]:
    def emptied(self: Packing, live: int, given: Mapping[str, Any]) -> None:
        stage(self, live, given)
        for source in given.values():
            for tensor in source.values() if isinstance(source, Mapping) else [source]:
                if tensor is not None:
                    tensor.zero_()

    return emptied


def _emptied_source(write: Callable[..., None]) -> Callable[..., None]:
    def emptied(cut: staging.Cut, source: Any) -> None:
        write(cut, source)
        if source is not None:
            source.zero_()

    return emptied


def _any_rows(accepts: Callable[..., bool]) -> Callable[..., bool]:
    """One row is taken for all: `copy_` broadcasts it."""

    def forgiving(demand: sources.Demand, source: Any) -> bool:
        return accepts(demand, source) or (len(source) == 1 and source.shape[1:] == demand.shape[1:])

    return forgiving


def _known_only(take: Callable[..., Any]) -> Callable[..., Any]:
    """A source under a name that no buffer has is passed over."""

    def forgiving(intake: sources.Intake, given: Mapping[str, Any]) -> Any:
        return take(intake, {name: source for name, source in given.items() if name in intake.names})

    return forgiving


def _live_cache_slot(fill_warm: Callable[..., None]) -> Callable[..., None]:
    def wrong(arena: Arena, size: int) -> None:
        fill_warm(arena, size)
        for field in arena.fields:
            if field.name == "cache_locations":
                arena.head(field, size).fill_(2)

    return wrong


FAULTS = (
    Fault(
        "stale_tail",
        "pad rows keep what an earlier step left there",
        ("R30", "R31", "R32", "R33", "R34", "R35"),
        (Patch(staging.Cut, "write", _without_tail), Patch(kernel, "_fill_tail", replaced(nothing))),
    ),
    Fault("zero_pads", "every pad is 0, whatever its buffer declares", ("R30", "R33"), _padded(pad=0)),
    Fault("empty_length_pad", "pad rows have length 0", ("R30",), _padded("seq_lens", pad=0)),
    Fault(
        "stale_length_pad",
        "pad rows have the length of some request",
        ("R30",),
        _padded("seq_lens", pad=7),
    ),
    Fault(
        "live_pool_row_as_pad",
        "pad rows point at the request-pool row of a request",
        ("R31",),
        _padded("request_pool", pad=1),
    ),
    Fault(
        "live_state_row_as_pad",
        "pad rows write their state into a request's pool row",
        ("R32",),
        _padded("state_write_pool", pad=1),
    ),
    Fault(
        "reserved_state_row_as_pad",
        "pad rows write their state into the reserved pool row 0",
        ("R32",),
        _padded("state_write_pool", pad=0),
    ),
    Fault(
        "stale_mirror",
        "a mirror keeps the live rows of an earlier step",
        ("R32",),
        (Patch(staging, "roots_first", _without_mirror), Patch(packing, "roots_first", _without_mirror)),
    ),
    Fault(
        "live_recurrent_slot_as_pad",
        "pad rows name recurrent slot 0, which is a request's",
        ("R33",),
        _padded("recurrent_slots", pad=0),
    ),
    Fault(
        "live_recurrent_track_as_pad",
        "pad rows write a track into recurrent slot 0, which is a request's",
        ("R33",),
        _padded("recurrent_tracks", pad=0),
    ),
    Fault(
        "stale_column_tail",
        "columns that a narrow table does not have keep the pages of an earlier step",
        ("R34",),
        (Patch(staging.TableCut, "copy", _stale_margin), Patch(kernel, "_fill_margin", replaced(nothing))),
    ),
    Fault(
        "live_page_as_pad",
        "the tables of pad rows name a page of a request",
        ("R34",),
        _padded("paged_tables", "flat_tables", pad=1),
    ),
    Fault(
        "stale_offset_as_pad",
        "the compact tables of pad rows begin at some request's offset",
        ("R34",),
        _padded("paged_offsets", pad=3),
    ),
    Fault(
        "live_cache_slot_as_pad",
        "pad tokens write their keys and values into a request's page",
        ("R35",),
        _padded("cache_locations", pad=2),
    ),
    Fault(
        "idle_step_unpadded",
        "a step without live rows leaves the buffers as they are",
        ("R37",),
        (Patch(staging.Staging, "stage", _idle_untouched), Patch(Packing, "stage", _idle_untouched)),
    ),
    Fault(
        "group_dropped",
        "a cache group that the caller left out keeps the tables of an earlier step",
        ("R37",),
        (Patch(sources.Entry, "_take_groups", _forgiving_groups),),
    ),
    Fault(
        "one_row_for_all",
        "a source of a single row is taken for every live row",
        ("R28",),
        (Patch(sources.Demand, "accepts", _any_rows),),
    ),
    Fault(
        "unknown_source_ignored",
        "a source for a buffer that is not there is passed over",
        ("R37",),
        (Patch(sources.Intake, "take", _known_only),),
    ),
    Fault(
        "caller_tensor_written",
        "a source is emptied once it was copied",
        ("R41",),
        (Patch(staging.Cut, "write", _emptied_source), Patch(Packing, "stage", _emptied_sources)),
    ),
    Fault(
        "warm_up_writes_live_state",
        "dummy tokens of a warm-up write into a request's page",
        ("R12",),
        (Patch(Arena, "fill_warm", _live_cache_slot),),
    ),
    Fault(
        "unfilled_warm_up",
        "before a warm-up the rows are left as they are",
        ("R7",),
        (Patch(Arena, "fill_warm", replaced(nothing)),),
    ),
)
