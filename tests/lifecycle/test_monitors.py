from __future__ import annotations

import attrs
import pytest

from tsgraph.errors import RuleViolation
from tsgraph.lifecycle.monitors import Layout, Scopes, compile_condition, reach
from tsgraph.spec.model import After, AtLeast, Counter, CounterIs, ModeIs


@pytest.fixture
def layout(tiny):
    """The numbers of the tiny spec."""
    return Layout.of(tiny)


@pytest.fixture
def scopes(layout):
    """Scopes in which nothing has happened."""
    return Scopes(layout.monitors(), layout.monitors(), layout.monitors())


@pytest.fixture
def happen(tiny, layout, scopes):
    """Let steps happen, with their first event."""

    def happen(*names):
        for name in names:
            scopes.apply(layout.effects(tiny.steps[name], tiny.steps[name].event[0]))

    return happen


def test_an_event_is_fed_to_all_three_scopes(layout, scopes, happen):
    """Events know no scope: each of the three scopes has the newest and the count of every event."""
    happen("take", "take", "burn")
    taken, burnt = layout.events["taken"], layout.events["burnt"]
    for monitors in scopes:
        assert (1, 2) == (monitors.newest[taken], monitors.newest[burnt])
        assert (2, 1) == (monitors.count[taken], monitors.count[burnt])
        assert 3 == monitors.clock


def test_a_counter_moves_in_its_own_scope_only(layout, scopes, happen):
    """`held` is a slot's counter and `lent` the runtime's; the other scopes stay at 0."""
    happen("take", "take")
    held, lent = layout.counters["held"], layout.counters["lent"]
    assert [2, 0, 0] == [monitors.counters[held] for monitors in scopes]
    assert [0, 0, 2] == [monitors.counters[lent] for monitors in scopes]


def test_a_set_overwrites_a_counter(layout, scopes, happen):
    """`set` puts a value in place, whatever was counted."""
    happen("take", "take", "put_back")
    assert 0 == scopes.slot.counters[layout.counters["held"]]


def test_a_mode_moves_in_its_own_scope_only(layout, scopes, happen):
    """A runtime mode is on for the runtime, and off again after the step that leaves it."""
    mode = layout.modes["casting"]
    happen("switch_on")
    assert [False, False, True] == [monitors.modes[mode] for monitors in scopes]
    happen("switch_off")
    assert not scopes.runtime.modes[mode]


def test_a_counter_below_its_floor_is_refused_before_any_change(layout, scopes, happen):
    """R24: an underflow raises at the moment it happens, names the counter, and no scope is changed, nor the clock."""
    happen("take", "burn")
    before = scopes.copy()
    with pytest.raises(RuleViolation, match="counter held is 0") as caught:
        happen("burn")
    assert "R24" == caught.value.rule
    assert before == scopes


def test_a_floor_of_the_runtime_scope_refuses_before_the_slot_scope_changes(tiny, layout, happen, scopes):
    """A step happens in all scopes or in none, also where only the last scope refuses."""
    happen("lend", "serve")
    before = scopes.copy()
    with pytest.raises(RuleViolation, match="counter lent"):
        happen("serve")
    assert before == scopes


def test_one_scope_alone_refuses_an_underflow(layout, tiny):
    """The hot path applies runtime effects alone, and the floor holds there too, before any change."""
    runtime = layout.monitors()
    before = runtime.copy()
    with pytest.raises(RuleViolation, match="counter lent"):
        runtime.apply(layout.effects(tiny.steps["serve"], "served").runtime)
    assert before == runtime


def test_a_counter_without_floor_may_fall(tiny):
    """A floor is declared or there is none."""
    free = attrs.evolve(tiny, counters={**tiny.counters, "lent": Counter(name="lent", counts="x", scope="runtime")})
    layout = Layout.of(free)
    runtime = layout.monitors()
    runtime.apply(layout.effects(free.steps["serve"], "served").runtime)
    assert -1 == runtime.counters[layout.counters["lent"]]


def test_copies_share_nothing(happen, scopes):
    """What happens later does not reach a copy, nor the other way round."""
    happen("take")
    copy = scopes.copy()
    assert copy == scopes
    happen("burn", "switch_on")
    assert copy != scopes
    assert not any(mine is theirs for mine, theirs in zip(copy, scopes, strict=True))


def test_an_outcome_decides_the_event(tiny, layout):
    """Of a step with several events, the effect of each feeds that event."""
    for event in ("agreed", "refused"):
        assert layout.events[event] == layout.effects(tiny.steps["vote"], event).slot.event


@pytest.mark.parametrize(
    ("happened", "holds"),
    [
        ((), False),
        (("switch_off",), False),
        (("switch_on",), True),
        (("switch_on", "switch_off"), False),
        (("switch_on", "switch_off", "switch_on"), True),
    ],
)
def test_after(layout, scopes, happen, happened, holds):
    """The newest event is later than the newest other; a missing event never is, a missing other always lets it."""
    happen("lend", *happened)
    assert holds == compile_condition(After("on", "off"), "slot", layout)(scopes)


def test_at_least(layout, scopes, happen):
    """n of an event, counted since the scope began; more is enough too."""
    condition = compile_condition(AtLeast("taken", 2), "slot", layout)
    held = []
    for _ in range(3):
        happen("take")
        held.append(condition(scopes))
    assert [False, True, True] == held


def test_counter_is(layout, scopes, happen):
    """A counter equals the number, neither less nor more."""
    condition = compile_condition(CounterIs("held", 1), "slot", layout)
    held = [condition(scopes)]
    for _ in range(2):
        happen("take")
        held.append(condition(scopes))
    assert [False, True, False] == held


def test_mode_is(layout, scopes, happen):
    """A mode is on or off, and off to begin with."""
    on, off = (compile_condition(ModeIs("casting", value), "runtime", layout) for value in (True, False))
    assert (False, True) == (on(scopes), off(scopes))
    happen("switch_on")
    assert (True, False) == (on(scopes), off(scopes))


@pytest.mark.parametrize("scope", ["slot", "variant", "runtime"])
def test_a_condition_on_events_reads_the_scope_of_its_rule(layout, tiny, scope):
    """`after` and `at_least` read the scope that the rule names, and no other."""
    scopes = Scopes(layout.monitors(), layout.monitors(), layout.monitors())
    getattr(scopes, scope).apply(layout.effects(tiny.steps["pour"], "poured").slot)
    for condition in (After("poured", "burnt"), AtLeast("poured", 1)):
        held = [compile_condition(condition, read, layout)(scopes) for read in ("slot", "variant", "runtime")]
        assert [read == scope for read in ("slot", "variant", "runtime")] == held


def test_a_condition_on_a_counter_or_mode_reads_the_declared_scope(tiny):
    """Whatever the rule's scope is, a counter or mode lives in one."""
    assert "slot" == reach(CounterIs("held", 0), "runtime", tiny)
    assert "runtime" == reach(ModeIs("casting", True), "slot", tiny)
    assert "variant" == reach(AtLeast("burnt", 1), "variant", tiny)
