"""The proof of a spec: each law that some combination leaves is explored, and what was met is judged."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tsgraph.proving.combinations import restrictions
from tsgraph.proving.redundancy import rule_findings
from tsgraph.proving.vacuity import property_findings
from tsgraph.proving.values import Counterexample, Finding, Proof
from tsgraph.proving.verdict import Verdict, judge, refutation
from tsgraph.proving.ways import way_findings
from tsgraph.proving.world import World
from tsgraph.spec.model import Spec


def prove(spec: Spec, *, thorough: bool = False) -> Proof:
    """Explore every order of events that `spec` permits, for every combination of collaborators and policies.

    The spec is given whole. `thorough`: also say in which combinations a rule is not needed, though it is in others.
    """
    began = time.perf_counter()
    verdicts = tuple(map(judge, restrictions(spec)))
    violations = _shortest(violation for verdict in verdicts for violation in verdict.violations)
    declared = {prop.id for verdict in verdicts for prop in verdict.spec.properties}
    proved = declared - {violation.property for violation in violations}
    return Proof(
        spec=spec.name,
        combinations=tuple(verdict.combination for verdict in verdicts),
        properties=tuple(prop.id for prop in spec.properties if prop.id in proved),
        violations=violations,
        findings=_findings(verdicts, holds=not violations, thorough=thorough),
        seconds=time.perf_counter() - began,
    )


def refute(spec: Spec) -> Counterexample | None:
    """A shortest way to break some property of `spec` in some combination, the fullest first; None if all hold."""
    for restricted in reversed(restrictions(spec)):
        _, broken = refutation(World.of(restricted.spec), restricted)
        if broken is not None:
            return broken
    return None


def _shortest(violations: Iterable[Counterexample]) -> tuple[Counterexample, ...]:
    """For each property, the shortest; of equals, the one with the fewest collaborators."""
    best: dict[str, Counterexample] = {}
    for violation in sorted(violations, key=lambda v: (v.moves, len(v.present), v.present)):
        best.setdefault(violation.property, violation)
    return tuple(best.values())


def _findings(verdicts: tuple[Verdict, ...], *, holds: bool, thorough: bool) -> tuple[Finding, ...]:
    """Whether a rule is needed can be asked only where every property holds with it."""
    rules = rule_findings(verdicts, thorough=thorough) if holds else ()
    return (*way_findings(verdicts), *property_findings(verdicts), *rules)
