"""Whether a spec is structurally sound: what it names exists, and its lifecycle is a graph that a slot can live along.

Structure only. Whether the rules uphold the properties is another question, answered by exploring orders of events.
"""

from __future__ import annotations

from tsgraph.spec.checks.buffers import check_buffers
from tsgraph.spec.checks.law import check_properties, check_rules, check_steps
from tsgraph.spec.checks.lifecycle import check_lifecycle
from tsgraph.spec.checks.names import check_names
from tsgraph.spec.checks.numbers import check_numbers
from tsgraph.spec.checks.values import check_values
from tsgraph.spec.model import Spec

CHECKS = (
    check_names,
    check_lifecycle,
    check_steps,
    check_rules,
    check_properties,
    check_values,
    check_buffers,
    check_numbers,
)


def check_spec(spec: Spec) -> tuple[str, ...]:
    """Every structural problem of `spec`, each as `key.path: what`; none if it is sound. Loaded specs always are."""
    return tuple(dict.fromkeys(problem for check in CHECKS for problem in check(spec)))
