"""The registry of planted faults: each changes the library, is found, is undone, and breaks rules that there are."""

from __future__ import annotations

import gc
import importlib.util
import re

import pytest

from tests.faults import __main__ as command
from tests.faults import stage
from tests.faults.properties import PROPERTIES, Find, forget_engines
from tests.faults.stage import Line, concerned, pasted, search_faults
from tsgraph.capture.mode import is_capturing
from tsgraph.errors import CallerError
from tsgraph.spec.load import load_spec
from tsgraph.testing import faults
from tsgraph.testing.faults import FAULTS, plant

SPECS = ("decode", "speculative", "reference")
VALUE_RULES = {rule.id: rule for rule in load_spec("decode").value_rules}


@pytest.fixture(autouse=True)
def engines():
    """No engine outlives the fault that it was built with."""
    forget_engines()
    yield
    forget_engines()


def _attributes(fault):
    """What a fault changes, as it is now."""
    return [vars(patch.owner)[patch.attribute] for patch in fault.patches]


# -- planting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_there_in_the_block_alone(name):
    """Each attribute is another one inside, and the very same afterwards, also where the block raises."""
    before = _attributes(FAULTS[name])
    with plant(name):
        inside = _attributes(FAULTS[name])
    assert all(one is not other for one, other in zip(before, inside, strict=True))
    assert all(one is other for one, other in zip(before, _attributes(FAULTS[name]), strict=True))
    with pytest.raises(KeyboardInterrupt), plant(name):
        raise KeyboardInterrupt
    assert all(one is other for one, other in zip(before, _attributes(FAULTS[name]), strict=True))


def test_faults_can_be_planted_together():
    """Two faults of one attribute both hold inside, and each is undone."""
    before = _attributes(FAULTS["stale_tail"])
    with plant("stale_tail"), plant("caller_tensor_written"), plant("mode_left_on"):
        assert before != _attributes(FAULTS["caller_tensor_written"])
    assert before == _attributes(FAULTS["stale_tail"])


def test_an_unknown_fault_is_refused_with_a_near_name():
    """A typo is answered with the name that it looks like."""
    with pytest.raises(CallerError, match=r"there is no fault 'stale_tale'; did you mean 'stale_tail'\?"):
        plant("stale_tale")


def test_what_a_fault_leaves_in_the_process_is_put_back():
    """Capture mode that a fault leaves on is off after the block, and the collector works as before."""
    collects = gc.isenabled()
    (prop,) = (prop for prop in PROPERTIES if "mode_left_on" in prop.telling)
    for name in ("mode_left_on", "garbage_left_frozen"):
        with plant(name), pytest.raises(AssertionError):
            prop.check(prop.telling[name])
    assert (collects, False) == (gc.isenabled(), is_capturing())


# -- finding -----------------------------------------------------------------------------------------------------------


TELLING = [(name, prop) for prop in PROPERTIES for name in prop.telling]


@pytest.mark.parametrize(("name", "prop"), TELLING, ids=[name for name, _ in TELLING])
def test_a_fault_is_found(name, prop):
    """An example that tells of the fault fails while it is planted: it really changes what the library does."""
    with plant(name), pytest.raises(Exception):  # noqa: B017, PT011 - a fault may end in any error
        prop.check(prop.telling[name])
    assert prop in concerned(FAULTS[name])


@pytest.mark.parametrize("prop", PROPERTIES[:-1], ids=lambda prop: prop.name)
def test_without_a_fault_nothing_is_found(prop):
    """The same examples pass in the library as it is; those of the last are in the tests of padding."""
    examples = list(prop.telling.values())
    for index, example in enumerate(examples):
        if example not in examples[:index]:
            prop.check(example)


def test_each_fault_has_a_telling_example():
    """No fault is left to luck."""
    assert sorted(FAULTS) == sorted(name for name, _ in TELLING)


def test_a_search_tells_what_it_found_and_how_to_repeat_it():
    """The stage's line names the property and the number of examples; the pasted program fails with the fault alone."""
    (line,) = search_faults([FAULTS["padding_when_off"]])
    assert ("padding_when_off", "where a step goes") == (line.fault, line.found_by)
    assert re.fullmatch(r"padding_when_off +where a step goes +\d+ examples? +\d+\.\d\d s", str(line))
    program = pasted(PROPERTIES[0], line.find)
    exec(program, {})  # noqa: S102 - the project's own words
    with plant("padding_when_off"), pytest.raises(AssertionError, match="expected None, got"):
        exec(program, {})  # noqa: S102


def test_a_search_without_a_fault_finds_nothing():
    """A property that holds tells how many examples it was tried on; a fault that nothing finds is told as such."""
    assert isinstance(PROPERTIES[0].search(most=5), int)
    assert "NOT FOUND" in str(Line("never_found", None, None, 1.0))


def test_the_stage_fails_where_a_fault_is_not_found(monkeypatch, capsys):
    """Exit status 1, and the fault's name, where no property finds it; 0 where all are found."""
    monkeypatch.setattr(stage, "PROPERTIES", PROPERTIES[:1])
    monkeypatch.setattr(gc, "freeze", lambda: None)
    assert 0 == command.main(["padding_when_off", "--errors"])
    monkeypatch.setattr(stage, "search_faults", lambda _faults: [Line("padding_when_off", None, None, 0.0)])
    assert 1 == command.main(["padding_when_off"])
    assert "padding_when_off             NOT FOUND" in capsys.readouterr().out


def _raised_in(file):
    """The error of a function of `file` that uses a name which is gone."""
    names: dict[str, object] = {}
    exec(compile("def wrong(self):\n    return self.gone", str(file), "exec"), names)  # noqa: S102
    try:
        names["wrong"](None)
    except AttributeError as error:
        return error


def test_a_fault_that_does_not_fit_what_it_is_planted_in_is_broken_and_not_found(monkeypatch):
    """A name that is gone makes any property fail, which shows nothing of the rule that the fault is to break."""
    home = importlib.util.find_spec("tsgraph.testing.faults").submodule_search_locations[0]
    mistake, chained = _raised_in(f"{home}/standing.py"), CallerError("a step failed")
    chained.__cause__ = mistake
    assert [True, True] == [stage.is_broken(error) for error in (mistake, chained)]
    assert [False] * 3 == [
        stage.is_broken(error) for error in (_raised_in("step.py"), CallerError("it is found"), None)
    ]

    find = Find(chained, None, 1, 0.0)
    monkeypatch.setattr(stage, "search_faults", lambda _: iter([Line("sweep_stuck", "recorded memory", find, 0.0)]))
    outcome = stage.plant_one("sweep_stuck")
    assert not outcome.ok
    assert "IS BROKEN ITSELF" in outcome.line


def test_the_stage_fails_where_something_is_found_without_a_fault(monkeypatch, capsys):
    """The control run: a find without a fault is a find in the library, and is printed to be pasted."""
    monkeypatch.setattr(stage, "PROPERTIES", PROPERTIES[:1])
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(type(PROPERTIES[0]), "search", lambda prop: Find(ValueError("a bug"), 3, 1, 0.0))
    assert 1 == command.main(["padding_when_off"])
    assert "check_route(3)" in capsys.readouterr().out


# -- rules -------------------------------------------------------------------------------------------------------------


def test_faults_and_value_rules_name_each_other():
    """A value rule lists exactly the faults that break it, and each fault is listed by every value rule it breaks."""
    listed = {(rule.id, name) for rule in VALUE_RULES.values() for name in rule.faults}
    broken = {(rule, fault.name) for fault in FAULTS.values() for rule in fault.breaks if rule in VALUE_RULES}
    assert listed == broken


def test_every_value_rule_has_a_fault():
    """No value rule is only words."""
    assert [] == [rule.id for rule in VALUE_RULES.values() if not rule.faults]


def test_faults_break_rules_that_there_are():
    """What a fault breaks is the number of a rule or a property; `R23` stands for R23a and R23b."""
    law = load_spec("decode")
    ids = [each.id for each in (*law.rules, *law.value_rules, *law.properties)]
    numbers = {re.fullmatch(r"([A-Z]\d+)[a-z]?", each)[1] for each in ids}
    assert set() == {rule for fault in FAULTS.values() for rule in fault.breaks} - numbers


@pytest.mark.parametrize("spec", SPECS)
def test_value_rules_are_kept_by_modules_that_there_are(spec):
    """`kept_by` is a module of tsgraph."""
    kept = {rule.kept_by for rule in load_spec(spec).value_rules}
    assert set() == {name for name in kept if importlib.util.find_spec(f"tsgraph.{name}") is None}


@pytest.mark.parametrize("spec", ["decode", "speculative"])
def test_every_pad_states_a_rule(spec):
    """Each buffer names the value rule that its pad states, and each of R30 to R35 is stated by a buffer."""
    stated = {buffer.name: buffer.rules for buffer in load_spec(spec).buffers.values()}
    assert [] == [name for name, rules in stated.items() if not rules]
    assert {f"R3{digit}" for digit in range(6)} <= {rule for rules in stated.values() for rule in rules}


def test_every_fault_is_said():
    """Names are identifiers, and each says in a phrase what the library does."""
    assert all(name.isidentifier() and fault.says and fault.breaks for name, fault in FAULTS.items())
    assert {"stale_tail", "zero_pads"} <= {fault.name for fault in faults.breaking("R30")}
