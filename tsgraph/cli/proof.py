"""How `tsgraph spec check` tells a proof."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from tsgraph.proving import Proof

WIDTH = 120


def told(proof: Proof) -> str:
    """The proof as text: what is broken and how, what was found besides, what holds, and how much was explored."""
    return "\n".join((*map(str, proof.violations), *_findings(proof), *_summary(proof)))


def _findings(proof: Proof) -> Iterator[str]:
    for finding in sorted(proof.findings, key=lambda finding: finding.severity != "error"):
        yield textwrap.fill(str(finding), WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _summary(proof: Proof) -> Iterator[str]:
    if proof.properties:
        holds = f"{len(proof.properties)} properties hold, whatever the pipeline does: {', '.join(proof.properties)}"
        yield textwrap.fill(holds, WIDTH, subsequent_indent="  ")
    combinations = sum(combination.stands_for for combination in proof.combinations)
    laws = "" if combinations == len(proof.combinations) else f" ({len(proof.combinations)} different laws)"
    explored = f"{combinations} combinations of collaborators and policies{laws}, {proof.configurations} configurations"
    yield f"explored: {explored}, {proof.seconds:.1f} s"
