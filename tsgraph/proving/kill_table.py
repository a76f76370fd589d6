"""Who kills which mutant of a law: the loader, the declared course, or a property that some order of events breaks.

The law is sound if its properties hold; it is lean if each mutant breaks something. The exception are two steps whose
order means nothing: the spec says so with `free`, and where it says so it must be true. Then no order is law by
accident, and none is a mere habit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import attrs

from tsgraph.proving.combinations import Restricted, restrictions, with_only
from tsgraph.proving.course import follow, route_of
from tsgraph.proving.mutants import Kind, Mutant, mutants
from tsgraph.proving.values import with_
from tsgraph.proving.verdict import refutation
from tsgraph.proving.world import World
from tsgraph.spec.check import check_spec
from tsgraph.spec.load import load_spec, parse_spec
from tsgraph.spec.model import COLLABORATORS, After, Spec

PERS = ("slot", "variant")
LAXER: tuple[Kind, ...] = ("rule removed", "rule weakened")
"""What the declared course cannot tell: it is refused no more than before."""


@attrs.frozen(kw_only=True)
class Kill:
    """How a mutant was found out. `moves`: of a property, how many moves its shortest counterexample has.

    `present`: what was there (None: it needed no run). `setting`: the setting of the spec that it took, if not its own.
    """

    by: Literal["loader", "declared course", "property"]
    what: str
    present: tuple[str, ...] | None = None
    moves: int | None = None
    setting: str = ""

    def __str__(self) -> str:
        moves = "" if self.moves is None else f" in {self.moves} moves"
        where = "" if self.present is None else f", {with_(self.present)}"
        return f"{self.what}{moves}{where}" + (f", {self.setting}" if self.setting else "")


@attrs.frozen(kw_only=True)
class Row:
    """One mutant, and what killed it (None: nothing)."""

    mutant: Mutant
    kill: Kill | None

    @property
    def problem(self) -> str | None:
        """What is wrong with the law, as this mutant shows; None if it was to be expected."""
        if self.mutant.free:
            return f"{self.mutant.name}: declared free, but it is law: {self.kill}" if self.kill else None
        if self.kill:
            return None
        way_out = "declare the order free" if self.mutant.swapped else "drop it"
        return f"{self.mutant.name}: nothing would notice; say why it is so in a property, or {way_out}"


@attrs.frozen(kw_only=True)
class KillTable:
    """All rows of one spec. `flaws`: what is wrong with the spec itself, unchanged; no row means anything then."""

    spec: str
    rows: tuple[Row, ...]
    flaws: tuple[str, ...]
    seconds: float

    @property
    def problems(self) -> tuple[str, ...]:
        """Every reason why the table is not complete."""
        return (*self.flaws, *(row.problem for row in self.rows if row.problem))

    @property
    def complete(self) -> bool:
        """Whether every mutant is killed, save for swaps that are declared free, which are not."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """The table as plain data, for JSON."""
        facts = {"spec": self.spec, "complete": self.complete, "problems": self.problems, "seconds": self.seconds}
        return {**facts, "mutants": [_plain(row) for row in self.rows]}


def _plain(row: Row) -> dict[str, Any]:
    told = {name: getattr(row.mutant, name) for name in ("kind", "subject", "what", "free")}
    return {**told, "kill": attrs.asdict(row.kill) if row.kill else None, "problem": row.problem}


def settings(name_or_path: str) -> dict[str, Spec]:
    """The spec of a file as it is declared, under "", and with the other values of `warmup.per`, which change its law.

    Raises: SpecError as `load_spec`.
    """
    spec = load_spec(name_or_path)
    base = {"extends": name_or_path, "name": spec.name, "version": spec.version}
    others = {per: parse_spec({**base, "warmup": {"per": per}}) for per in PERS if per != spec.warmup.per}
    return {"": spec} | {f'warmup.per = "{per}"': other for per, other in others.items()}


def kill_table(specs: dict[str, Spec], only: Iterable[str] | None = None) -> KillTable:
    """The kill table of a spec, as `settings` gives it: a mutant that survives in one setting may be killed in another.

    `only`: the names of the mutants that are wanted (None: all).
    """
    began = time.perf_counter()
    courts = tuple(_Court.of(spec, setting) for setting, spec in specs.items())
    flaws = tuple(f"the law itself: {flaw}" for court in courts if (flaw := court.flaw()))
    rows = () if flaws else tuple(_rows(courts, None if only is None else set(only)))
    return KillTable(spec=specs[""].name, rows=rows, flaws=flaws, seconds=time.perf_counter() - began)


def _rows(courts: tuple[_Court, ...], only: set[str] | None) -> Iterator[Row]:
    """A mutant has the same name in every setting that it exists in."""
    for mutant in mutants(courts[0].spec):
        if only is None or mutant.name in only:
            same = ((court, court.mutants.get(mutant.name)) for court in courts)
            kills = (court.kill(other) for court, other in same if other is not None)
            yield Row(mutant=mutant, kill=next(filter(None, kills), None))


@attrs.frozen(eq=False)
class _Court:
    """Judges the mutants of a spec in one setting. Where a mutant's law is its original's, nothing is done again."""

    spec: Spec
    setting: str
    route: tuple[str, ...]
    laws: tuple[Restricted, ...]
    mutants: dict[str, Mutant]

    @classmethod
    def of(cls, spec: Spec, setting: str) -> _Court:
        route = route_of(spec.restricted_to(frozenset(COLLABORATORS)))
        return cls(spec, setting, route, restrictions(spec), {mutant.name: mutant for mutant in mutants(spec)})

    def flaw(self) -> Kill | None:
        """What is wrong with the spec as it is."""
        return self._stopped(self.laws) or self._broken(self.laws)

    def kill(self, mutant: Mutant) -> Kill | None:
        """What kills `mutant`, if anything does: what takes least to find out is tried first."""
        for problem in check_spec(mutant.spec):
            return Kill(by="loader", what=problem)
        changed = _Changed(mutant.spec, self.laws)
        if mutant.kind in LAXER:
            return self._broken(changed)
        return self._stopped(reversed(changed)) or (None if _is_idle(mutant) else self._broken(changed))

    def _stopped(self, laws: Iterable[Restricted]) -> Kill | None:
        for law in laws:
            wrong = follow(law.spec, self.route)
            if wrong:
                return Kill(by="declared course", what=wrong, present=law.present, setting=self.setting)
        return None

    def _broken(self, laws: Iterable[Restricted]) -> Kill | None:
        for law in laws:
            _, found = refutation(World.of(law.spec), law)
            if found:
                what, moves = found.property, found.moves
                return Kill(by="property", what=what, present=law.present, moves=moves, setting=self.setting)
        return None


@attrs.frozen(eq=False)
class _Changed:
    """The laws that a mutated spec leaves, smallest combination first, without those that its original leaves, too."""

    mutated: Spec
    laws: tuple[Restricted, ...]

    def __iter__(self) -> Iterator[Restricted]:
        return filter(None, map(self._changed, self.laws))

    def __reversed__(self) -> Iterator[Restricted]:
        return filter(None, map(self._changed, reversed(self.laws)))

    def _changed(self, law: Restricted) -> Restricted | None:
        left = with_only(self.mutated, law.present)
        return attrs.evolve(law, spec=left) if left != law.spec else None


# -- mutants that need no exploration ----------------------------------------------------------------------------------


def _is_idle(mutant: Mutant) -> bool:
    """Whether no order of events but the declared course can tell the mutant from its original."""
    return mutant.tried or bool(mutant.swapped and not _related(mutant.between, mutant.spec))


def _related(names: tuple[str, ...], spec: Spec) -> bool:
    """Whether the order of these steps can show: in a condition, in a moment that is judged, or in what they move."""
    steps = [spec.steps[name] for name in names]
    events = {event for step in steps for event in step.event}
    moved = [name for step in steps for name in (*step.count, *step.set, *step.mode)]
    judged = any(events & set(prop.when) for prop in spec.properties)
    return judged or len(moved) > len(set(moved)) or any(set(pair) <= events for pair in _pairs(spec))


def _pairs(spec: Spec) -> Iterator[tuple[str, str]]:
    clauses = (clause for prop in spec.properties for clause in (*prop.before, *prop.holds))
    conditions = [*(rule.condition for rule in spec.rules), *(clause.condition for clause in clauses)]
    return ((c.event, c.than) for c in conditions if isinstance(c, After))
