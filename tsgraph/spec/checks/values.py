"""Value rules: each says what, why, and who keeps it; and what a buffer says that it states is declared."""

from __future__ import annotations

from collections.abc import Iterator

from tsgraph.spec.checks.names import repeated, undeclared, unneeded
from tsgraph.spec.model import Spec, ValueRule


def check_values(spec: Spec) -> Iterator[str]:
    """Ids are those of no other rule, nothing is left unsaid, and buffers name rules that are there."""
    ids = [rule.id for rule in spec.value_rules]
    yield from repeated("value_rules", ids)
    for rule in spec.value_rules:
        yield from _value_rule(f"value_rules[{rule.id}]", rule, spec)
    for buffer in spec.buffers.values():
        yield from undeclared(f"buffers.{buffer.name}.rules", "value rule", buffer.rules, ids)


def _value_rule(at: str, rule: ValueRule, spec: Spec) -> Iterator[str]:
    yield from unneeded(at, rule.needs)
    yield from repeated(f"{at}.faults", rule.faults)
    for key in ("says", "because", "kept_by"):
        if not getattr(rule, key).strip():
            yield f"{at}.{key}: says nothing"
    if any(rule.id == other.id for other in spec.rules):
        yield f"{at}.id: {rule.id!r} is the id of a rule in [[rules]]; a rule is about order or about values"
