"""Bringing a call's rows into the buffers that a graph reads: check all, copy the live rows, pad the rest.

Compiled for one slot: views are cut once per number of live rows and kept, so that a call makes no objects but copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import torch

from tsgraph.buffers.arena import Arena, Views, nest
from tsgraph.buffers.contract import Field
from tsgraph.buffers.sources import Intake, count_tokens, demand_rows, roots_first
from tsgraph.errors import BadBatch


@attrs.define(slots=True, eq=False)
class Cut:
    """One field at one number of live rows: `head` takes them, `tail` the pad; `origin` is what head mirrors in place.

    The tail is filled at every call, since the step itself may have written there.
    """

    head: torch.Tensor | None
    tail: torch.Tensor | None
    pad: float
    origin: torch.Tensor | None = None

    def write(self, source: torch.Tensor | None) -> None:
        """Copy `source` (None: the origin, if any) to the head and pad the tail."""
        if source is None:
            source = self.origin
        if source is not None and self.head is not None:
            self.copy(self.head, source)
        if self.tail is not None:
            self.tail.fill_(self.pad)

    def copy(self, head: torch.Tensor, source: torch.Tensor) -> None:
        """Copy `source` to `head`, of the same shape."""
        copy_rows(head, source)


@attrs.define(slots=True, eq=False)
class TableCut(Cut):
    """A field whose sources may have fewer columns: the rest of each live row gets the column pad (fault A5)."""

    column_pad: float = 0
    width: int = -1
    columns: tuple[torch.Tensor, torch.Tensor] | None = None

    def copy(self, head: torch.Tensor, source: torch.Tensor) -> None:
        """Copy `source` to the first columns of `head` and pad the others. The last width's views are kept."""
        width = source.shape[-1]
        if width != self.width or self.columns is None:
            self.width, self.columns = width, (head[..., :width], head[..., width:])
        body, margin = self.columns
        copy_rows(body, source)
        margin.fill_(self.column_pad)


def copy_rows(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy without gradients; without waiting only from pinned host memory, the one place where that is sound."""
    if source.requires_grad:
        source = source.detach()
    target.copy_(source, non_blocking=not target.is_cpu and source.is_cpu and source.is_pinned())


@attrs.define(slots=True, eq=False)
class Plan:
    """What one number of live rows takes and writes, field by field."""

    intake: Intake
    cuts: Sequence[Cut]


class Staging:
    """Brings the rows of a call into the first `size` rows of an arena, and never touches a row beyond."""

    def __init__(self, arena: Arena, size: int) -> None:
        arena.views(size)
        self.size = size
        self._arena = arena
        self._fields = roots_first(arena.fields)
        self._plans: dict[int, Plan] = {}

    def record(self) -> None:
        """Copies are made before a replay: there is nothing to put into the graph."""

    def stage(self, live: int, sources: Mapping[str, Any]) -> None:
        """Check every source, then copy the `live` rows of each and pad the rows up to the slot's size.

        `sources`: per buffer a host or device tensor with `live` leading entries (times the tokens per request for one
        per token), or a mapping from group to such tensors; with 0 live rows they may be left out. A buffer that the
        engine writes in place has no source: its live rows stay. A mirror takes the source of what it mirrors, unless
        it has its own. Sources must not be other memory of the arena.

        Raises: BadBatch naming the buffer, with every buffer unchanged.
        """
        plan = self._plans.get(live)
        if plan is None:
            plan = self._plans[live] = self._plan(live)
        for cut, source in zip(plan.cuts, plan.intake.take(sources), strict=True):
            cut.write(source)

    def _plan(self, live: int) -> Plan:
        if live not in range(self.size + 1):
            raise BadBatch(f"expected 0 to {self.size} live rows, got {live!r}", expected=self.size, got=live)
        device = self._arena.backend.device
        intake = demand_rows(self._fields, lambda field: live * field.rows_per_request, device, idle=live == 0)
        return Plan(intake, [self._cut(field, live) for field in self._fields])

    def _cut(self, field: Field, live: int) -> Cut:
        with torch.inference_mode(mode=False):
            whole, rows = self._arena.head(field, self.size), live * field.rows_per_request
            head = whole[:rows] if live else None
            tail = whole[rows:] if live < self.size else None
        root = engine_root(self._fields, field)
        origin = self._arena.head(root, live) if root is not None else None
        if field.column_pad is None:
            return Cut(head, tail, field.pad, origin)
        return TableCut(head, tail, field.pad, origin, field.column_pad)


def engine_root(fields: Iterable[Field], field: Field) -> Field | None:
    """What `field` mirrors, where the engine writes that in place; else None."""
    for other in fields:
        if (other.name, other.group, other.source) == (field.mirrors, field.group, "engine"):
            return other
    return None


def eager_inputs(
    arena: Arena, rows: int, sources: Mapping[str, Any], *, tokens: int | None = None
) -> tuple[Views, int]:
    """The buffers of an eager step of `rows` requests, by name, and its tokens. Checked like `Staging.stage`.

    Sources are passed on as they are: only those on the host are copied to the device, only tables narrower than
    declared are widened with the column pad (wider ones fit: no static buffer limits them), and a mirror gets a copy of
    its own. `tokens`: leading entries of each source per token (None: any number, the same for all).

    Raises: BadBatch naming the buffer, with nothing changed.
    """
    fields = roots_first(arena.fields)
    tokens = count_tokens(fields, sources, rows) if tokens is None else tokens
    eager = _Eager(arena, rows, tokens, sources)
    taken = demand_rows(fields, eager.rows_of, arena.backend.device, idle=rows == 0, wider=True).take(sources)
    flat = {field.label: eager.input(field, source) for field, source in zip(fields, taken, strict=True)}
    return nest(arena.fields, flat), tokens


@attrs.frozen(eq=False)
class _Eager:
    """One eager step: its rows, and what becomes of each field's source."""

    arena: Arena
    rows: int
    tokens: int
    sources: Mapping[str, Any]

    def rows_of(self, field: Field) -> int:
        return self.tokens if field.per == "token" else self.rows

    def input(self, field: Field, source: torch.Tensor | None) -> torch.Tensor:
        if source is None:
            return self._unpassed(field)
        if self.rows_of(field) == 0:
            return self._new(field, field.pad)
        borrowed = field.mirrors is not None and self.sources.get(field.name) is None
        narrow = field.column_pad is not None and source.shape[-1] < field.shape[-1]
        if borrowed or narrow or not self.arena.backend.holds(source):
            return self._copied(field, source)
        return source

    def _unpassed(self, field: Field) -> torch.Tensor:
        """What the engine wrote in place, a copy of it for a mirror, or nothing for no rows."""
        if field.source == "engine":
            return self._in_place(field)
        root = engine_root(self.arena.fields, field)
        return self._new(field, field.pad) if root is None else self._copied(field, self._in_place(root))

    def _in_place(self, field: Field) -> torch.Tensor:
        leading = self.rows_of(field)
        whole = self.arena.head(field, self.arena.rows)
        if leading > len(whole):
            raise BadBatch(
                f"buffer {field.label!r} is written in place and holds {len(whole)} {field.per} rows, not {leading}",
                hint="make the largest size larger, or pass it with the call",
                buffer=field.name,
            )
        return whole[:leading]

    def _copied(self, field: Field, source: torch.Tensor) -> torch.Tensor:
        width = max(source.shape[-1], field.shape[-1]) if field.column_pad is not None else None
        copy = self._new(field, field.pad if field.column_pad is None else field.column_pad, width)
        copy_rows(copy if width is None else copy[..., : source.shape[-1]], source)
        return copy

    def _new(self, field: Field, fill: float, width: int | None = None) -> torch.Tensor:
        shape = field.shape if width is None else (*field.shape[:-1], width)
        return self.arena.backend.allocate((self.rows_of(field), *shape), field.dtype, fill)
