"""Bringing a call's rows into the buffers that a graph reads, all at once: checked and packed here, moved by a kernel.

Rows of the host are packed into a tray of pinned memory, rows on the device are read where they are. Where all come
from the host and nobody reads a buffer before the replay, the graph itself takes the tray and pads what is left of the
slot; otherwise one launch does, ahead of it. See docs/explanation/staging.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import Field
from tsgraph.buffers.pattern import Take, taking
from tsgraph.buffers.sources import Intake, demand_rows, roots_first
from tsgraph.buffers.steady import Place, Taking
from tsgraph.errors import BadBatch
from tsgraph.protocols.backend import Lane, Load, Stager

_LONGEST_STRIDE = (1 << 31) - 1


_OTHERS = 2
"""How many habits are kept for each number of rows besides that of the call before. To learn one takes 0.2 ms."""


def _unlike(_sources: Mapping[str, Any]) -> bool:
    """Nothing is like what was never seen."""
    return False


@attrs.define(slots=True, eq=False)
class Habit:
    """How calls alike are staged. `take`: takes sources like those of such calls; whether they are.

    `bring`: how the load is brought, by the graph or by a launch.
    """

    load: Load
    bring: Callable[[Load], None]
    take: Taking = _unlike


@attrs.define(slots=True, eq=False)
class Plan:
    """What one number of live rows takes. `habit`: that of the call before; `others`: of earlier ones, newest first."""

    intake: Intake
    habit: Habit
    others: list[Habit] = attrs.field(factory=list)

    def change(self, habit: Habit) -> None:
        """The next call will be like this one."""
        others = [each for each in self.others if each is not habit]
        self.others, self.habit = [self.habit, *others][:_OTHERS], habit


class Packing:
    """Brings the rows of a call into the first `size` rows of an arena, and never touches a row beyond.

    `inside`: whether graphs of this size have a node that does it, where all sources are on the host.
    """

    def __init__(self, arena: Arena, stager: Stager, size: int, *, inside: bool) -> None:
        arena.views(size)
        self.size, self.inside = size, inside
        self._stager, self._backend = stager, arena.backend
        self._fields = roots_first(arena.fields)
        self._groups = Counter(field.name for field in self._fields if field.group is not None)
        self._plans: dict[int, Plan] = {}
        stager.lay_out(size)

    def record(self) -> None:
        """Put the node into the recording under way, if graphs of this size have one."""
        if self.inside:
            self._stager.record(self.size)

    def stage(self, live: int, sources: Mapping[str, Any]) -> None:
        """Check every source, then have the `live` rows of each brought and the rows up to the slot's size padded.

        Sources are those of `Staging.stage`. With the next replay they are there; until then buffers hold what they
        did, unless a launch brings them. What is on the host may be changed at once, what is on the device in the
        order of its stream.

        Raises: BadBatch naming the buffer, with every buffer unchanged; what `Stager.tray` and `Stager.launch` raise.
        """
        plan = self._plans.get(live) or self._plan(live)
        habit, made = plan.habit, None
        if not habit.take(sources):
            habit, made = self._unusual(plan, sources)
        habit.bring(habit.load)
        del made  # not before the launch, which reads them

    def _plan(self, live: int) -> Plan:
        if live not in range(self.size + 1):
            raise BadBatch(f"expected 0 to {self.size} live rows, got {live!r}", expected=self.size, got=live)
        rows_of: Callable[[Field], int] = lambda field: live * field.rows_per_request  # noqa: E731
        intake = demand_rows(self._fields, rows_of, self._backend.device, idle=live == 0)
        plan = self._plans[live] = Plan(intake, self._new(live))
        return plan

    def _new(self, live: int) -> Habit:
        return Habit(self._stager.load(self.size, live), self._stager.launch)

    def _unusual(self, plan: Plan, sources: Mapping[str, Any]) -> tuple[Habit, list[torch.Tensor]]:
        """Take a call that is not like the one before: its habit, and what stands in for sources. Raises: BadBatch."""
        for habit in plan.others:
            if habit.take(sources):
                plan.change(habit)
                return habit, []
        self._stager.tray()
        taken = plan.intake.take(sources)
        if plan.habit.take is not _unlike:
            plan.change(self._new(plan.habit.load.live))
        return plan.habit, self._learn(plan.habit, sources, taken)

    def _learn(
        self, habit: Habit, sources: Mapping[str, Any], taken: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """Make a habit of how these sources are `taken`; returns what stands in for some."""
        takes: list[Take] = []
        made: list[torch.Tensor] = []
        load = habit.load
        for lane, (field, source) in enumerate(zip(self._fields, taken, strict=True)):
            borrowed = field.mirrors is not None and sources.get(field.name) is None
            if source is None or borrowed or load.live == 0:
                load.leave(lane)
            else:
                takes.append(self._take(load, lane, field, source, made))
        inside = self.inside and all(take.place != "device" for take in takes)
        habit.bring = self._stager.send if inside else self._stager.launch
        if all(take.lasting for take in takes) and {take.field.name for take in takes} == sources.keys():
            hidden = self._backend.holds if self._stager.hidden else None
            habit.take = taking(takes, load, self._stager, hidden)
        return made

    def _take(self, load: Load, lane: int, field: Field, source: torch.Tensor, made: list[torch.Tensor]) -> Take:
        columns = (source.shape[-1] if field.shape else 1) * field.dtype.itemsize
        place, readable = self._place(field, source), source
        if place == "device":
            readable = self._readable(source)
            made.append(readable)
            load.bring(lane, columns, readable.data_ptr(), strides_of(readable))
        else:
            self._stager.room(load, lane, source.shape).copy_(source.detach())
            load.bring(lane, columns)
        return Take(lane, field, source, place, self._groups[field.name], lasting=readable is source)

    def _place(self, field: Field, source: torch.Tensor) -> Place:
        if self._backend.holds(source):
            return "device"
        if not (says_all(source) and has_bytes(source)):
            return "strided"
        if field.column_pad is not None:
            return "ragged"
        return "dense" if source.is_contiguous() else "strided"

    def _readable(self, source: torch.Tensor) -> torch.Tensor:
        """`source` as a kernel can read it: itself, or a dense copy where its strides or its class say too much."""
        if says_all(source) and has_strides(source) and has_bytes(source):
            return source
        with torch.no_grad():
            return self._backend.allocate(source.shape, source.dtype, 0).copy_(source)


def says_all(source: torch.Tensor) -> bool:
    """Whether a tensor is its bytes: torch negates and conjugates some only when somebody reads."""
    return not (source.is_neg() or source.is_conj())


def has_bytes(source: torch.Tensor) -> bool:
    """Whether they are its own, as of a subclass that wraps another tensor they are not."""
    try:
        return source.data_ptr() != 0 or source.numel() == 0
    except RuntimeError:
        return False


def has_strides(source: torch.Tensor) -> bool:
    """Whether rows, lines and elements of `source` are each one stride apart, as a kernel is told them."""
    sizes, strides = source.shape[1:-1], source.stride()[1:-1]
    even = all(strides[at] == sizes[at + 1] * strides[at + 1] for at in range(len(sizes) - 1))
    return even and all(stride * source.itemsize <= _LONGEST_STRIDE for stride in source.stride()[1:])


def strides_of(source: torch.Tensor) -> tuple[int, int, int]:
    """Bytes from a row of `source` to the next, from a line of it, and from an element."""
    item, strides = source.itemsize, source.stride()
    line = strides[-2] if len(strides) > 2 else 0
    return strides[0] * item, line * item, (strides[-1] if len(strides) > 1 else 1) * item


def lanes_of(arena: Arena) -> list[Lane]:
    """The static buffers of an arena as a stager sees them, in the order in which sources are taken."""
    fields, tensors = roots_first(arena.fields), arena.tensors()
    places = {(field.name, field.group): place for place, field in enumerate(fields)}
    return [_lane(field, tensors[field.label], places) for field in fields]


def _lane(field: Field, target: torch.Tensor, places: Mapping[tuple[str, str | None], int]) -> Lane:
    return Lane(
        name=field.label,
        target=target,
        per_row=field.rows_per_request,
        pad=field.pad,
        column_pad=field.column_pad,
        mirrors=None if field.mirrors is None else places[field.mirrors, field.group],
        in_place=field.source == "engine",
    )
