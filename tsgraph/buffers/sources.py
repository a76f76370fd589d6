"""What a call must pass: every source is checked, by name, before anything is written.

A check on the way in is one boolean expression per tensor; only a source that fails it is looked at again, to say why.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import torch

from tsgraph.buffers.contract import Field
from tsgraph.errors import BadBatch


def roots_first(fields: Sequence[Field]) -> list[Field]:
    """`fields` with mirrors last, the groups of a buffer together: what is mirrored is checked, and blamed, first."""
    places = {name: place for place, name in enumerate(dict.fromkeys(field.name for field in fields))}
    return sorted(fields, key=lambda field: (field.mirrors is not None, places[field.name]))


def count_rows(fields: Iterable[Field], sources: Mapping[str, Any]) -> int:
    """How many requests `sources` carry, by the first of `fields` that has a source.

    Raises: BadBatch where none has one, or its tokens are no whole number of requests.
    """
    for field in fields:
        source = _source_of(field, sources)
        if isinstance(source, torch.Tensor) and source.dim():
            return _requests(field, source.shape[0])
    raise BadBatch("no source says how many rows there are", hint="pass rows=…, or a tensor for each buffer")


def count_tokens(fields: Iterable[Field], sources: Mapping[str, Any], rows: int) -> int:
    """The leading entries of the first per-token source; without any, those of a decode step of `rows` requests."""
    by_token = [field for field in fields if field.per == "token"]
    for field in by_token:
        source = _source_of(field, sources)
        if isinstance(source, torch.Tensor) and source.dim():
            return source.shape[0]
    return rows * max((field.rows_per_request for field in by_token), default=1)


def _source_of(field: Field, sources: Mapping[str, Any]) -> Any:
    source = sources.get(field.name)
    return source.get(field.group) if field.group is not None and isinstance(source, Mapping) else source


def _requests(field: Field, leading: int) -> int:
    rows, rest = divmod(leading, field.rows_per_request)
    if rest:
        raise BadBatch(
            f"buffer {field.label!r}: {leading} token rows are not {field.rows_per_request} tokens for each request",
            hint="pass rows=… where requests have different numbers of tokens",
            buffer=field.name,
            got=leading,
        )
    return rows


@attrs.define(slots=True, eq=False)
class Demand:
    """What one field takes in a step: a strided tensor of its dtype, `rows` leading entries, on the host or `device`.

    `wider`: whether columns may be more than the field has, which only a copy-free eager step can serve.
    """

    field: Field
    rows: int
    device: torch.device
    wider: bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    ragged: bool

    @classmethod
    def of(cls, field: Field, rows: int, device: torch.device, *, wider: bool) -> Demand:
        """The demand of `field` for `rows` leading entries."""
        return cls(field, rows, device, wider, field.dtype, (rows, *field.shape), field.column_pad is not None)

    def accepts(self, source: Any) -> bool:
        """Whether `source` fits. With no rows, whatever is empty does."""
        if not isinstance(source, torch.Tensor):
            return False
        if (source.shape != self.shape or source.dtype is not self.dtype) and not self._tolerates(source):
            return False
        return source.layout is torch.strided and (source.is_cpu or source.device == self.device)

    def _tolerates(self, source: torch.Tensor) -> bool:
        if source.dtype is self.dtype and self.ragged and self._narrow(source.shape):
            return True
        return self.rows == 0 and source.numel() == 0

    def _narrow(self, shape: torch.Size) -> bool:
        """Whether only the last dimension, the columns, differs, and may."""
        return self._table(shape) and (self.wider or shape[-1] < self.shape[-1])

    def _table(self, shape: torch.Size) -> bool:
        return len(shape) == len(self.shape) and shape[:-1] == self.shape[:-1]

    def refusal(self, source: Any) -> BadBatch:
        """The error for a `source` that does not fit: the first difference, in the words of the declaration."""
        field, (expected, got, hint) = self.field, self._difference(source)
        whose = f"buffer {field.name!r}" if field.group is None else f"buffer {field.name!r}, group {field.group!r}"
        facts = {"buffer": field.name, "group": field.group, "expected": expected, "got": got}
        return BadBatch(f"{whose}: expected {expected}, got {got}", hint=hint, **facts)

    def _difference(self, source: Any) -> tuple[str, str, str]:
        if not isinstance(source, torch.Tensor):
            return f"a tensor of {self.form}", type(source).__name__, "make a tensor of it first"
        if source.dtype is not self.dtype:
            return str(self.dtype), str(source.dtype), f"convert it with .to({self.dtype})"
        if source.layout is not torch.strided:
            return "a strided tensor", str(source.layout), "convert it with .to_dense()"
        shape = source.shape
        if shape == self.shape or (self.ragged and self._narrow(shape)):
            return f"a tensor on cpu or {self.device}", f"one on {source.device}", ""
        return self._shape_difference(shape)

    def _shape_difference(self, shape: torch.Size) -> tuple[str, str, str]:
        if len(shape) == len(self.shape) and shape[0] != self.rows:
            per, hint = self.field.per, "a buffer per token has tokens-per-request entries for each live row"
            return f"{self.rows} {per} rows", str(shape[0]), hint if per == "token" else ""
        if self.ragged and self._table(shape):
            hint = "make the extent of its columns as large as the widest table"
            return f"at most {self.shape[-1]} columns", str(shape[-1]), hint
        return f"shape {self.shape}", str(tuple(shape)), ""

    @property
    def form(self) -> str:
        """What it takes, in words."""
        return f"{self.dtype} and shape {self.shape}"


@attrs.define(slots=True, eq=False)
class Entry:
    """One buffer of a call: its demands (one, or one per group), whose source stands in, whether it may be left out."""

    name: str
    demands: Sequence[Demand]
    stand_in: str | None
    optional: bool

    def take(self, sources: Mapping[str, Any], taken: list[torch.Tensor | None]) -> None:
        """Append one checked tensor per demand, or None for each where nothing was passed and nothing need be."""
        source = sources.get(self.name)
        if source is None and self.stand_in is not None:
            source = sources.get(self.stand_in)
        demand = self.demands[0]
        if source is None:
            taken += self._nothing()
        elif demand.field.group is not None:
            taken += self._take_groups(source)
        elif demand.accepts(source):
            taken.append(source)
        else:
            raise demand.refusal(source)

    def _nothing(self) -> Sequence[None]:
        if not self.optional:
            raise BadBatch(
                f"buffer {self.name!r} was not supplied: expected a tensor of {self.demands[0].form}, got nothing",
                hint=f'pass {self.name}=…, or declare source = "engine" if it is written in place',
                buffer=self.name,
            )
        return (None,) * len(self.demands)

    def _take_groups(self, source: Any) -> Sequence[torch.Tensor | None]:
        groups = [demand.field.group for demand in self.demands]
        listed = ", ".join(map(str, groups))
        if not isinstance(source, Mapping):
            raise self._wrong(f"expected a mapping from group ({listed}) to tensor, got {type(source).__name__}")
        if not source and self.optional:
            return self._nothing()
        for group in source.keys() - groups:
            near = suggest(str(group), map(str, groups))
            raise self._wrong(f"there is no group {group!r}; its groups are {listed}", near)
        for demand in self.demands:
            taken = source.get(demand.field.group)
            if taken is None:
                raise self._wrong(f"group {demand.field.group!r} was not supplied; its groups are {listed}")
            if not demand.accepts(taken):
                raise demand.refusal(taken)
        return [source[group] for group in groups]

    def _wrong(self, what: str, hint: str = "") -> BadBatch:
        return BadBatch(f"buffer {self.name!r}: {what}", hint=hint, buffer=self.name)


@attrs.define(slots=True, eq=False)
class InPlace:
    """One buffer that the engine wrote before the call: a source for it would be a second truth."""

    name: str
    demands: Sequence[Demand]

    def take(self, sources: Mapping[str, Any], taken: list[torch.Tensor | None]) -> None:
        """Append None for each demand. Raises BadBatch where a source is passed all the same."""
        if sources.get(self.name) is not None:
            raise BadBatch(
                f"buffer {self.name!r} is written in place by the engine: expected no source, got one",
                hint=f'leave {self.name}=… out, or declare source = "call"',
                buffer=self.name,
            )
        taken += (None,) * len(self.demands)


@attrs.define(slots=True, eq=False)
class Intake:
    """Everything that a call of one number of rows must pass."""

    entries: Sequence[Entry | InPlace]
    names: frozenset[str]

    def take(self, sources: Mapping[str, Any]) -> list[torch.Tensor | None]:
        """One tensor or None per field, in the order of the fields. Raises BadBatch; changes nothing."""
        if not sources.keys() <= self.names:
            raise self._unknown(sources)
        taken: list[torch.Tensor | None] = []
        for entry in self.entries:
            entry.take(sources, taken)
        return taken

    def _unknown(self, sources: Mapping[str, Any]) -> BadBatch:
        name = min(sources.keys() - self.names, key=str)
        known = ", ".join(entry.name for entry in self.entries) or "none"
        what = f"there is no buffer {name!r}; the buffers are {known}"
        return BadBatch(what, hint=suggest(name, self.names), buffer=name)


def demand_rows(
    fields: Sequence[Field], rows_of: Callable[[Field], int], device: torch.device, *, idle: bool, wider: bool = False
) -> Intake:
    """The intake of `fields`, each with `rows_of(field)` leading entries. `idle`: no rows, so all may be left out."""
    sources = {field.name: field.source for field in fields}
    by_name: dict[str, list[Field]] = {}
    for field in fields:
        by_name.setdefault(field.name, []).append(field)
    entries = []
    for name, parts in by_name.items():
        demands = [Demand.of(field, rows_of(field), device, wider=wider) for field in parts]
        entries.append(_entry(name, demands, sources, idle=idle))
    return Intake(entries, frozenset(by_name))


def _entry(name: str, demands: Sequence[Demand], sources: Mapping[str, str], *, idle: bool) -> Entry | InPlace:
    field = demands[0].field
    if field.source == "engine":
        return InPlace(name, demands)
    mirrors_engine = field.mirrors is not None and sources[field.mirrors] == "engine"
    stand_in = None if mirrors_engine else field.mirrors
    return Entry(name, demands, stand_in, optional=idle or mirrors_engine)


def suggest(name: str, known: Iterable[str]) -> str:
    """A hint with the known name that `name` looks like, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""
