"""The report of a verification: findings, what was run, what was left out, and how much it shows."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import attrs

from tsgraph.errors import ReplayDiffers
from tsgraph.replay.verification.findings import Finding
from tsgraph.spec.table import as_text, plain_table

SHOWN = 3
"""How many findings the error's message tells in full."""


@attrs.frozen(kw_only=True)
class VerifyReport:
    """What came of `GraphRuntime.verify`.

    `checked`: how often what was run and checked, by name. `left_out`: what was not, and why. `evidence`: what the rows
    were that were served, and how much they can show. `seconds`: host time.
    """

    slots: tuple[str, ...]
    findings: tuple[Finding, ...]
    checked: Mapping[str, int]
    left_out: tuple[str, ...]
    evidence: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether replays were checked and nothing was found."""
        return not self.findings and self.checked.get("replays", 0) > 0

    @property
    def verdict(self) -> str:
        """One line."""
        counted = f"{self.checked.get('replays', 0)} replays of {_counted('slot', self.slots)}"
        if self.findings:
            return f"NOT right: {_counted('finding', self.findings)} in {counted}"
        return f"right: {counted}, nothing found" if self.ok else "not verified: no slot was replayed"

    def raise_for_findings(self) -> None:
        """Raise ReplayDiffers, which tells the findings, unless the report is ok: for a test, or a CI job."""
        if self.ok:
            return
        groups = _grouped(self.findings)
        told = [_headed(group) for group in groups[:SHOWN]]
        more = [f"and {_counted('other thing', groups[SHOWN:])}"] if len(groups) > SHOWN else []
        lines = [self.verdict, *told, *more]
        hint = "each finding says what to do; print(report.table()) shows all of them"
        hint = hint if self.findings else f"capture first; left out: {'; '.join(self.left_out) or 'nothing'}"
        findings = [finding.as_json() for finding in self.findings]
        raise ReplayDiffers("\n".join(lines), hint=hint, findings=findings)

    def table(self, width: int = 120) -> str:
        """All of it for people, as text of `width` columns."""
        found = [_wrapped(_headed(group), width) for group in _grouped(self.findings)]
        notes = [*(f"shown by: {each}" for each in self.evidence), *(f"left out: {each}" for each in self.left_out)]
        told = [_wrapped(note, width) for note in notes]
        parts = ["\n\n".join(found), as_text([_checked(self.checked)], width).rstrip(), "\n".join(told)]
        return "\n\n".join([*filter(None, parts), f"{self.verdict} ({self.seconds:.1f} s)"]) + "\n"

    def as_json(self) -> dict[str, Any]:
        """All of it as plain JSON data."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "slots": list(self.slots),
            "findings": [finding.as_json() for finding in self.findings],
            "checked": dict(self.checked),
            "left_out": list(self.left_out),
            "evidence": list(self.evidence),
            "seconds": self.seconds,
        }


def _counted(what: str, things: Sequence[object]) -> str:
    return f"{len(things)} {what}{'' if len(things) == 1 else 's'}"


def _grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """The findings of all slots about one thing, together."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.check, finding.name), []).append(finding)
    return list(groups.values())


def _headed(group: Sequence[Finding]) -> str:
    """The first finding of a group, and the slots of the others."""
    others = ", ".join(str(finding.slot) for finding in group[1:])
    return f"{group[0]}\n  and so in {others}" if others else str(group[0])


def _wrapped(text: str, width: int) -> str:
    """Every line within `width` columns, what is continued further in."""
    lines = (
        textwrap.wrap(line, width, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 4), break_on_hyphens=False)
        for line in text.splitlines()
    )
    return "\n".join(chain.from_iterable(lines))


def _checked(checked: Mapping[str, int]) -> Any:
    rows = ((name, str(count), SAYS.get(name, "")) for name, count in checked.items())
    return plain_table("checked", ("what", "times", "it says that"), rows)


SAYS: Mapping[str, str] = {
    "replays": "",
    "eager steps": "",
    "equality": "outputs and state of a replay are an eager step's at its size, to the bit or within the tolerance",
    "structure": "the step still returns what was recorded",
    "staging": "static buffers hold live rows and pads, whatever was there before; rows beyond a slot are left alone",
    "isolation": "pad rows, and other live rows, change nothing for a live row",
    "sinks": "pad rows write to nothing but sinks",
    "writes": "replays write only to what is declared as written; weights are as they were",
    "addresses": "what was recorded lies where it lay, and outputs lie where they always do",
    "repeatability": "an eager step gives the same twice",
    "callers": "what the caller passed is as it was",
}
