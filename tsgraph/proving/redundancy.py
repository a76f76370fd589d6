"""Findings about rules that nothing depends on: every property still holds without them.

Such a rule may be implied (what the other rules let through it would never refuse), or refuse only what no property
minds. If it would refuse nothing even were it the only one, it is a comment, and so an error; the others are notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

import attrs

from tsgraph.proving.acts import RULE
from tsgraph.proving.explore import explore
from tsgraph.proving.values import Finding, with_
from tsgraph.proving.verdict import Verdict, refutation
from tsgraph.proving.world import World
from tsgraph.spec.model import Rule, Spec


@attrs.frozen
class _Unneeded:
    """A rule that one combination does not need. `refuses`: whether it would refuse anything there."""

    verdict: Verdict
    refuses: bool


def rule_findings(verdicts: tuple[Verdict, ...], *, thorough: bool) -> tuple[Finding, ...]:
    """What can be said about each rule that some combination (unless `thorough`: that every one) does not need."""
    rules = {rule.id: rule for verdict in verdicts for rule in verdict.spec.rules}
    return tuple(found for rule in rules.values() for found in _rule(rule, verdicts, thorough=thorough))


def _rule(rule: Rule, verdicts: tuple[Verdict, ...], *, thorough: bool) -> Iterator[Finding]:
    """The fullest combination first: where most is there, most depends on the rule, as a rule."""
    having = [verdict for verdict in reversed(verdicts) if any(r.id == rule.id for r in verdict.spec.rules)]
    without: list[_Unneeded] = []
    for verdict in having:
        unneeded = _unneeded(rule, verdict)
        if unneeded is None and not thorough:
            return
        without += [unneeded] if unneeded else []
    if without:
        yield _finding(rule, without, everywhere=len(without) == len(having))


def _unneeded(rule: Rule, verdict: Verdict) -> _Unneeded | None:
    world = verdict.found.world.without(rule.id, watched=rule.id)
    found, broken = refutation(world, verdict.restricted)
    return None if broken else _Unneeded(verdict, RULE in found.broken)


def _finding(rule: Rule, without: list[_Unneeded], *, everywhere: bool) -> Finding:
    where = "in no combination" if everywhere else f"not {_told(without)}"
    first = next((unneeded for unneeded in without if unneeded.refuses), without[0])
    if first.refuses:
        says = f"needed {where}: every property holds without it, and it refuses only what none of them minds"
        return Finding(severity="note", kind="unneeded", subject=rule.id, says=says)
    others = _implying(rule, first.verdict.spec)
    if everywhere and not others:
        says = "refuses nothing, even if there were no other rule: it is a comment"
        return Finding(severity="error", kind="idle", subject=rule.id, says=says)
    says = f"needed {where}: {_implied_by(others)}"
    return Finding(severity="note", kind="implied", subject=rule.id, says=says)


def _implied_by(others: tuple[str, ...]) -> str:
    match others:
        case ():
            return "the lifecycle itself implies it"
        case (other,):
            return f"{other} implies it"
    *rest, last = others
    return f"{', '.join(rest)} and {last} imply it"


def _told(without: list[_Unneeded]) -> str:
    more = f", nor in {len(without) - 1} more combinations" if len(without) > 1 else ""
    return f"{with_(without[0].verdict.restricted.present)}{more}"


# -- which others imply a rule -----------------------------------------------------------------------------------------


def _implying(rule: Rule, spec: Spec) -> tuple[str, ...]:
    """Other rules that leave `rule` nothing to refuse: none or one if that will do, else no more than are needed."""
    others = tuple(other for other in spec.rules if other.id != rule.id)
    for few in (*combinations(others, 0), *combinations(others, 1)):
        if _imply(few, rule, spec):
            return _ids(few)
    left = others
    for other in others:
        fewer = tuple(rest for rest in left if rest is not other)
        left = fewer if _imply(fewer, rule, spec) else left
    return _ids(left)


def _imply(others: tuple[Rule, ...], rule: Rule, spec: Spec) -> bool:
    """Whether `rule` would never refuse where `others` are in force."""
    alone = attrs.evolve(spec, rules=(*others, rule), properties=())
    return RULE not in explore(World.of(alone).without(rule.id, watched=rule.id), watch=True).broken


def _ids(rules: Iterable[Rule]) -> tuple[str, ...]:
    return tuple(rule.id for rule in rules)
