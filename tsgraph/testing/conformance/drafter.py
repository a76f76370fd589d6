"""`check_drafter`: whether a draft model's metadata keep their protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from tsgraph.protocols.collaborators import Drafter
from tsgraph.testing.conformance.binding import metadata_promises
from tsgraph.testing.conformance.ground import Ground
from tsgraph.testing.conformance.metadata import Metadata, MetadataTrial
from tsgraph.testing.conformance.promises import Promises
from tsgraph.testing.conformance.readings import copy_of, difference

DRAFTER: Promises[MetadataTrial] = Promises(Drafter, metadata_promises())


def check_drafter(
    factory: Callable[[], Drafter],
    *,
    ground: Ground,
    metadata: Metadata,
    lengths: Callable[[Any], torch.Tensor] | None,
    source: str = "seq_lens",
) -> None:
    """Check every promise of `Drafter` on what `factory` makes, anew for each.

    `ground` and `metadata` as for `check_attention`. `lengths(drafter)`: its own lengths, at least one for each row,
    which the step may change while it drafts; None where it has none. They start as those in the buffer `source`.

    Raises: Nonconformance that lists all promises broken.
    """
    DRAFTER.check(lambda: MetadataTrial(factory, ground, metadata, lengths, source))


@DRAFTER.promise("refresh", "its own lengths to be those of the padded batch")
def lengths_are_the_batchs(trial: MetadataTrial) -> str | None:
    """In live rows and in pads (R36)."""
    for rows, live in trial.ground.lives():
        told = difference(*_lengths(trial, rows, live))
        if told:
            return f"{told} ({live} of {rows} rows)"
    return None


@DRAFTER.promise("refresh", "lengths that it may change without changing the batch's")
def lengths_are_its_own(trial: MetadataTrial) -> str | None:
    """They are no view of the batch's buffer."""
    rows = trial.ground.sizes[-1]
    batchs, own = _lengths(trial, rows, rows)
    before = copy_of(batchs)
    for lengths in own:
        lengths.add_(1)
    return difference(before, batchs)


def _lengths(trial: MetadataTrial, rows: int, live: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The lengths of the batch and the drafter's own, after a refresh; nothing where it has none."""
    if trial.lengths is None:
        return [], []
    trial.bind(rows)
    trial.refresh(rows, live, 1)
    return [trial.ground.batch(rows)[trial.source]], [trial.lengths(trial.part)[:rows]]


@DRAFTER.promise("share_kv_indices", "the target's indices, and none of its own, from then on")
def indices_are_shared(trial: MetadataTrial) -> str | None:
    """What it has been given is what it reads (R3)."""
    own = trial.part.kv_indices
    given = torch.zeros(4, dtype=torch.int32) if own is None else torch.zeros_like(own)
    cast("Drafter", trial.part).share_kv_indices(given)
    trial.bind(trial.ground.sizes[0])
    held = trial.part.kv_indices
    return None if held is given else "none" if held is None else f"others, of shape {tuple(held.shape)}"
