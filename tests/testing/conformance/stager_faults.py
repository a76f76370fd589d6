"""Backends with one fault each in how they bring rows to static buffers."""

from __future__ import annotations

from typing import Any

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.staging import EmulatedKernel
from tsgraph.backends.stager import Load, Stager
from tsgraph.backends.trays import Layout


class HasKernel(EmulatedBackend):
    """A backend with a kernel of its own."""

    kernel: type[EmulatedKernel]
    made: type[Stager] = Stager

    def stager(self, lanes: Any, rows: int, *, reads: Any = "ring") -> Stager:
        return self.made(lanes, rows, self, self.kernel(), lambda: self._recording, reads)


class LeavesMargins(EmulatedKernel):
    """As if every call brought all columns of each line: what it did not bring stays."""

    def bring_now(self, stager: Stager, load: Load) -> None:
        margins = [form.lane.target[..., -1].clone() for form in stager.forms if form.lane.target.dim() > 1]
        super().bring_now(stager, load)
        for form, margin in zip(stager.forms, margins, strict=False):
            form.lane.target[..., -1] = margin


class BringsTheLatest(Stager):
    """What was sent is there for any replay that comes: one circle ahead, the rows of another call are."""

    kept: Any = None

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self._fill, self.send = self.send, self._keep

    def _keep(self, load: Any) -> None:
        self.kept = load
        self._fill(load)

    def send_nothing(self, size: int) -> None:
        if self.kept is None:
            super().send_nothing(size)
        else:
            self._fill(self.kept)


class WithdrawsNothing(Stager):
    def withdraw(self) -> None:
        """What was sent stays."""


class SkipsATray(EmulatedKernel):
    """Every tenth tray is taken, and its rows are lost."""

    def take_now(self, stager: Stager, layout: Layout) -> None:
        before = [form.lane.target.clone() for form in stager.forms]
        super().take_now(stager, layout)
        if stager.ring.number % 10 == 0:
            for form, tensor in zip(stager.forms, before, strict=True):
                form.lane.target.copy_(tensor)


class LaunchesWithoutMargins(HasKernel):
    kernel = LeavesMargins


class RepeatsItself(HasKernel):
    kernel, made = EmulatedKernel, BringsTheLatest


class LosesRows(HasKernel):
    kernel = SkipsATray


class CannotWithdraw(HasKernel):
    kernel, made = EmulatedKernel, WithdrawsNothing


STAGER_FAULTS: dict[str, Any] = {
    "launch_brings_rows": LaunchesWithoutMargins,
    "node_brings_what_was_sent": LosesRows,
    "withdrawn_rows_stay_away": CannotWithdraw,
}
MORE_STAGER_FAULTS: list[tuple[str, Any]] = [("node_brings_what_was_sent", RepeatsItself)]
