"""Backends whose branches, or whose word on recordings, are wrong in one way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.streams import current_stream


@attrs.define(eq=False)
class Around:
    """A branch around a right one."""

    branch: Any
    backend: Any

    @contextmanager
    def fork(self) -> Iterator[None]:
        with self.branch.fork():
            yield

    def join(self) -> None:
        self.branch.join()


class Branching(EmulatedBackend):
    """A right backend whose branches are `around`; it knows the tensor that it made last."""

    around: Any = Around
    kept: Any = None

    def branch(self) -> Any:
        return self.around(super().branch(), self)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, fill: float) -> Any:
        self.kept = super().allocate(shape, dtype, fill)
        return self.kept


class Lost(Around):
    """Outside of a recording its work is not there when it is joined."""

    @contextmanager
    def fork(self) -> Iterator[None]:
        before = None if self.backend.recording else self.backend.kept.clone()
        with super().fork():
            yield
        if before is not None:
            self.backend.kept.copy_(before)


class LosesBranches(Branching):
    around = Lost


class Unjoined(Around):
    def join(self) -> None:
        """Nobody waits for the branch."""


class JoinsNothing(Branching):
    around = Unjoined


class Alone(Around):
    """What the caller does while the branch is open is refused."""

    def join(self) -> None:
        if self.backend.recording and current_stream() is not self.branch.stream:
            self.backend.kept.zero_()
        super().join()


class LosesTheCallersWork(Branching):
    around = Alone


class Silent(Around):
    @contextmanager
    def fork(self) -> Iterator[None]:
        with suppress(ValueError), super().fork():
            yield


class SwallowsBranches(Branching):
    around = Silent


class NeverRecords(EmulatedBackend):
    recording = False


class RecordsForEver(EmulatedBackend):
    begun = False

    @property
    def recording(self) -> bool:
        self.begun = self.begun or super().recording
        return self.begun


BRANCH_FAULTS: dict[str, Any] = {
    "branch_is_ordered": LosesBranches,
    "branch_is_recorded": JoinsNothing,
    "branch_works_beside": LosesTheCallersWork,
    "branch_raises": SwallowsBranches,
    "recording_is_told": NeverRecords,
}
MORE_BRANCH_FAULTS: list[tuple[str, Any]] = [("recording_is_told", RecordsForEver)]
