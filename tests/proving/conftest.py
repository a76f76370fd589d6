"""What tests of proofs share: tiny specs in a few words, and what a proof says of them in a few words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.proving.drawn import lifecycle, spec_of
from tsgraph.proving import Proof
from tsgraph.spec.model import Clause, Condition, Property, Rule, Scope, Spec, Step

STEPS = {name: Step(name=name, event=(name.upper(),)) for name in "abc"}


def rule(guards: str, condition: Condition, *, name: str = "R", scope: Scope = "slot") -> Rule:
    """A rule that guards one step or trigger."""
    return Rule(id=name, guards=(guards,), condition=condition, scope=scope, because="it must", fix="do it")


def promise(
    when: str, condition: Condition, *, name: str = "P", scope: Scope = "slot", before: bool = False
) -> Property:
    """A property of one clause at one moment."""
    clauses = (Clause(condition=condition, scope=scope),)
    return Property(
        id=name, says="it holds", when=(when,), before=clauses if before else (), holds=() if before else clauses
    )


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Spec]:
    """`tiny(("a", "b"), rules=…)`: fresh → make (steps a, b) → ready, and all that every lifecycle has."""

    def tiny(
        taken: tuple[str, ...] = ("a", "b"), /, changes: dict[str, dict[str, Any]] | None = None, **words: Any
    ) -> Spec:
        return spec_of(lifecycle(taken, **(changes or {})), **{"steps": STEPS, **words})

    return tiny


def moves(proof: Proof) -> dict[str, int]:
    """The length of the counterexample of each property that is broken."""
    return {violation.property: violation.moves for violation in proof.violations}


def findings(proof: Proof) -> list[tuple[str, str, str]]:
    """What was found besides."""
    return [(finding.severity, finding.kind, finding.subject) for finding in proof.findings]
