"""Findings about properties that prove nothing: their moment never comes, or nothing could break them.

A clause is tried without any rule: if it still cannot be false, no rule is what keeps it. Then it is tried without
cleanup too: if it still cannot be false, it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from tsgraph.proving.explore import explore
from tsgraph.proving.values import Finding, with_
from tsgraph.proving.verdict import Verdict
from tsgraph.proving.world import World
from tsgraph.spec.model import Clause, Property, Session, Spec

Judged = set[tuple[str, str]]


def property_findings(verdicts: tuple[Verdict, ...]) -> tuple[Finding, ...]:
    """A moment that never comes, and a clause that nothing could break, are errors; what keeps itself is a note."""
    properties = {prop.id: prop for verdict in verdicts for prop in verdict.spec.properties}
    having = {name: [v for v in verdicts if any(p.id == name for p in v.spec.properties)] for name in properties}
    moments = (found for prop in properties.values() for found in _moments(prop, having[prop.id]))
    return (*moments, *(found for prop in properties.values() for found in _clauses(prop, having[prop.id])))


# -- moments -----------------------------------------------------------------------------------------------------------


def _moments(prop: Property, verdicts: list[Verdict]) -> Iterator[Finding]:
    for moment in prop.when:
        never = [v.restricted.present for v in verdicts if (prop.id, moment) not in v.found.judged]
        if len(never) == len(verdicts):
            says = f"its moment `{moment}` never comes, so that it promises nothing"
            yield Finding(severity="error", kind="moment", subject=prop.id, says=says)
        elif never:
            says = f"its moment `{moment}` never comes {with_(never[0])}"
            yield Finding(severity="note", kind="moment", subject=prop.id, says=says)


# -- clauses -----------------------------------------------------------------------------------------------------------


def _clauses(prop: Property, verdicts: list[Verdict]) -> Iterator[Finding]:
    """The fullest combination first: most can go wrong there."""
    clauses: dict[tuple[bool, Clause], list[Spec]] = {}
    for verdict in reversed(verdicts):
        left = next(p for p in verdict.spec.properties if p.id == prop.id)
        for before, clause in _numbered(left):
            clauses.setdefault((before, clause), []).append(verdict.spec)
    for (before, clause), specs in clauses.items():
        promise = attrs.evolve(prop, before=(clause,) if before else (), holds=() if before else (clause,))
        yield from _clause(promise, clause, [_alone(spec, promise) for spec in specs])


def _numbered(prop: Property) -> Iterator[tuple[bool, Clause]]:
    yield from ((True, clause) for clause in prop.before)
    yield from ((False, clause) for clause in prop.holds)


def _clause(promise: Property, clause: Clause, specs: list[Spec]) -> Iterator[Finding]:
    if any(map(_breaks, specs)):
        return
    if any(_breaks(_bare(spec)) for spec in specs):
        says = f"`{clause.condition}` holds without any rule: what runs in any case keeps it"
        yield Finding(severity="note", kind="kept", subject=promise.id, says=says)
    else:
        says = f"`{clause.condition}` cannot be false at its moment, whatever happens: it says nothing"
        yield Finding(severity="error", kind="tautology", subject=promise.id, says=says)


def _alone(spec: Spec, promise: Property) -> Spec:
    """The law with one promise and no rule."""
    return attrs.evolve(spec, rules=(), properties=(promise,))


def _bare(spec: Spec) -> Spec:
    """The law without what runs in any case."""
    rows = tuple(attrs.evolve(transition, cleanup=()) for transition in spec.lifecycle.transitions)
    session = Session(enter=spec.session.enter)
    return attrs.evolve(spec, lifecycle=attrs.evolve(spec.lifecycle, transitions=rows), session=session)


def _breaks(spec: Spec) -> bool:
    return explore(World.of(spec), first=True).refuted
