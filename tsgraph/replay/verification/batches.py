"""The rows that are served: a user's own, or dummies that no engine may stumble over; and how much they show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs
import torch

from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import Field
from tsgraph.buffers.hostile import hostile_value
from tsgraph.errors import BadBatch, CallerError
from tsgraph.replay.verification.mismatch import Seen
from tsgraph.replay.verification.runs import Sources, same
from tsgraph.replay.verification.standstill import Random
from tsgraph.slots.leases import copied

Make = Callable[[int], Sources]
"""From a number of live rows to what a call passes for them."""


@attrs.define(eq=False)
class Batches:
    """Batches of every number of rows, the same ones whenever they are asked for.

    `make` may do on the host and in the engine's memory whatever the engine does before such a step, and must give the
    same at each call.
    """

    make: Make
    arena: Arena
    random: Random
    _known: dict[int, Sources] = attrs.field(factory=dict, init=False)
    _rows: dict[int, dict[str, torch.Tensor]] = attrs.field(factory=dict, init=False)
    _seen: dict[str, Seen] = attrs.field(factory=dict, init=False)

    def of(self, rows: int) -> Sources:
        """The sources of a step of `rows` live rows, made anew; nothing where there are none.

        Raises: BadBatch where they are not what they were before, or `make` raises.
        """
        if rows == 0:
            return {}
        sources = self._made(rows)
        known = self._known.get(rows)
        if known is None:
            self._note(rows, sources)
        elif not same(known, sources):
            hint = "seed whatever they are drawn from by the number of rows"
            raise BadBatch(f"inputs({rows}) gave other rows than before", hint=hint, rows=rows)
        return sources

    def reversed(self, rows: int) -> Sources:
        """The same batch with its last row first, in the buffers that the engine writes, too."""
        sources = self.of(rows)
        with torch.inference_mode():
            for field in self.arena.fields:
                if field.source == "engine":
                    head = self.arena.head(field, rows)
                    head.copy_(_flipped(head, rows))
        return {name: _by_group(source, partial(_flipped, rows=rows)) for name, source in sources.items()}

    def _made(self, rows: int) -> Sources:
        self.random.rewind()
        try:
            return self.make(rows)
        except CallerError:
            raise
        except Exception as error:
            raise BadBatch(f"inputs({rows}) raised {type(error).__name__}: {error}", rows=rows) from error

    def _note(self, rows: int, sources: Sources) -> None:
        if not isinstance(sources, Mapping):
            raise BadBatch(f"inputs({rows}) gave {type(sources).__name__}", hint="give a dict from buffer to tensor")
        self._known[rows] = copied(dict(sources))
        self._rows[rows] = {label: tensor.clone() for label, tensor in self._each(rows, sources)}
        for label, tensor in self._rows[rows].items():
            self._seen.setdefault(label, Seen()).look(tensor)

    def begin_alike(self, most: int, rows: int) -> bool:
        """Whether the first `rows` rows of the batch of `most` rows are the batch of `rows` rows. Both were made."""
        one, other = self._rows[most], self._rows[rows]
        fields = {field.label: field for field in self.arena.fields}
        return one.keys() == other.keys() and all(_begins(one[each], other[each], fields[each]) for each in other)

    def declared(self, rows: int, size: int) -> dict[str, torch.Tensor]:
        """What the first `size` rows of every buffer are to hold for these live rows, by the declarations alone."""
        held = self._rows.get(rows, {})
        labels = {field.label: field for field in self.arena.fields}
        made = {}
        for label, field in labels.items():
            root = label if label in held else attrs.evolve(field, name=field.mirrors or field.name).label
            made[label] = _padded(field, size, held.get(root), self.arena.backend.device)
        return made

    def unvaried(self) -> list[str]:
        """The buffers that held one and the same number in all rows of all batches."""
        return [label for label, seen in self._seen.items() if not seen.varied]

    def _each(self, rows: int, sources: Sources) -> Iterator[tuple[str, torch.Tensor]]:
        """Each field's live rows: what was passed, or what lies in the buffer that the engine writes."""
        for field in self.arena.fields:
            passed = sources.get(field.name)
            source = passed.get(field.group) if isinstance(passed, Mapping) else passed
            if isinstance(source, torch.Tensor):
                yield field.label, source
            elif field.source == "engine":
                yield field.label, self.arena.head(field, rows)


def _by_group(source: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A source, changed; a grouped one group by group."""
    return {group: change(each) for group, each in source.items()} if isinstance(source, Mapping) else change(source)


def _flipped(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Its rows in reverse order, the tokens of each in theirs."""
    by_row = tensor.reshape(rows, -1, *tensor.shape[1:])
    return by_row.flip(0).reshape(tensor.shape)


def _padded(field: Field, size: int, rows: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """`rows` (None: none), then pads; columns that they do not have are column pads."""
    shape = (size * field.rows_per_request, *field.shape)
    whole = torch.full(shape, field.pad, dtype=field.dtype, device=device)
    if rows is not None:
        head = whole[: len(rows)]
        head.fill_(field.pad if field.column_pad is None else field.column_pad)
        (head[..., : rows.shape[-1]] if field.shape else head).copy_(rows)
    return whole


def _begins(whole: torch.Tensor, head: torch.Tensor, field: Field) -> bool:
    """Whether `whole` begins with the rows of `head`; columns that one of them does not have are column pads."""
    rows = whole[: len(head)]
    if whole.dim() != head.dim() or len(rows) < len(head) or whole.device != head.device:
        return False
    if field.column_pad is None:
        return same(rows, head)
    width = min(rows.shape[-1], head.shape[-1])
    rest = [each[..., width:] for each in (rows, head)]
    return same(rows[..., :width], head[..., :width]) and all(bool(each.eq(field.column_pad).all()) for each in rest)


# -- dummies ----------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Dummies:
    """Rows that are legal in any engine: each is what a row of a warm-up holds, or of a probe, or what a pad row does.

    Which of these a row is depends on `seed` and its place alone.
    """

    arena: Arena
    seed: int

    def __call__(self, rows: int) -> Sources:
        """The host tensors of `rows` rows. Buffers that the engine writes in place are filled."""
        kinds = self._kinds()[:rows]
        sources: dict[str, Any] = {}
        for field in self.arena.fields:
            made = _dummy(field, kinds)
            if field.source == "engine":
                with torch.inference_mode():
                    self.arena.head(field, rows).copy_(made)
            elif field.mirrors is None:
                _set(sources, field, made)
        return sources

    def _kinds(self) -> torch.Tensor:
        """For each row which of the `_values` of a field it holds."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(3, (self.arena.rows,), generator=generator)

    def told(self) -> str:
        """What its rows hold, in words."""
        held = (f"{field.label} {' or '.join(map(str, dict.fromkeys(_values(field))))}" for field in self.arena.fields)
        return f"dummy rows, each as in a warm-up, in a probe, or a pad ({', '.join(held)})"


def _values(field: Field) -> tuple[float, float, float]:
    """What a pad row holds, a row of a warm-up, and one of a probe."""
    warm = field.pad if field.warm is None else field.warm
    return field.pad, warm, warm if field.probe is None else field.probe


def _dummy(field: Field, kinds: torch.Tensor) -> torch.Tensor:
    rows = torch.tensor(_values(field), dtype=field.dtype)[kinds.repeat_interleave(field.rows_per_request)]
    return rows.view(-1, *[1] * len(field.shape)).expand(-1, *field.shape).contiguous()


def _set(sources: dict[str, Any], field: Field, made: torch.Tensor) -> None:
    if field.group is None:
        sources[field.name] = made
    else:
        sources.setdefault(field.name, {})[field.group] = made


# -- garbage ----------------------------------------------------------------------------------------------------------


def litter(arena: Arena, outputs: Iterable[torch.Tensor], *, hostile: bool) -> None:
    """Fill all static buffers and earlier `outputs` with what nobody may read: NaN, and huge integers where `hostile`.

    Else integers are legal ones, but another row's.
    """
    tensors = arena.tensors()
    with torch.inference_mode():
        for field in arena.fields:
            _spoil(tensors[field.label], field.pad, hostile=hostile)
        for tensor in outputs:
            _spoil(tensor, 0, hostile=hostile)


def _spoil(tensor: torch.Tensor, pad: float, *, hostile: bool) -> None:
    if hostile or tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(hostile_value(tensor.dtype, pad))
    elif tensor.dim():
        tensor.copy_(tensor.roll(1, 0))
