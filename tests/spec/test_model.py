from __future__ import annotations

import itertools

import attrs
import pytest

from tsgraph.spec import check_spec, load_spec, shipped
from tsgraph.spec.model import COLLABORATORS


@pytest.mark.no_cover
@pytest.mark.parametrize("name", shipped())
def test_a_spec_is_sound_whoever_is_absent(name):
    """Every combination of collaborators, and either policy, leaves nothing dangling."""
    spec = load_spec(name)
    without = attrs.evolve(spec, policy=attrs.evolve(spec.policy, freeze_gc=False))
    for held in itertools.product((False, True), repeat=len(COLLABORATORS)):
        present = frozenset(itertools.compress(COLLABORATORS, held))
        assert () == check_spec(spec.restricted_to(present)), present
        assert () == check_spec(without.restricted_to(present)), present


def test_absence_drops_what_needs_it():
    """Without collaborators no step, rule, counter or buffer of theirs is left; the law of capture mode is."""
    alone = load_spec("decode").restricted_to(frozenset())
    assert {None, "freeze_gc"} == {thing.needs for thing in (*alone.steps.values(), *alone.rules, *alone.properties)}
    assert ({}, {}) == (alone.counters, {name: b for name, b in alone.buffers.items() if b.needs})
    assert ("synchronize", "fill_lengths", "bind_metadata", "forward") == alone.lifecycle.transition("warm").steps
    assert {"R20a", "R20b", "R9a"} < {rule.id for rule in alone.rules}
    assert "R9b" not in {rule.id for rule in alone.rules}
