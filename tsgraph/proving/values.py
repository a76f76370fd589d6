"""What a proof says: combinations explored, properties proved, counterexamples, and findings besides."""

from __future__ import annotations

from typing import Any, Literal

import attrs

Severity = Literal["error", "note"]


@attrs.frozen(kw_only=True)
class Combination:
    """One law: what is `present`, and how many `configurations` the exploration met.

    `stands_for`: how many combinations of collaborators and policies have this same law; `present` is the smallest.
    """

    present: tuple[str, ...]
    configurations: int
    stands_for: int = 1


@attrs.frozen(kw_only=True)
class Counterexample:
    """A shortest way to break `property`, where `present` is all that is there.

    `moves`: how many moves of the pipeline it takes. `trace`: one line for each thing that happens. `broken`: the
    conditions that are false at its end. `facts`: what makes them false.
    """

    property: str
    says: str
    present: tuple[str, ...]
    moves: int
    trace: tuple[str, ...]
    broken: tuple[str, ...]
    facts: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.property} is broken {with_(self.present)}: {self.says}", *(f"  {line}" for line in self.trace)]
        return "\n".join(
            [*lines, *(f"  false: {what}" for what in self.broken), *(f"    {fact}" for fact in self.facts)]
        )


@attrs.frozen(kw_only=True)
class Finding:
    """Something to know about a spec besides its properties: an `error` fails the check, a `note` does not.

    `kind`: the sort of finding. `subject`: the rule, state, trigger, step or property that it is about.
    """

    severity: Severity
    kind: str
    subject: str
    says: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.subject}: {self.says}"


@attrs.frozen(kw_only=True)
class Proof:
    """The verdict on one spec.

    `properties`: the ids of those proved in every combination that has them. `violations`: one shortest counterexample
    for each of the others. `seconds`: how long it took.
    """

    spec: str
    combinations: tuple[Combination, ...]
    properties: tuple[str, ...]
    violations: tuple[Counterexample, ...]
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every property holds and no finding is an error."""
        return not self.violations and not any(finding.severity == "error" for finding in self.findings)

    @property
    def configurations(self) -> int:
        """How many configurations were explored, all combinations together."""
        return sum(combination.configurations for combination in self.combinations)

    def as_dict(self) -> dict[str, Any]:
        """The proof as plain data, for JSON."""
        return {**attrs.asdict(self), "ok": self.ok, "configurations": self.configurations}


def with_(present: tuple[str, ...]) -> str:
    """`with grammar and sampler`: what is there, in a sentence."""
    *others, last = present or ("no collaborator",)
    return f"with {', '.join(others)} and {last}" if others else f"with {last}"
