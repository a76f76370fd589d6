"""Verification of a whole runtime: which cases there are, in which order, and for how long."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import attrs
import torch

from tsgraph.errors import BadBatch, CallerError
from tsgraph.keys import SlotKey
from tsgraph.replay.server import Server
from tsgraph.replay.verification.batches import Batches, Dummies, Make
from tsgraph.replay.verification.case import Case
from tsgraph.replay.verification.comparisons import Comparisons
from tsgraph.replay.verification.findings import Findings
from tsgraph.replay.verification.memory import Holdings, Memory, survey
from tsgraph.replay.verification.mismatch import Seen
from tsgraph.replay.verification.report import VerifyReport
from tsgraph.replay.verification.runs import Runs, quiet
from tsgraph.replay.verification.standstill import Random, standstill
from tsgraph.slots.slot import Slot

SHARED = "dummy rows share the pads' sinks: that pads change nothing for a live row was not tried"
NO_UPDATE = "recurrent state was not updated after steps: dummy rows have none"
FREE = "grammar entries were free ones: masks allowed everything"


@attrs.frozen
class Wish:
    """What is to be verified, and how: the arguments of `GraphRuntime.verify`."""

    inputs: Make | None = None
    slots: tuple[tuple[str, int], ...] = ()
    rows: tuple[int, ...] = ()
    tolerance: float | None = None
    alike: bool = True
    hostile: bool | None = None
    seed: int = 0
    seconds: float | None = None

    def __attrs_post_init__(self) -> None:
        if self.tolerance is not None and not self.tolerance >= 0:
            raise BadBatch(f"tolerance must not be negative, and is {self.tolerance!r}")
        if self.seconds is not None and not self.seconds >= 0:
            raise BadBatch(f"seconds must not be negative, and are {self.seconds!r}")


@attrs.define(eq=False, kw_only=True)
class Verifier:
    """Verifies the slots of `server`. `holdings`: where the engine's memory hangs. `padding`: of the spec's sizes."""

    server: Server
    holdings: Holdings
    wish: Wish
    padding: bool
    findings: Findings = attrs.field(factory=Findings, init=False)
    notes: dict[str, None] = attrs.field(factory=dict, init=False)
    seen: dict[str, Seen] = attrs.field(factory=dict, init=False)
    _late: dict[SlotKey, list[str]] = attrs.field(factory=dict, init=False)
    _began: float = attrs.field(init=False)

    @_began.default
    def _now(self) -> float:
        return time.perf_counter()

    def verify(self) -> VerifyReport:
        """Run every case. See `GraphRuntime.verify`."""
        slots, engine = self._slots(), self.server.engine
        self._refuse_clocks()
        memory = survey(engine.backend, engine.arena, engine.guard.states, self.holdings, engine.pool)
        with standstill(engine.backend, memory, self.server.lifecycle, self.server.door) as entries:
            random = Random.now(engine.backend.device)
            updates = self.wish.inputs is not None
            runs = Runs(quiet(self.server, updates=updates), memory, entries, random, updates=updates)
            batches = Batches(self._make(), engine.arena, random)
            for case in self._cases(slots, runs, memory, batches):
                self._check(case)
        self._look_for_changes(slots)  # afterwards: a refresh that rebinds its tensors has done so by now
        return self._report(slots, runs, memory, batches)

    # -- cases --------------------------------------------------------------------------------------------------------

    def _slots(self) -> list[Slot]:
        """The slots to verify. Raises: CallerError for one that was asked for and cannot be replayed."""
        ready = self.server.routes.programs
        asked = [self.server.slots[key] for key in self.wish.slots]
        for slot in asked:
            if slot.key not in ready:
                raise CallerError(f"{slot} cannot be replayed, so it cannot be verified", hint="capture it first")
        for slot in self.server.slots.values() if not asked else ():
            if slot.key not in ready:
                self.notes.setdefault(f"{slot}: it cannot be replayed")
        return asked or [slot for slot in self.server.slots.values() if slot.key in ready]

    def _refuse_clocks(self) -> None:
        if self.wish.seconds is not None and self.server.peers.count > 1:
            what = "several ranks cannot be verified for a time: each would stop elsewhere"
            raise CallerError(what, hint="leave seconds out, and name fewer slots or rows")

    def _cases(self, slots: Sequence[Slot], runs: Runs, memory: Memory, batches: Batches) -> Iterator[Case]:
        """One number of live rows after the other, each for all slots, so that little time goes a long way."""
        rows = {slot.key: self._rows_of(slot) for slot in slots}
        comparisons = {slot.key: self._comparisons(slot, memory) for slot in slots}
        for at in range(max(map(len, rows.values()), default=0)):
            for slot in slots:
                if at < len(rows[slot.key]):
                    yield Case(
                        slot=slot,
                        live=rows[slot.key][at],
                        others=self._neighbours(slot),
                        runs=runs,
                        memory=memory,
                        batches=batches,
                        comparisons=comparisons[slot.key],
                        alike=self.wish.alike and self.wish.inputs is not None,
                        hostile=self._hostile,
                        late=self._is_late,
                    )

    def _rows_of(self, slot: Slot) -> list[int]:
        """The numbers of live rows that are tried: padded, full, one, none."""
        size = slot.key.size
        if not self.padding:
            return [size] if size in (self.wish.rows or (size,)) else []
        tried = self.wish.rows or (size - 1, size, 1, 0)
        return [rows for rows in dict.fromkeys(tried) if 0 <= rows <= size]

    def _neighbours(self, slot: Slot) -> list[Slot]:
        """The slots that were captured just before and after it: over all slots, every one is such to two others."""
        ready = list(self.server.routes.programs)
        at = ready.index(slot.key)
        keys = dict.fromkeys((ready[(at + 1) % len(ready)], ready[at - 1]))
        return [self.server.slots[key] for key in keys if key != slot.key]

    def _comparisons(self, slot: Slot, memory: Memory) -> Comparisons:
        tolerance = self.wish.tolerance
        return Comparisons(
            slot=slot,
            memory=memory,
            findings=self.findings,
            notes=self.notes,
            seen=self.seen,
            tolerance=tolerance,
            rounding=max(rounding_of(slot, memory), tolerance or 0.0),
        )

    def _check(self, case: Case) -> None:
        """Run a case, and note what of it the time did not suffice for."""
        if self._is_late():
            self._late.setdefault(case.slot.key, []).append(_rows(case.live))
        elif left := case.check():
            self._late.setdefault(case.slot.key, []).append(f"{_rows(case.live)} ({', '.join(left)})")

    def _is_late(self) -> bool:
        return self.wish.seconds is not None and time.perf_counter() - self._began >= self.wish.seconds

    def _make(self) -> Make:
        return self.wish.inputs or Dummies(self.server.engine.arena, self.wish.seed)

    @property
    def _hostile(self) -> bool:
        """Where an index out of range is an error that can be told; on a device it would end the process."""
        return self.server.engine.backend.name == "emulated" if self.wish.hostile is None else self.wish.hostile

    # -- around them --------------------------------------------------------------------------------------------------

    def _look_for_changes(self, slots: Sequence[Slot]) -> None:
        """Recorded memory that lies elsewhere now, in use or not (R21)."""
        changes = self.server.guard.changes()
        for slot in slots:
            self.findings.made("addresses")
            for change in changes:
                if slot.key in change.slots:
                    self.findings.add(slot.key, "addresses", change.path, change.what, None)

    def _known(self, key: SlotKey) -> dict[str, bool]:
        engine, receipt = self.server.engine, self.server.slots[key].receipt
        return {
            "moved": self.findings.has(key, "addresses"),
            "metadata": engine.attention is not None or engine.drafting is not None,
            "inside": engine.stagings.describe()["way"] == "graph",
            "hidden": receipt is None or bool(receipt.opaque) or any(each.read for each in receipt.undeclared()),
            "escaped": receipt is not None and any([receipt.escapes, *(each.origin for each in receipt.externals)]),
        }

    def _report(self, slots: Sequence[Slot], runs: Runs, memory: Memory, batches: Batches) -> VerifyReport:
        late = [f"slot {key}, out of time: {', '.join(rows)}" for key, rows in self._late.items()]
        return VerifyReport(
            slots=tuple(str(slot.key) for slot in slots),
            findings=self.findings.closed(self._known),
            checked={**runs.counts, **self.findings.checked},
            left_out=(*late, *memory.left_out, *self.notes),
            evidence=tuple(self._evidence(batches)),
            seconds=time.perf_counter() - self._began,
        )

    def _evidence(self, batches: Batches) -> Iterator[str]:
        """How much was asked of the graphs."""
        make, engine = batches.make, self.server.engine
        if isinstance(make, Dummies):
            yield f"{make.told()}: weak, for the graphs were asked little; pass inputs= to have rows of yours served"
            yield SHARED
            if self.server.recurrent is not None:
                yield NO_UPDATE
        else:
            yield "rows that inputs= gave"
        if unvaried := batches.unvaried():
            yield f"one and the same number in all rows of {', '.join(unvaried)}: nothing shows that they are read"
        if alike := [name for name, seen in self.seen.items() if not seen.varied]:
            yield f"one and the same number in all of {', '.join(alike)}: whatever was wrong could hardly show there"
        if engine.grammar is not None:
            yield FREE
        if not self._hostile:
            yield "garbage was NaN, and legal integers of other rows: hostile=True makes these huge"


def rounding_of(slot: Slot, memory: Memory) -> float:
    """How far floats may move with the shape of a step: half of the digits of the coarsest that is computed with."""
    dtypes = {kept.dtype for kept in memory.kept}
    dtypes |= {leaf.dtype for leaf in (slot.outputs.leaves if slot.outputs is not None else ()) if leaf is not None}
    coarsest = max((torch.finfo(dtype.to_real()).eps for dtype in dtypes if not _is_discrete(dtype)), default=0.0)
    return float(coarsest**0.5)


def _is_discrete(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def _rows(live: int) -> str:
    return f"{live} live row{'' if live == 1 else 's'}"
