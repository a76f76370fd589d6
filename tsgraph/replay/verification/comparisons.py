"""What is held against what: a replay against eager steps, and what it left against what it may leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import torch

from tsgraph.replay.verification.findings import Findings
from tsgraph.replay.verification.memory import Left, Memory
from tsgraph.replay.verification.mismatch import SHOWN, Mismatch, Seen, compare
from tsgraph.replay.verification.runs import Run
from tsgraph.replay.verification.suspicion import Check, Place
from tsgraph.slots.slot import Slot

Difference = tuple[str, Mismatch]
"""What differs, and by how much."""


@attrs.define(eq=False, kw_only=True)
class Comparisons:
    """Makes findings of one slot.

    `tolerance`: of comparisons at one shape (None: bit by bit); `rounding`: of those across shapes. `notes`: what was
    not compared, and why. `seen`: what eager steps returned, by name.
    """

    slot: Slot
    memory: Memory
    findings: Findings
    notes: dict[str, None]
    seen: dict[str, Seen]
    tolerance: float | None
    rounding: float

    def note(self, what: str) -> None:
        """Something was not compared."""
        self.notes.setdefault(what)

    # -- at the same shape --------------------------------------------------------------------------------------------

    def repeatable(self, first: Run, second: Run, place: Place) -> None:
        """An eager step gives the same twice; where not, replays are held to `rounding` from here on."""
        for name, leaf in first.outputs.leaves:
            if leaf is not None:
                self.seen.setdefault(name, Seen()).look(leaf)
        found = list(self._differences(first, second, self.tolerance))
        self._tell("repeatability", found, "is another one when the same eager step is run again", place)
        if found:
            self.tolerance = max(self.rounding, self.tolerance or 0.0)

    def equal(self, eager: Run, replay: Run, place: Place) -> None:
        """The replay is the eager step at its size: what it returns, its live rows, and the state that it leaves."""
        if eager.outputs.structure != replay.outputs.structure:
            says = f"are {replay.outputs.structure} as recorded, and the step now returns {eager.outputs.structure}"
            self._tell("structure", [("outputs", None)], says, place)
            return
        self._tell("structure", [], "", place)
        found = list(self._differences(eager, replay, self.tolerance))
        self._tell("equality", found, "is not what an eager step at the slot's size makes of the same rows", place)

    def padded(self, declared: Mapping[str, torch.Tensor], now: Mapping[str, torch.Tensor], place: Place) -> None:
        """Static buffers, staged and not read yet, hold the live rows, and else the pads that are declared."""
        found = [
            each for label, rows in declared.items() for each in _named(f"buffer {label}", compare(rows, now[label]))
        ]
        self._tell("staging", found, "does not hold the live rows and the pads that are declared for it", place)

    def staged(self, eager: Run, replay: Run, before: Mapping[str, torch.Tensor], place: Place) -> None:
        """Static buffers hold what they hold after an eager step, and beyond the slot what was there `before`."""
        found, beyond = [], []
        for label, rows in self._rows_of_buffers():
            now = replay.buffers[label]
            found += _named(f"buffer {label}", compare(eager.buffers[label][:rows], now[:rows]))
            names = range(rows, len(now))
            beyond += _named(f"buffer {label}", compare(before[label][rows:], now[rows:], rows=names))
        self._tell("staging", found, "does not hold what an eager step at the slot's size finds there", place)
        self._tell("staging", beyond, "was written beyond the slot's rows", place)

    def _rows_of_buffers(self) -> Iterator[tuple[str, int]]:
        views = self.slot.batch.buffers
        for kept in self.memory.of("buffer"):
            label = kept.path.removeprefix("buffer ")
            name, _, group = label.removesuffix("]").partition("[")
            view = views[name]
            yield label, len(view[group] if isinstance(view, Mapping) else view)

    def static(self, first: Run, later: Run, place: Place) -> None:
        """Outputs lie where those of the first replay lay: it is they that a later replay overwrites (R40)."""
        places = zip(later.outputs.leaves, first.outputs.addresses, later.outputs.addresses, strict=False)
        names = [name for (name, _), one, other in places if one != other]
        self._tell("addresses", [(name, None) for name in names], "lies elsewhere than after another replay", place)

    def callers(self, names: Sequence[str], place: Place) -> None:
        """What the caller passed is his (R41): none of it was changed."""
        self._tell("callers", [(f"source {name}", None) for name in names], "was changed by the call", place)

    def _differences(
        self, one: Run, other: Run, tolerance: float | None, *, scratch: bool = True
    ) -> Iterator[Difference]:
        """In outputs, and in what is left in states; `scratch`: also in those that last for one step only."""
        if one.outputs.structure != other.outputs.structure:
            yield "outputs", Mismatch(form=f"{other.outputs.structure} instead of {one.outputs.structure}")
            return
        for (name, expected), (_, actual) in zip(one.outputs.leaves, other.outputs.leaves, strict=True):
            yield from _named(name, _compare_leaves(expected, actual, tolerance))
        for kept in self.memory.of("state", "recurrent"):
            if scratch or not kept.scratch:
                yield from _named(kept.path, kept.mismatch(one.left[kept.path], other.left[kept.path], tolerance))

    # -- across shapes, or in other company ---------------------------------------------------------------------------

    def isolated(self, alone: Run, padded: Run, place: Place) -> None:
        """Live rows, and what they leave, are near what they make alone: pad rows add nothing, in an eager step."""
        found = list(self._differences(alone, padded, self.rounding, scratch=False))
        if found and (alone.drew or padded.drew):
            self.note("the step draws random numbers: it was not compared across shapes, which change them")
            found = []
        self._tell_near(found, padded, "is not what an eager step of the live rows alone makes of them", place)

    def company(self, padded: Run, full: Run, place: Place) -> None:
        """Live rows are near what they are in a slot full of rows."""
        found = []
        leaves = zip(padded.outputs.leaves, full.outputs.leaves, self._per_live(), strict=True)
        for (name, expected), (_, whole), per in leaves:
            if expected is not None and whole is not None and per is not None:
                found += _named(name, compare(expected, whole[: len(expected)], tolerance=self.rounding))
        self._tell_near(found, padded, "changes for live rows when the rows behind them are no pads", place)

    def _tell_near(self, found: Sequence[Difference], run: Run, says: str, place: Place) -> None:
        """Tell them, unless floats agree and all are discrete and of single rows: near-ties that rounding decided."""
        pairs = list(zip(run.outputs.leaves, self._per_live(), strict=False))  # of another structure, if that is wrong
        whole = {name for (name, _), per in pairs if per is None}
        floats = any(leaf is not None and leaf.is_floating_point() for (_, leaf), _ in pairs)
        if floats and all(mismatch.discrete and name not in whole for name, mismatch in found):
            for name, mismatch in found:
                self.note(f"slot {self.slot.key}: {name} {says} ({mismatch}), but floats agree: taken for near-ties")
            found = []
        self._tell("isolation", found, says, place)

    def _per_live(self) -> tuple[int | None, ...]:
        return () if self.slot.outputs is None else self.slot.outputs.rows_per_live

    # -- what may be written ------------------------------------------------------------------------------------------

    def pads_in_sinks(self, left: Mapping[str, Left], place: Place) -> None:
        """A run without live rows has written nothing but sinks."""
        found = []
        for kept in self.memory.of("state"):
            rows = [] if kept.scratch else sorted(set(left[kept.path].rows) - kept.sinks)
            if rows:
                found.append((kept.path, _only_rows(rows)))
        self._tell("sinks", found, "is written by pad rows, in rows that are no sink", place)

    def declared(self, place: Place, *, constants: bool = False) -> None:
        """What nobody declared as written was not written. `constants`: weights and the like, too."""
        found = []
        with torch.inference_mode():
            for kept in self.memory.of("step", *(("constant",) if constants else ())):
                if rows := kept.changed():
                    found.append((kept.path, _only_rows(rows)))
                    kept.accept()
        self._tell("writes", found, "is written, though nobody declared it as state", place)

    def _tell(self, check: Check, found: Iterable[tuple[str, Mismatch | None]], says: str, place: Place) -> None:
        self.findings.made(check)
        for name, mismatch in found:
            self.findings.add(self.slot.key, check, name, says, place, mismatch)


def _compare_leaves(
    expected: torch.Tensor | None, actual: torch.Tensor | None, tolerance: float | None
) -> Mismatch | None:
    if expected is None or actual is None:
        return None if expected is actual else Mismatch(form=f"{_word(actual)} instead of {_word(expected)}")
    return compare(expected, actual, tolerance=tolerance)


def _word(leaf: torch.Tensor | None) -> str:
    return "None" if leaf is None else "a tensor"


def _named(name: str, mismatch: Mismatch | None) -> list[Difference]:
    return [] if mismatch is None else [(name, mismatch)]


def _only_rows(rows: Sequence[int]) -> Mismatch:
    """Rows, and no more numbers."""
    return Mismatch(rows=tuple(rows[:SHOWN]), count=len(rows))
