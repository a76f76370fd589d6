"""The ground that collaborators are tried on: static buffers as a runtime has them, with garbage wherever it may be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import attrs
import torch

from tsgraph.backends.choice import choose_backend
from tsgraph.buffers.arena import Arena, nest
from tsgraph.buffers.contract import Field, Rows, as_buffers, resolve_fields
from tsgraph.buffers.hostile import hostile_value
from tsgraph.keys import DEFAULT_VARIANT, Batch, Geometry, Mode
from tsgraph.protocols.backend import Backend
from tsgraph.protocols.collaborators import MetadataSetup
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import Spec

Values = Callable[[str, int, int], torch.Tensor]
"""What live rows hold: from a buffer's name (or `name[group]`), leading entries and the step's number to a tensor."""


@attrs.frozen(eq=False)
class Ground:
    """Static buffers, the sizes of slots, and what live rows hold. Made by `of` or `for_spec`."""

    arena: Arena
    sizes: Sequence[int]
    tokens_per_request: int
    values: Values | None = None

    @classmethod
    def of(
        cls,
        inputs: Mapping[str, Rows],
        *,
        sizes: Sequence[int] = (1, 2, 4),
        tokens_per_request: int = 1,
        backend: Backend | None = None,
        values: Values | None = None,
    ) -> Ground:
        """A ground of `inputs`, in the words of `GraphRuntime.for_step`, by default on the emulated backend.

        `values(name, entries, step)`: what live rows hold; by default numbers from 1 to 3, different at each step.
        """
        geometry = Geometry(rows=max(sizes), tokens_per_request=tokens_per_request)
        fields = resolve_fields(as_buffers(inputs), geometry)
        return cls._of(fields, sizes, geometry, backend, values)

    @classmethod
    def for_spec(
        cls,
        spec: Spec | str,
        geometry: Geometry,
        *,
        sizes: Sequence[int] = (1, 2, 4),
        present: Collection[str] = (),
        backend: Backend | None = None,
        values: Values | None = None,
    ) -> Ground:
        """A ground of the buffers of `spec`, as an engine of this `geometry` has them that has the `present` parts."""
        law = load_spec(spec) if isinstance(spec, str) else spec
        buffers = law.restricted_to(frozenset(present) | frozenset(geometry.conventions)).buffers
        return cls._of(resolve_fields(buffers, geometry), sizes, geometry, backend, values)

    @classmethod
    def _of(
        cls,
        fields: Sequence[Field],
        sizes: Sequence[int],
        geometry: Geometry,
        backend: Backend | None,
        values: Values | None,
    ) -> Ground:
        place = choose_backend("emulated", [], "cpu") if backend is None else backend
        sizes = tuple(sorted(sizes))
        arena = Arena(fields, sizes[-1] + 1, place)  # the largest size, too, has a row beyond it
        return cls(arena, sizes, geometry.tokens_per_request, values)

    @property
    def backend(self) -> Backend:
        """The device."""
        return self.arena.backend

    def setup(self, lengths: str = "seq_lens") -> MetadataSetup:
        """What metadata of this ground are made for; `lengths` names the static buffer that they may alias."""
        rows, held = self.arena.rows, self.arena.tensors()
        return MetadataSetup(rows=rows, tokens_per_request=self.tokens_per_request, lengths=held.get(lengths))

    def batch(self, rows: int, variant: str = DEFAULT_VARIANT) -> Batch:
        """The batch of a slot of `rows` rows: views of the static buffers."""
        return Batch(rows, rows * self.tokens_per_request, Mode.DECODE, variant, self.arena.views(rows))

    def eager_batch(self, rows: int, step: int = 0) -> Batch:
        """The batch of an eager step of `rows` rows, as many as one likes, in memory of its own."""
        flat = {field.label: self._eager(field, rows, step) for field in self.arena.fields}
        buffers = nest(self.arena.fields, flat)
        return Batch(rows, rows * self.tokens_per_request, Mode.DECODE, DEFAULT_VARIANT, buffers)

    def stage(self, rows: int, live: int, step: int, *, pads: Mapping[str, float] | None = None) -> Batch:
        """The batch of `rows` rows as a replay finds it: `live` rows of this `step`, then pads, then garbage.

        `pads`: other pads than those declared, by buffer.
        """
        for field in self.arena.fields:
            per = field.rows_per_request
            whole = self.arena.head(field, self.arena.rows)
            whole.fill_(hostile_value(field.dtype))
            whole[: rows * per].fill_((pads or {}).get(field.name, field.pad))
            whole[: live * per].copy_(self._values(field, live * per, step))
        return self.batch(rows)

    def lives(self) -> list[tuple[int, int]]:
        """Every size with every number of live rows that it may carry."""
        return [(rows, live) for rows in self.sizes for live in range(rows + 1)]

    def _eager(self, field: Field, rows: int, step: int) -> torch.Tensor:
        entries = rows * field.rows_per_request
        made = self.backend.allocate((entries, *field.shape), field.dtype, field.pad)
        return made.copy_(self._values(field, entries, step))

    def _values(self, field: Field, entries: int, step: int) -> torch.Tensor:
        if self.values is not None:
            return self.values(field.label, entries, step)
        shape = torch.Size((entries, *field.shape))
        numbers = torch.arange(shape.numel()) * (step % 5 + 1)
        return (1 + (numbers + step) % 3).reshape(shape).to(field.dtype)
