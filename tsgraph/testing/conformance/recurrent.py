"""`check_recurrent`: whether recurrent state keeps its protocol."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import attrs
import torch

from tsgraph.protocols.collaborators import Recurrent
from tsgraph.testing.conformance.promises import Promises
from tsgraph.testing.conformance.readings import copy_of, difference, moved, places_of, tensors_in


@attrs.frozen(eq=False)
class RecurrentTrial:
    """One recurrent state, and the steps that advance it."""

    fresh: Callable[[], Recurrent]
    outputs: Callable[[int], Any]
    state: Callable[[Any], Any]
    rows: Callable[[int], Collection[int]]
    most: int
    part: Recurrent = attrs.field(init=False)

    @part.default
    def _make(self) -> Recurrent:
        return self.fresh()

    def tensors(self) -> list[torch.Tensor]:
        """Its state."""
        return tensors_in(self.state(self.part))

    def lives(self) -> range:
        """Every number of live rows, none included."""
        return range(self.most, -1, -1)


RECURRENT: Promises[RecurrentTrial] = Promises(Recurrent)


def check_recurrent(
    factory: Callable[[], Recurrent],
    *,
    outputs: Callable[[int], Any],
    state: Callable[[Any], Any],
    rows: Callable[[int], Collection[int]],
    most: int = 4,
) -> None:
    """Check every promise of `Recurrent` on what `factory` makes, anew for each.

    `outputs(live)`: what a step of `live` rows gives, up to `most` rows, such that it changes the state.
    `state(recurrent)`: any nesting of its tensors; `rows(live)`: their indices along dimension 0 that belong to those
    live rows, after `outputs(live)`.

    Raises: Nonconformance that lists all promises broken.
    """
    RECURRENT.check(lambda: RecurrentTrial(factory, outputs, state, rows, most))


@RECURRENT.promise("update", "the rows of live requests written, and no other")
def update_writes_live_rows_only(trial: RecurrentTrial) -> str | None:
    """For every number of live rows; none of them writes nothing (R42)."""
    for live in trial.lives():
        before = copy_of(trial.tensors())
        trial.part.update(trial.outputs(live), live)
        wrong = _changed(before, trial.tensors()) - set(trial.rows(live))
        if wrong:
            return f"rows {sorted(wrong)} written too ({live} live rows)"
    return None


@RECURRENT.promise("update", "the state of live rows advanced")
def update_advances(trial: RecurrentTrial) -> str | None:
    """Every live row's changes somewhere."""
    for live in trial.lives() if trial.tensors() else ():
        before = copy_of(trial.tensors())
        trial.part.update(trial.outputs(live), live)
        left = set(trial.rows(live)) - _changed(before, trial.tensors())
        if left:
            return f"rows {sorted(left)} as they were ({live} live rows)"
    return None


@RECURRENT.promise("update", "its state at the addresses that recordings read")
def update_keeps_addresses(trial: RecurrentTrial) -> str | None:
    """It writes in place."""
    before = places_of(trial.state(trial.part))
    for live in trial.lives():
        trial.part.update(trial.outputs(live), live)
    return moved(before, places_of(trial.state(trial.part)))


@RECURRENT.promise("update", "the step's outputs left as they are")
def update_leaves_outputs(trial: RecurrentTrial) -> str | None:
    """They are handed to the caller afterwards."""
    for live in trial.lives():
        outputs = trial.outputs(live)
        before = copy_of(outputs)
        trial.part.update(outputs, live)
        if told := difference(before, outputs):
            return f"{told} ({live} live rows)"
    return None


def _changed(before: list[torch.Tensor], after: list[torch.Tensor]) -> set[int]:
    pairs = list(zip(before, after, strict=True))
    return {row for a, b in pairs for row in range(len(a)) if difference(a[row], b[row])}
