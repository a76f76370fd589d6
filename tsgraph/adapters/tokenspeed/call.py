"""One call of the wrapper: what metadata take from it, padded to a slot's rows by the pads of the spec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch.nn.functional import pad as pad_tensor

from tsgraph.errors import BadBatch, InternalError
from tsgraph.spec.model import Spec

RECURRENT = {
    "mamba_pool_indices": "recurrent_slots",
    "mamba_cow_src_indices": "recurrent_sources",
    "mamba_branching_seqlens": "recurrent_branches",
    "mamba_track_pool_indices": "recurrent_tracks",
}
"""The arguments with a recurrent index for each row, and the buffers of the spec that say their pads."""

GROUPED = {"paged": "paged_tables", "offsets": "paged_offsets", "flat": "flat_tables"}
"""The arguments with a tensor for each cache group, likewise."""


@attrs.define(eq=False, kw_only=True)
class Call:
    """What one call passes. `recurrent`: the arguments that it gave; `extend`: what only an eager init takes."""

    bs: int
    ctx: Any
    sampling_info: Any
    req_to_page: Any
    recurrent: Mapping[str, Any]
    paged: Any = None
    offsets: Any = None
    flat: Any = None
    extend: Mapping[str, Any] = attrs.field(factory=dict)
    _rows_of_context: int | None = attrs.field(default=None, init=False)

    def widen_context(self, rows: int) -> None:
        """Let the context have `rows` rows until it is restored."""
        if rows != self.bs:
            self._rows_of_context, self.ctx.bs = self.ctx.bs, rows

    def restore_context(self) -> None:
        """Give the context its own rows back (R41)."""
        if self._rows_of_context is not None:
            self.ctx.bs, self._rows_of_context = self._rows_of_context, None


@attrs.define(eq=False)
class Desk:
    """Where the collaborators find the call that is being served."""

    serving: Call | None = None

    @property
    def call(self) -> Call:
        """The call. Raises InternalError where none is served."""
        if self.serving is None:
            raise InternalError("metadata of a call were asked for, but no call is being served")
        return self.serving

    @contextmanager
    def serve(self, call: Call) -> Iterator[None]:
        """Serve `call` in the block; on every exit its context is as it was."""
        self.serving = call
        try:
            yield
        finally:
            self.serving = None
            call.restore_context()


@attrs.frozen
class Pads:
    """The pads of a call's arguments."""

    of: Mapping[str, float]

    @classmethod
    def said_by(cls, spec: Spec) -> Pads:
        """Those that the buffers of `spec` declare."""
        return cls({name: _value(spec, buffer) for name, buffer in (RECURRENT | GROUPED).items()})

    def padded(self, call: Call, rows: int) -> dict[str, Any]:
        """The arguments of `call`, each with `rows` rows: new tensors, or the same where there is nothing to pad.

        Raises: BadBatch naming the argument, and the group, that has another number of rows than the call (or `rows`:
        a table that is padded already is let through).
        """
        padded = {name: self._pad_groups(name, getattr(call, name), call.bs, rows) for name in GROUPED}
        recurrent = {
            name: _pad_rows(given, (call.bs,), rows, self.of[name], name) for name, given in call.recurrent.items()
        }
        return padded | {"recurrent": recurrent}

    def _pad_groups(self, name: str, groups: Mapping[str, Any] | None, live: int, rows: int) -> Any:
        if groups is None:
            return None
        pad, fits = self.of[name], (live, rows)
        padded = {group: _pad_rows(given, fits, rows, pad, name, group) for group, given in groups.items()}
        return groups if rows == live else padded


def _value(spec: Spec, buffer: str) -> float:
    pad = spec.buffers[buffer].pad
    if pad.value is None:
        raise InternalError(f"the pad of {buffer}, an argument, must be a number, not {pad}")
    return pad.value


def _pad_rows(given: Any, fits: tuple[int, ...], rows: int, pad: float, name: str, group: str | None = None) -> Any:
    """`given` with `rows` rows; what is no tensor as it is."""
    if not isinstance(given, torch.Tensor):
        return given
    if given.shape[0] not in fits:
        whose = f"{name}, group {group!r}" if group is not None else name
        what = f"{whose}: expected {' or '.join(map(str, fits))} rows, got {given.shape[0]}"
        raise BadBatch(what, hint="every table of a step has a row for each request", buffer=name, group=group)
    missing = rows - given.shape[0]
    return pad_tensor(given, (*(0, 0) * (given.dim() - 1), 0, missing), value=pad) if missing else given


def require_groups(convention: str, given: Mapping[str, Any] | None, groups: Iterable[str], live: int) -> None:
    """Refuse a step with rows that lacks a table that was recorded (R37): it would be read as an earlier step left it.

    Raises: BadBatch naming the group.
    """
    for group in groups if live else ():
        if given is None or given.get(group) is None:
            what = f"{convention} tables: group {group!r} was not supplied, and the recording reads it"
            raise BadBatch(what, hint="pass a table for every group that the pool publishes", group=group)
