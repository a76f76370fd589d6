"""The memory that graphs read: one static tensor per field, at an address that never changes (rule R21)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from tsgraph.buffers.contract import Field
from tsgraph.buffers.sources import count_rows
from tsgraph.errors import BadBatch, ContractViolation
from tsgraph.protocols.backend import Backend

Views = dict[str, torch.Tensor | dict[str, torch.Tensor]]


class Arena:
    """The static tensors of `fields`, each for `rows` requests and full of its pad: never uninitialised (fault B3).

    They are ordinary tensors even where the arena is made in inference mode, so that every mode may write them (R3).
    `memory`: tensors of the engine's own that are to be the static ones, by label, each at least so large.

    Raises: ContractViolation where one of these does not fit its field, or has no field.
    """

    def __init__(
        self, fields: Iterable[Field], rows: int, backend: Backend, memory: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        self.fields = tuple(fields)
        self.rows = rows
        self.backend = backend
        given = dict(memory or {})
        with torch.inference_mode(mode=False):
            self._whole = {field.label: self._place(field, given.pop(field.label, None)) for field in self.fields}
        if given:
            raise ContractViolation("memory", min(given), f"one of {', '.join(self._whole)}", "a buffer that is none")
        self._views: dict[int, Views] = {}
        self._counted = sorted(self.fields, key=lambda field: field.per)  # rows of requests say most: they come first

    def _place(self, field: Field, given: torch.Tensor | None) -> torch.Tensor:
        shape = (self.rows * field.rows_per_request, *field.shape)
        if given is None:
            return self.backend.allocate(shape, field.dtype, field.pad)
        self._check_memory(field, given, shape)
        return given[: shape[0]]

    def _check_memory(self, field: Field, given: torch.Tensor, shape: tuple[int, ...]) -> None:
        enough = given.shape[1:] == shape[1:] and given.shape[:1] >= shape[:1] and given.is_contiguous()
        if given.dtype is not field.dtype or not enough or not self.backend.holds(given):
            expected = f"contiguous {field.dtype} of {shape}, or more rows, on {self.backend.device}"
            got = f"{given.dtype} of {tuple(given.shape)} on {given.device}"
            raise ContractViolation("memory", field.label, expected, got)

    def head(self, field: Field, rows: int) -> torch.Tensor:
        """A new view of the first `rows` requests of `field`. Raises BadBatch where the arena has fewer."""
        if not 0 <= rows <= self.rows:
            raise BadBatch(f"the static buffers hold 0 to {self.rows} rows, not {rows}", rows=rows)
        with torch.inference_mode(mode=False):
            return self._whole[field.label][: rows * field.rows_per_request]

    def views(self, size: int) -> Views:
        """The first `size` requests of every buffer, by name; grouped ones as a dict by group.

        The same objects at each call, so that what a slot holds can be compared by identity (rule R19). Do not change
        the dicts. Raises BadBatch where the arena has fewer rows.
        """
        if size not in self._views:
            self._views[size] = nest(self.fields, {field.label: self.head(field, size) for field in self.fields})
        return self._views[size]

    def fill_pads(self, size: int) -> None:
        """Make each of the first `size` rows of every buffer a pad row."""
        for field in self.fields:
            self.head(field, size).fill_(field.pad)

    def fill_warm(self, size: int) -> None:
        """Give the first `size` rows of every buffer what rows hold in a warm-up (rule R7)."""
        for field in self.fields:
            self.head(field, size).fill_(field.pad if field.warm is None else field.warm)

    def fill_probe(self, size: int) -> None:
        """The same for the second recording of a probe: lengths, say, that are longer."""
        self.fill_warm(size)
        for field in self.fields:
            if field.probe is not None:
                self.head(field, size).fill_(field.probe)

    @contextmanager
    def saved(self) -> Iterator[None]:
        """Put the contents of every buffer back on every exit: a late capture disturbs no row written in place."""
        with torch.no_grad():
            before = {label: tensor.clone() for label, tensor in self._whole.items()}
        try:
            yield
        finally:
            with torch.no_grad():
                for label, tensor in self._whole.items():
                    tensor.copy_(before[label])

    def count_rows(self, sources: Mapping[str, Any]) -> int:
        """How many requests `sources` carry. Raises BadBatch where none of them says."""
        return count_rows(self._counted, sources)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The static tensors by label, as `tables[full]` where there are groups."""
        return dict(self._whole)

    def addresses(self) -> dict[str, int]:
        """The address of each static tensor, by label."""
        return {label: tensor.data_ptr() for label, tensor in self._whole.items()}


def nest(fields: Iterable[Field], flat: Mapping[str, torch.Tensor]) -> Views:
    """Tensors by label as tensors by name, grouped ones as a dict by group."""
    views: dict[str, Any] = {}
    for field in fields:
        if field.group is None:
            views[field.name] = flat[field.label]
        else:
            views.setdefault(field.name, {})[field.group] = flat[field.label]
    return views
