"""Mutants: every kind is there, each differs from its original in what it says, and originals stay as they are."""

from __future__ import annotations

import tomllib
from collections import Counter

import attrs
import pytest

from tests.proving.toy import TOY
from tsgraph.proving.mutants import mutants
from tsgraph.spec import load_spec, parse_spec
from tsgraph.spec.model import AtLeast

MUTANTS = {
    "rule removed": 4,
    "rule weakened": 1,  # A without its `than`
    "scope changed": 2 * 4,  # A, B, a counter and a mode; C and D ask in the counter's and in the mode's scope
    "steps swapped": 6 + 1,
    "step dropped": 4 + 2,
    "effect dropped": 4,
}


@pytest.fixture(scope="module")
def toy():
    """The small spec whose kill table is complete."""
    return parse_spec(tomllib.loads(TOY))


@pytest.fixture(scope="module")
def by_name(toy):
    """Its mutants by name."""
    return {mutant.name: mutant for mutant in mutants(toy)}


def test_each_kind_of_mutant_is_made_as_often_as_there_are_places(toy):
    """As many mutants of each kind as the small spec has places for it."""
    assert MUTANTS == Counter(mutant.kind for mutant in mutants(toy))


@pytest.mark.parametrize("name", ["decode", "speculative", "reference"])
def test_mutants_differ_from_their_original_and_have_names_of_their_own(name):
    """No mutant of a shipped spec is its original again, and none is called like another."""
    spec = load_spec(name)
    made = mutants(spec)
    assert [] == [mutant.name for mutant in made if mutant.spec == spec]
    assert [] == [name for name, times in Counter(mutant.name for mutant in made).items() if times > 1]


def test_every_rule_step_and_effect_of_decode_has_its_mutants():
    """Each rule is removed, each step dropped, each pair of a list swapped, each scope and effect changed."""
    spec = load_spec("decode")
    lists = [spec.setup.steps, *(names for t in spec.lifecycle.transitions for names in (t.steps, t.cleanup))]
    session = len(spec.session.enter) + len(spec.session.leave)
    ordered = [rule for rule in spec.rules if hasattr(rule.condition, "event")]
    made = Counter(mutant.kind for mutant in mutants(spec))
    assert len(spec.rules) == made["rule removed"]
    assert sum(map(len, lists)) + session == made["step dropped"]
    assert sum(len(names) * (len(names) - 1) // 2 for names in lists) == made["steps swapped"]
    assert 2 * (len(ordered) + len(spec.counters) + len(spec.modes)) == made["scope changed"]
    effects = sum(len(step.count) + len(step.set) + len(step.mode) for step in spec.steps.values())
    effects += sum(counter.sums is not None for counter in spec.counters.values())
    assert effects == made["effect dropped"]


def test_a_removed_rule_takes_nothing_with_it(toy, by_name):
    """Only that rule is gone."""
    mutant = by_name["A: removed"]
    assert tuple(rule for rule in toy.rules if rule.id != "A") == mutant.spec.rules
    assert toy == attrs.evolve(mutant.spec, rules=toy.rules)


def test_a_weaker_rule_asks_for_less(toy, by_name):
    """Without its `than`, the event at any time will do; every guard of several is dropped; a number is one less."""
    assert AtLeast("measured", 1) == by_name["A: measured at any time, not after built"].spec.rules[0].condition
    decode = {mutant.name: mutant.spec for mutant in mutants(load_spec("decode"))}
    rules = {rule.id: rule for rule in decode["R22: no longer guards record"].rules}
    assert ("forward",) == rules["R22"].guards
    rules = {rule.id: rule for rule in decode["W1: forward 3 times, not 4"].rules}
    assert AtLeast("forward", 3) == rules["W1"].condition


def test_swapped_steps_change_places_and_know_whether_they_may(by_name):
    """Only these two move, the pair says whether it is declared free, and what lies between is remembered."""
    free, law = by_name["make: measure and oil change places"], by_name["make: measure and tidy change places"]
    assert ("oil", "measure", "build", "tidy") == free.spec.lifecycle.transition("make").steps
    assert ("tidy", "oil", "build", "measure") == law.spec.lifecycle.transition("make").steps
    assert (True, False) == (free.free, law.free)
    assert ("measure", "oil", "build", "tidy") == law.between


def test_a_step_that_nothing_takes_any_more_is_not_defined_either(by_name):
    """So that its loss is not found by a definition that is left over; and no group of free steps names it."""
    gone, kept = by_name["make: without oil"].spec, by_name["make: without tidy"].spec
    assert "oil" not in gone.steps
    assert (("measure",),) == gone.lifecycle.transition("make").free
    assert "tidy" in kept.steps


def test_what_an_adversary_tries_anyway_is_marked(by_name):
    """Steps of a transition are left out and turned round by the adversary itself; cleanup never is."""
    assert by_name["make: without oil"].tried
    assert by_name["make: oil and build change places"].tried
    assert not by_name["fail: without tidy"].tried
    assert not by_name["fail: tidy and empty change places"].tried
