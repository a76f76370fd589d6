"""`check_comm`: whether a communication library's modes are handled as their protocol says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from tsgraph.protocols.collaborators import Communication
from tsgraph.testing.conformance.promises import Promises
from tsgraph.testing.conformance.readings import copy_of, difference


@attrs.frozen(eq=False)
class CommTrial:
    """One communication adapter, its mode, and what eager steps do to it."""

    fresh: Callable[[], Communication]
    state: Callable[[Any], Any]
    disturb: Callable[[Any], object]
    part: Communication = attrs.field(init=False)

    @part.default
    def _make(self) -> Communication:
        return self.fresh()

    def now(self) -> Any:
        """Its mode, copied."""
        return copy_of(self.state(self.part))


COMM: Promises[CommTrial] = Promises(Communication)


def check_comm(
    factory: Callable[[], Communication], *, state: Callable[[Any], Any], disturb: Callable[[Any], object]
) -> None:
    """Check every promise of `Communication` on what `factory` makes, anew for each and with the library as at first.

    `state(comm)`: the mode of the library, any nesting of tensors and values that compare; `()` where it has none.
    `disturb(comm)` does what other steps may do to the library between replays.

    Raises: Nonconformance that lists all promises broken.
    """
    COMM.check(lambda: CommTrial(factory, state, disturb))


@COMM.promise("arm", "twice to be once")
def arm_is_idempotent(trial: CommTrial) -> str | None:
    """Every slot arms."""
    trial.part.arm()
    once = trial.now()
    trial.part.arm()
    return difference(once, trial.now())


@COMM.promise("arm", "the same mode whatever was before")
def arm_ignores_history(trial: CommTrial) -> str | None:
    """Slots captured later record the mode of the first."""
    trial.part.arm()
    first = trial.now()
    trial.disturb(trial.part)
    trial.part.arm()
    return difference(first, trial.now())


@COMM.promise("restore", "twice to be once")
def restore_is_idempotent(trial: CommTrial) -> str | None:
    """Every replay restores."""
    trial.part.arm()
    trial.part.restore()
    once = trial.now()
    trial.part.restore()
    return difference(once, trial.now())


@COMM.promise("restore", "the mode that was recorded, whatever came between")
def restore_brings_back(trial: CommTrial) -> str | None:
    """An eager step between a recording and a replay leaves no trace."""
    trial.part.arm()
    trial.part.restore()
    recorded = trial.now()
    trial.disturb(trial.part)
    trial.part.restore()
    return difference(recorded, trial.now())


@COMM.promise("restore", "nothing done where nothing was armed")
def restore_waits_for_arm(trial: CommTrial) -> str | None:
    """A library that no recording uses stays as it is."""
    before = trial.now()
    trial.part.restore()
    return difference(before, trial.now())
