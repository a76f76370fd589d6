"""Value rules: every flaw is told, with its address."""

from __future__ import annotations

import pytest

KEPT = {"id": "V", "says": "s", "because": "b", "kept_by": "buffers.staging"}

FLAWS = [
    ([KEPT, KEPT], {}, ["value_rules: 'V' is declared 2 times"]),
    ([{**KEPT, "says": " "}], {}, ["value_rules[V].says: says nothing"]),
    ([{**KEPT, "because": ""}], {}, ["value_rules[V].because: says nothing"]),
    ([{**KEPT, "kept_by": ""}], {}, ["value_rules[V].kept_by: says nothing"]),
    ([{**KEPT, "faults": ["f", "f"]}], {}, ["value_rules[V].faults: 'f' is declared 2 times"]),
    (
        [{**KEPT, "needs": "rank"}],
        {},
        ["value_rules[V].needs: unknown collaborator or policy 'rank'; did you mean 'ranks'?"],
    ),
    (
        [{**KEPT, "id": "A"}],
        {},
        ["value_rules[A].id: 'A' is the id of a rule in [[rules]]; a rule is about order or about values"],
    ),
    ([KEPT], {"rules": ["W"]}, ["buffers.ids.rules: unknown value rule 'W'"]),
    ([KEPT], {"rules": ["V"]}, []),
]


@pytest.mark.parametrize(("rules", "buffer", "expected"), FLAWS)
def test_each_flaw_of_a_value_rule_is_told(small, problems, rules, buffer, expected):
    """A spec with one flaw in its value rules has exactly the problems that name it."""
    small["value_rules"] = rules
    small["buffers"]["ids"] |= buffer
    assert expected == list(problems(small))


def test_a_value_rule_goes_with_what_it_needs(small):
    """Where its collaborator is absent, a value rule is dropped."""
    from tsgraph.spec import parse_spec

    spec = parse_spec({**small, "value_rules": [KEPT, {**KEPT, "id": "D", "needs": "drafter"}]})
    kept = [[rule.id for rule in spec.restricted_to(frozenset(present)).value_rules] for present in ((), ("drafter",))]
    assert [["V"], ["V", "D"]] == kept
