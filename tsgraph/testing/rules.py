"""Every rule that a shipped spec holds, and what shows its removal, worked out on the spot.

A rule about order is taken out of the spec, and its row names what breaks; a rule about values, and a buffer's pad,
have planted faults; a floor has a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import attrs

from tsgraph.lifecycle.monitors import FLOOR_RULE
from tsgraph.proving.kill_table import kill_table, settings
from tsgraph.proving.mutants import mutants
from tsgraph.spec.model import Counter, Rule, Spec, ValueRule
from tsgraph.testing.faults import FAULTS

NUMBER = re.compile(r"R(\d+)[a-z]?")
FLOOR_TEST = "tests/lifecycle/test_life.py"
"""Where the floor is tried: the rules that would refuse before it are taken out."""


@attrs.frozen
class Row:
    """One rule: its id, what it demands, what goes wrong otherwise, where it is declared, what shows its removal."""

    rule: str
    demands: str
    because: str
    declared: str
    shown_by: str

    @property
    def number(self) -> int | None:
        """Its number in the contract; None for a rule of our own."""
        found = NUMBER.fullmatch(self.rule)
        return int(found[1]) if found else None


def rule_rows(name: str) -> tuple[Row, ...]:
    """The rows of a shipped spec, by number, then those without one."""
    specs = settings(name)
    spec = specs[""]
    rows = (*_orders(spec, _kills(specs)), *_floors(spec), *_values(spec.value_rules), *_buffers(spec))
    return tuple(sorted(rows, key=lambda row: (row.number is None, row.number or 0, row.rule)))


def _kills(specs: Mapping[str, Spec]) -> dict[str, str]:
    removed = [mutant.name for mutant in mutants(specs[""]) if mutant.kind == "rule removed"]
    table = kill_table(dict(specs), only=removed)
    if not table.complete:
        raise ValueError("\n".join(table.problems))
    return {row.mutant.subject: str(row.kill) for row in table.rows}


def _orders(spec: Spec, kills: Mapping[str, str]) -> Iterator[Row]:
    for rule in spec.rules:
        demands = f"at {_codes(rule.guards)}: {rule.condition}"
        yield Row(rule.id, demands, rule.because, _needing("rule", rule), kills[rule.id])


def _needing(what: str, rule: Rule | ValueRule) -> str:
    return f"{what}, with {rule.needs}" if rule.needs else what


def _floors(spec: Spec) -> Iterator[Row]:
    for counter in spec.counters.values():
        if counter.floor is not None:
            yield Row(FLOOR_RULE, _floor(counter), "an underflow is an error at once", "floor", f"`{FLOOR_TEST}`")


def _floor(counter: Counter) -> str:
    return f"counter `{counter.name}` never falls below {counter.floor}"


def _values(rules: Iterable[ValueRule]) -> Iterator[Row]:
    for rule in rules:
        declared = _needing(f"value rule, kept by `{rule.kept_by}`", rule)
        faults = _faults(dict.fromkeys((*rule.faults, *_breaking(rule.id))))
        yield Row(rule.id, rule.says, rule.because, declared, faults)


def _buffers(spec: Spec) -> Iterator[Row]:
    reasons = {rule.id: rule.because for rule in spec.value_rules}
    for buffer in spec.buffers.values():
        for rule in buffer.rules:
            demands = f"pad rows of `{buffer.name}` hold {buffer.pad}"
            yield Row(rule, demands, buffer.why or reasons.get(rule, ""), "buffer", _faults(_breaking(rule)))


def _breaking(rule: str) -> list[str]:
    return [fault.name for fault in FAULTS.values() if rule in fault.breaks]


def _faults(names: Iterable[str]) -> str:
    listed = _codes(names)
    return f"planted faults {listed}" if listed else ""


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
