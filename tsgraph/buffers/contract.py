"""What a buffer is: the short door's declarations, and fields: buffers with every number filled in.

No project agrees with another on pads (faults B7, B9, B10, Q1), so there is no default one: each buffer declares the
value that its readers skip or map to a sink, and each reader declares which values it honours.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import attrs
import torch

from tsgraph.errors import BadBatch, ContractViolation
from tsgraph.keys import CALL_WORDS, Geometry
from tsgraph.spec.model import Buffer, Pad, Per, Reader

WHY_PADS = (
    "a slot computes its pad rows too: without a declared value they act on what an earlier batch left there; "
    "declare one that every reader skips or that points at a sink"
)

Warm = float | Literal["tokens_per_request"]
Probe = float | Literal["context"]


def _dimensions(shape: Iterable[int]) -> tuple[int, ...]:
    return tuple(shape)


def _readers(read_by: Iterable[Reader]) -> tuple[Reader, ...]:
    return tuple(read_by)


def _sinks(sink: int | Iterable[int] | None) -> tuple[int, ...] | None:
    if sink is None:
        return None
    return (sink,) if isinstance(sink, int) else tuple(sorted(set(sink)))


# -- the short door ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Rows:
    """One input with a leading dimension of rows, kept in a static buffer. `pad` is required (faults B2, B3).

    The words are those of `tsgraph.spec.model.Buffer`; `shape` is the trailing dimensions, in elements.

    Raises: ContractViolation where a word has no meaning or the pad is missing.
    """

    dtype: torch.dtype
    pad: float = cast("float", None)
    shape: tuple[int, ...] = attrs.field(default=(), converter=_dimensions)
    column_pad: float | None = None
    per: Per = "request"
    source: Literal["call", "engine"] = "call"
    warm: Warm | None = None
    probe: Probe | None = None
    read_by: tuple[Reader, ...] = attrs.field(default=("graph",), converter=_readers)
    why: str = ""

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.dtype, torch.dtype):
            raise ContractViolation("Rows", "dtype", "a torch.dtype", repr(self.dtype))
        if not isinstance(self.pad, int | float):
            got = "none" if self.pad is None else repr(self.pad)
            raise ContractViolation("Rows", "pad", "a number", got, hint=WHY_PADS)
        _check_word("per", self.per, ("request", "token"))
        _check_word("source", self.source, ("call", "engine"))
        for reader in self.read_by:
            _check_word("read_by", reader, ("graph", "host", "device"))

    def buffer(self, name: str) -> Buffer:
        """This declaration as the spec's own word for it."""
        return Buffer(
            name=name,
            dtype=str(self.dtype).removeprefix("torch."),
            per=self.per,
            pad=Pad(value=self.pad),
            shape=self.shape,
            column_pad=self.column_pad,
            warm=self.warm,
            probe=self.probe,
            read_by=self.read_by,
            source=self.source,
            why=self.why,
        )


@attrs.frozen(eq=False)
class Fixed:
    """A tensor that the step gets as it is, at its own address: never staged, padded or cut.

    Raises: ContractViolation for what is no tensor.
    """

    tensor: torch.Tensor = attrs.field()

    @tensor.validator
    def _check_tensor(self, _attribute: Any, tensor: Any) -> None:
        _require_tensor("Fixed", tensor)


@attrs.frozen(eq=False)
class State:
    """A tensor that the step writes and keeps. A warm-up may write its `sink` rows only, or is undone (`restore`).

    `sink`: indices along dimension 0 that never belong to a request (rule R12, faults J1, J3, J4); an empty sequence
    allows no row at all.

    Raises: ContractViolation unless exactly one of `sink` and `restore=True` is given, and each sink is a row.
    """

    tensor: torch.Tensor = attrs.field()
    sink: tuple[int, ...] | None = attrs.field(default=None, converter=_sinks)
    restore: bool = False

    @tensor.validator
    def _check_tensor(self, _attribute: Any, tensor: Any) -> None:
        _require_tensor("State", tensor)

    def __attrs_post_init__(self) -> None:
        if (self.sink is not None) == self.restore:
            got = "both" if self.restore else "neither"
            hint = "sink: rows that no request owns; restore=True: undo what a warm-up writes"
            raise ContractViolation("State", "sink", "either sink rows or restore=True", got, hint=hint)
        rows = self.tensor.shape[0] if self.tensor.dim() else 0
        for index in self.sink or ():
            if not 0 <= index < rows:
                raise ContractViolation("State", "sink", f"row indices of a tensor of {rows} rows", str(index))


def as_buffers(inputs: Mapping[str, Rows]) -> dict[str, Buffer]:
    """The short door's declarations as a spec's buffers. Raises ContractViolation for what is no `Rows`."""
    for name, declared in inputs.items():
        if not isinstance(declared, Rows):
            raise ContractViolation("inputs", name, "Rows", type(declared).__name__)
    return {name: declared.buffer(name) for name, declared in inputs.items()}


def _require_tensor(owner: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ContractViolation(owner, "tensor", "a torch.Tensor", type(tensor).__name__)


def _check_word(member: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise ContractViolation("Rows", member, f"one of {', '.join(known)}", repr(word))


# -- fields -----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Field:
    """One static tensor with every number filled in: `rows · rows_per_request` leading entries of `shape`.

    `pad`, `column_pad`, `warm` and `probe` are Python numbers that `dtype` can hold. `warm` None is the pad, `probe`
    None is `warm`.
    """

    name: str
    dtype: torch.dtype
    per: Per
    pad: float
    group: str | None = None
    rows_per_request: int = 1
    shape: tuple[int, ...] = ()
    column_pad: float | None = None
    warm: float | None = None
    probe: float | None = None
    read_by: tuple[Reader, ...] = ("graph",)
    source: Literal["call", "engine"] = "call"
    mirrors: str | None = None

    @property
    def label(self) -> str:
        """How messages and address tables call it: the buffer's name, with the group where there is one."""
        return self.name if self.group is None else f"{self.name}[{self.group}]"


def resolve_fields(buffers: Mapping[str, Buffer], geometry: Geometry) -> tuple[Field, ...]:
    """The fields of `buffers`, in order: one each, or one per cache group of a grouped buffer.

    Raises: ContractViolation naming the buffer where `geometry` lacks an extent, sink or group that it names, or where
    it mirrors what is not there; BadBatch where its dtype cannot hold a number declared for it.
    """
    resolver = _Resolver(buffers, geometry)
    fields = tuple(field for buffer in buffers.values() for field in resolver.fields(buffer))
    _check_mirrors(fields)
    return fields


@attrs.frozen
class _Resolver:
    """Fills the numbers of one geometry into buffers."""

    buffers: Mapping[str, Buffer]
    geometry: Geometry

    def fields(self, buffer: Buffer) -> list[Field]:
        if buffer.name in CALL_WORDS and buffer.source == "call":
            hint = f"give it another name than {', '.join(CALL_WORDS)}"
            raise BadBatch(f"buffer {buffer.name!r} is called like a word of a call", hint=hint)
        if buffer.column_pad is not None and not buffer.shape:
            raise BadBatch(f"buffer {buffer.name!r} has a column pad but no columns", hint="give it a shape")
        return [self._field(buffer, group) for group in self._groups(buffer)]

    def _field(self, buffer: Buffer, group: str | None) -> Field:
        dtype = _dtype_of(buffer)
        return Field(
            name=buffer.name,
            group=group,
            dtype=dtype,
            per=buffer.per,
            rows_per_request=self.geometry.tokens_per_request if buffer.per == "token" else 1,
            shape=tuple(self._extent(buffer, extent, group) for extent in buffer.shape),
            pad=_held("pad", buffer.name, self._pad(buffer), dtype),
            column_pad=_optional("column pad", buffer.name, buffer.column_pad, dtype),
            warm=_optional("warm-up value", buffer.name, self._warm(buffer), dtype),
            probe=_optional("value for probes", buffer.name, self._probe(buffer), dtype),
            read_by=buffer.read_by,
            source=buffer.source,
            mirrors=buffer.mirrors,
        )

    def _pad(self, buffer: Buffer) -> float:
        pad, sinks = buffer.pad, self.geometry.sinks
        if pad.sink is None:
            return cast("float", pad.value)
        if pad.sink not in sinks:
            raise _missing("sinks", f"the index of sink {pad.sink!r}, the pad of buffer {buffer.name!r}", sinks)
        return sinks[pad.sink]

    def _warm(self, buffer: Buffer) -> float | None:
        return self.geometry.tokens_per_request if buffer.warm == "tokens_per_request" else buffer.warm

    def _probe(self, buffer: Buffer) -> float | None:
        """A context that nobody gave is no other number than in a warm-up."""
        return self.geometry.context or None if buffer.probe == "context" else buffer.probe

    def _extent(self, buffer: Buffer, extent: int | str, group: str | None) -> int:
        size = extent if isinstance(extent, int) else self.geometry.extents.get(extent)
        if isinstance(size, Mapping):
            size = size.get(group) if group is not None else None
        whose = f"buffer {buffer.name!r}" + (f", group {group!r}" if group else "")
        if size is None:
            raise _missing("extents", f"the size of {extent!r} in {whose}", self.geometry.extents)
        if size < 0:
            raise BadBatch(f"{whose}: a dimension has 0 or more elements, not {size}", buffer=buffer.name, got=size)
        return size

    def _groups(self, buffer: Buffer) -> Sequence[str | None]:
        """The cache groups of `buffer`: those of the extents it names, or that its siblings of the same need name."""
        if not buffer.grouped:
            return (None,)
        siblings = [other for other in self.buffers.values() if other.grouped and other.needs == buffer.needs]
        found = self._group_names([buffer]) or self._group_names(siblings)
        if not found:
            expected = f"an extent that maps groups to sizes, for grouped buffer {buffer.name!r}"
            raise _missing("extents", expected, self.geometry.extents)
        return list(found)

    def _group_names(self, buffers: Iterable[Buffer]) -> dict[str, None]:
        named = [self.geometry.extents.get(extent) for b in buffers for extent in b.shape if isinstance(extent, str)]
        return {group: None for sizes in named if isinstance(sizes, Mapping) for group in sizes}


def _missing(member: str, expected: str, there: Mapping[str, Any]) -> ContractViolation:
    has = ", ".join(f"{name} = {dict(v) if isinstance(v, Mapping) else v}" for name, v in there.items()) or "none"
    return ContractViolation("Geometry", member, expected, has, hint=f"add it to Geometry({member}={{…}})")


def _dtype_of(buffer: Buffer) -> torch.dtype:
    dtype = getattr(torch, buffer.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise BadBatch(f"buffer {buffer.name!r}: torch has no dtype {buffer.dtype!r}", buffer=buffer.name)
    return dtype


def _optional(what: str, name: str, value: float | None, dtype: torch.dtype) -> float | None:
    return None if value is None else _held(what, name, value, dtype)


def _held(what: str, name: str, value: float, dtype: torch.dtype) -> float:
    """`value` as the Python number that `dtype` holds; rounding of fractions is fine, any other change is not."""
    if not isinstance(value, int | float):
        raise BadBatch(f"buffer {name!r}: its {what} must be a number, not {value!r}", hint=WHY_PADS, buffer=name)
    if not _fits(value, dtype):
        raise BadBatch(f"buffer {name!r}: {dtype} cannot hold its {what} {value}", buffer=name, got=value)
    if dtype == torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point or dtype.is_complex else int(value)


def _fits(value: float, dtype: torch.dtype) -> bool:
    if dtype.is_floating_point or dtype.is_complex:
        return _fits_float(float(value), dtype.to_real())
    least, most = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return math.isfinite(value) and int(value) == value and least <= value <= most


def _fits_float(value: float, dtype: torch.dtype) -> bool:
    if math.isfinite(value):
        return abs(value) <= torch.finfo(dtype).max
    held = torch.tensor(value, dtype=torch.float64).to(dtype).double().item()
    return math.isnan(held) if math.isnan(value) else held == value


def _check_mirrors(fields: Sequence[Field]) -> None:
    """A mirror takes another's rows as they are, so both have the same groups, dtype and shape."""
    forms: dict[str, dict[str | None, str]] = {}
    for field in fields:
        forms.setdefault(field.name, {})[field.group] = _form(field)
    mirrors = {field.name: field.mirrors for field in fields if field.mirrors is not None}
    for name, mirrored in mirrors.items():
        if mirrored in mirrors or forms.get(mirrored) != forms[name]:
            got = "a mirror" if mirrored in mirrors else _listed(forms.get(mirrored, {}))
            expected = f"{mirrored!r}, which it mirrors, to be {_listed(forms[name])} like itself"
            raise ContractViolation("Buffer", name, expected, got)


def _listed(forms: Mapping[str | None, str]) -> str:
    return "; ".join(form if group is None else f"{group}: {form}" for group, form in forms.items()) or "nothing"


def _form(field: Field) -> str:
    return f"{field.dtype} of shape {field.shape} per {field.per}"


# -- collaborators ----------------------------------------------------------------------------------------------------


def check_honoured(fields: Iterable[Field], protocol_name: str, honours: Mapping[str, Collection[float]]) -> None:
    """Hold the pads that a collaborator honours against those declared, of rows and of columns (faults B10, Q1).

    Buffers that it names and that are not there are no concern: it may serve engines that have them.

    Raises: ContractViolation naming buffer and collaborator.
    """
    for field in fields:
        honoured = honours.get(field.name)
        if honoured is None:
            continue
        for what, pad in (("pad", field.pad), ("column pad", field.column_pad)):
            if pad is not None and not any(_same_number(pad, other) for other in honoured):
                raise _not_honoured(field, protocol_name, f"{what} {pad}", honoured)


def _same_number(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _not_honoured(field: Field, protocol_name: str, pad: str, honoured: Collection[float]) -> ContractViolation:
    listed = ", ".join(map(str, honoured)) or "no pad"
    return ContractViolation(
        protocol_name,
        "honours",
        f"{pad}, which buffer {field.label!r} declares",
        f"{listed} for it",
        hint=f"declare a pad of {field.name!r} that {protocol_name} honours, or honour this one",
    )
