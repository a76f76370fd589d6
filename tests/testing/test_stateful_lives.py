"""The machine made from a spec: it agrees with what is right, finds what is planted, and its programs show it."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import HealthCheck, given, settings

from tsgraph.lifecycle import law, life, monitors, shared, trouble
from tsgraph.testing import find, machine_for
from tsgraph.testing.stateful import shrink
from tsgraph.testing.strategies import small_specs

GATE = settings(max_examples=100, derandomize=True, database=None, deadline=None)


def _without_rule(name):
    guards = law._guards

    def fewer(spec, layout):
        return {at: tuple(g for g in held if g.rule.id != name) for at, held in guards(spec, layout).items()}

    return law, "_guards", fewer


def _scope_mixed():
    reach = law.reach
    return law, "reach", lambda what, scope, spec: "slot" if scope == "variant" else reach(what, scope, spec)


def _after_or_at_once():
    def after(scope, event, than):
        return lambda scopes: scopes[scope].newest[event] >= scopes[scope].newest[than]

    return monitors, "_after", after


def _cleanup_skipped():
    def attempt(self, transition, attempt, trouble):
        self._attempt([name for name in transition.steps if name not in attempt.tried], attempt, trouble)

    return life.Life, "_attempt_all", attempt


def _votes_twice():
    def attempt(self, transition, attempt, trouble):
        self._attempt(transition.cleanup + transition.steps, attempt, trouble)

    return life.Life, "_attempt_all", attempt


def _first_error_ends_cleanup():
    def attempt(self, steps, work):
        try:
            for step in steps:
                work(step)
        except BaseException as error:  # noqa: BLE001  as what it stands for
            self._keep(error, "ended")

    return trouble.Trouble, "attempt", attempt


def _counters_never_set():
    apply = monitors.Monitors.apply
    return monitors.Monitors, "apply", lambda self, effect: apply(self, attrs.evolve(effect, sets=()))


def _served_unseen():
    return shared.Shared, "_effects", lambda self, kind: iter(())


FAULTS = {
    "a guard is dropped": _without_rule("C2"),
    "floors are ignored": (monitors.Layout, "_floors", lambda self, deltas: ()),
    "scopes are mixed up": _scope_mixed(),
    "at once counts as after": _after_or_at_once(),
    "a cleanup is skipped": _cleanup_skipped(),
    "a cleanup ends at its first error": _first_error_ends_cleanup(),
    "a failed rank votes twice": _votes_twice(),
    "outcomes are ignored": (law.Law, "outcome", lambda self, step, said: step.event[0]),
    "counters are never set": _counters_never_set(),
    "served forwards are not seen": _served_unseen(),
}


def run(program):
    """Run a printed program as a file of its own."""
    exec(compile(program, "program", "exec"), {})  # noqa: S102  it was just made


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Finds are made a little shorter only."""
    monkeypatch.setattr(shrink, "SECONDS", 1.0)


def test_shipped_spec_and_oracle_agree():
    """Nothing is found in what is right."""
    assert None is find(machine_for("decode"), settings(max_examples=8))


@settings(max_examples=4, suppress_health_check=[HealthCheck.nested_given])
@given(spec=small_specs())
def test_small_specs_and_oracle_agree(spec):
    """The machine can be made from any valid spec."""
    assert None is find(machine_for(spec), settings(max_examples=3, database=None))


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault, monkeypatch):
    """Each fault of rules, monitors and lives is found within the gate's budget."""
    monkeypatch.setattr(*FAULTS[fault])

    assert find(machine_for("decode"), GATE, shrink=False) is not None


def test_find_is_a_program(monkeypatch):
    """The program of a find, run by itself, fails at its last line while the fault is there, and not without it."""
    with monkeypatch.context() as planted:
        planted.setattr(*FAULTS["a cleanup is skipped"])
        found = find(machine_for("decode"), GATE)
        with pytest.raises(AssertionError) as failed:
            run(found.program)

    assert failed.traceback[-1].lineno + 1 == len(found.program.splitlines())
    run(found.program)
