"""What lifecycle tests share: the decode spec, a tiny spec made by hand, work that is recorded, and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from tests.lifecycle.ready import ready
from tsgraph.lifecycle import Life, Lifecycle
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import (
    COLLABORATORS,
    After,
    AtLeast,
    Counter,
    CounterIs,
    Policy,
    Rule,
    Serving,
    Session,
    Sizes,
    Spec,
    Step,
    Switch,
    Transition,
    Warmup,
)
from tsgraph.spec.model import Lifecycle as Roles
from tsgraph.spec.model import ModeIs as Mode


@attrs.define
class Recorder:
    """Performs steps: notes their names, says the given `outcomes`, and raises when the tests want it to.

    `raises`: an error for each step that always raises. `at`: the number of the performed step that raises `error`.
    """

    outcomes: Mapping[str, str] = attrs.field(factory=dict)
    raises: Mapping[str, BaseException] = attrs.field(factory=dict)
    at: int | None = None
    error: BaseException | None = None
    steps: list[str] = attrs.field(factory=list)

    def __call__(self, step: Step) -> str | None:
        self.steps.append(step.name)
        if self.error is not None and len(self.steps) - 1 == self.at:
            raise self.error
        if step.name in self.raises:
            raise self.raises[step.name]
        return self.outcomes.get(step.name)


@pytest.fixture(scope="session")
def recorder() -> type[Recorder]:
    """The class of recorders."""
    return Recorder


@pytest.fixture(scope="session")
def noop() -> Callable[[Step], None]:
    """Work that always succeeds."""
    return lambda step: None


def _snapshot(life: Life) -> tuple[Any, ...]:
    return (life.state, life.history, life.cause, life.last_failure, life.scopes.copy(), life._lifecycle.session_open)


@pytest.fixture(scope="session")
def snapshot() -> Callable[[Life], tuple[Any, ...]]:
    """Everything that a refusal must leave as it was: state, history, cause, last failure, all scopes, the session."""
    return _snapshot


@pytest.fixture(scope="session")
def decode() -> Spec:
    """The shipped decode spec, with every collaborator."""
    return load_spec("decode").restricted_to(frozenset(COLLABORATORS))


@pytest.fixture(scope="session")
def replaced() -> Callable[..., Spec]:
    """A spec with other words for one of its transitions: `replaced(spec, "warm", steps=(…))`."""

    def replaced(spec: Spec, on: str, /, **words: Any) -> Spec:
        rows = tuple(attrs.evolve(t, **words) if t.on == on else t for t in spec.lifecycle.transitions)
        return attrs.evolve(spec, lifecycle=attrs.evolve(spec.lifecycle, transitions=rows))

    return replaced


@pytest.fixture(scope="session")
def taken() -> Callable[[Spec, tuple[str, ...]], Life]:
    """A life of a spec that has taken the given triggers, with work that always succeeds."""

    def taken(
        spec: Spec | Lifecycle, triggers: tuple[str, ...], name: str = "default/8", variant: str = "default"
    ) -> Life:
        life = (spec if isinstance(spec, Lifecycle) else ready(spec)).begin(name, variant)
        for trigger in triggers:
            life.fire(trigger, lambda step: None)
        return life

    return taken


def _rule(name: str, guards: str, condition: Any, scope: Any = "slot") -> Rule:
    return Rule(id=name, guards=(guards,), condition=condition, because=f"why {name}", fix=f"fix {name}", scope=scope)


def _step(name: str, *event: str, **words: Any) -> Step:
    return Step(name=name, event=event, **words)


@pytest.fixture(scope="session")
def tiny() -> Spec:
    """A spec made by hand that has one of everything: each kind of rule, counters, modes, scopes, a session.

    The route is cold → heat (twice take, burn) → hot → cast (switch on, pour, switch off, vote) → solid.
    """
    transitions = (
        Transition(on="heat", source=("cold",), to="hot", steps=("take", "burn"), repeat=2),
        Transition(on="cast", source=("hot",), to="solid", steps=("switch_on", "pour", "switch_off", "vote")),
        Transition(on="spoil", source=("solid",), to="spoilt"),
        Transition(
            on="break", source=("cold", "hot"), to="broken", steps=("vote",), cleanup=("switch_off", "put_back")
        ),
        Transition(on="free", source=("solid", "spoilt", "broken"), to="freed"),
        Transition(on="again", source=("spoilt", "broken", "freed"), to="cold"),
        Transition(
            on="end", source=("cold", "hot", "solid", "spoilt", "broken", "freed"), to="ended", cleanup=("put_back",)
        ),
    )
    steps = (
        _step("light", "lit", mode={"light": True}),
        _step("darken", "dark", mode={"light": False}),
        _step("take", "taken", count={"held": 1, "lent": 1}),
        _step("burn", "burnt", count={"held": -1, "lent": -1}),
        _step("put_back", "put_back", set={"held": 0}),
        _step("switch_on", "on", mode={"casting": True}),
        _step("pour", "poured"),
        _step("switch_off", "off", mode={"casting": False}),
        _step("vote", "agreed", "refused"),
        _step("serve", "served", count={"lent": -1}),
        _step("lend", "lent_out", count={"lent": 1}),
    )
    rules = (
        _rule("one_held", "burn", CounterIs("held", 1)),
        _rule("lit", "pour", Mode("light", True)),
        _rule("casting", "pour", Mode("casting", True)),
        _rule("burnt_here", "pour", After("burnt", "poured")),
        _rule("burnt_twice", "heat", AtLeast("burnt", 2)),
        _rule("none_held", "heat", CounterIs("held", 0)),
        _rule("cast_over", "cast", Mode("casting", False)),
        _rule("poured", "cast", After("poured", "burnt")),
        _rule("agreed", "cast", After("agreed", "poured")),
        _rule("fresh", "pour", After("lit", "served"), "runtime"),
    )
    counters = (
        Counter(name="held", counts="fuel in hand", floor=0),
        Counter(name="lent", counts="fuel out of the store", scope="runtime", floor=0),
    )
    return Spec(
        name="tiny",
        version=1,
        lifecycle=Roles(
            initial="cold",
            final=("ended",),
            replays_in=("solid",),
            states=("cold", "hot", "solid", "spoilt", "broken", "freed", "ended"),
            on_failure="break",
            on_change="spoil",
            on_release="free",
            on_reset="again",
            transitions=transitions,
        ),
        steps={step.name: step for step in steps},
        counters={counter.name: counter for counter in counters},
        modes={"casting": Switch(name="casting"), "light": Switch(name="light")},
        rules=rules,
        properties=(),
        session=Session(enter=("light",), leave=("darken",)),
        serving=Serving(replay=("lend", "serve"), eager=("lend",), abandon=("serve",)),
        warmup=Warmup(forwards=2),
        sizes=Sizes(default=(1,), default_without_padding=(1,), cap=1),
        buffers={},
        outputs={},
        policy=Policy(),
    )
