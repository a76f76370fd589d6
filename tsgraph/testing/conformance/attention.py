"""`check_attention`: whether attention metadata keep their protocol."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from numbers import Real
from typing import Any

from tsgraph.buffers.contract import Field, check_honoured
from tsgraph.errors import ContractViolation
from tsgraph.protocols.collaborators import Attention
from tsgraph.testing.conformance.binding import metadata_promises
from tsgraph.testing.conformance.ground import Ground
from tsgraph.testing.conformance.metadata import Metadata, MetadataTrial, live_difference
from tsgraph.testing.conformance.promises import Promises
from tsgraph.testing.conformance.readings import copy_of

ATTENTION: Promises[MetadataTrial] = Promises(Attention, metadata_promises())


def check_attention(factory: Callable[[], Attention], *, ground: Ground, metadata: Metadata) -> None:
    """Check every promise of `Attention` on what `factory` makes, anew for each.

    `ground`: the buffers that it reads. `metadata(attention)`: its current metadata, any nesting of the tensors that
    recorded kernels read. Leave out what they do not, such as the tail of an index list beyond its end.

    Raises: Nonconformance that lists all promises broken.
    """
    ATTENTION.check(lambda: MetadataTrial(factory, ground, metadata))


def _honours(trial: MetadataTrial) -> Mapping[str, Collection[float]]:
    honours: Mapping[str, Collection[float]] = getattr(trial.part, "honours")  # noqa: B009 - a drafter has none
    return honours


@ATTENTION.promise("honours", "a mapping from buffers to the pads honoured")
def honours_are_numbers(trial: MetadataTrial) -> str | None:
    """Names and collections of numbers."""
    honours: Any = _honours(trial)
    if not isinstance(honours, Mapping):
        return repr(honours)
    wrong = {name: pads for name, pads in honours.items() if not (isinstance(name, str) and _are_numbers(pads))}
    return repr(wrong) if wrong else None


def _are_numbers(pads: Any) -> bool:
    return isinstance(pads, Collection) and not isinstance(pads, str) and all(isinstance(pad, Real) for pad in pads)


@ATTENTION.promise("honours", "the pads that the buffers declare")
def honours_cover_declared_pads(trial: MetadataTrial) -> str | None:
    """Each pad of a buffer that it names: a runtime would refuse it otherwise."""
    try:
        check_honoured(trial.ground.arena.fields, "Attention", _honours(trial))
    except ContractViolation as violation:
        return f"{violation.got}, without {violation.expected}"
    return None


@ATTENTION.promise("honours", "no pad among those named that reaches live rows")
def honoured_pads_stay_out(trial: MetadataTrial) -> str | None:
    """Whichever honoured pad the rows beyond the live ones hold, live rows' metadata are the same."""
    rows, live = trial.ground.sizes[-1], trial.ground.sizes[0]
    for field in trial.ground.arena.fields:
        for pad in _honours(trial).get(field.name, ()):
            if _fits(pad, field) and (told := _reaches(trial, field, pad, rows, live)):
                return f"{told} (pad {pad} of {field.label!r})"
    return None


def _reaches(trial: MetadataTrial, field: Field, pad: float, rows: int, live: int) -> str | None:
    part = trial.fresh()
    trial.bind(rows, part)
    part.refresh(trial.ground.stage(rows, live, 1, pads={field.name: pad}), live)
    return live_difference(trial, live, rows, copy_of(trial.metadata(part)))


def _fits(pad: float, field: Field) -> bool:
    return field.dtype.is_floating_point or math.isfinite(pad)
