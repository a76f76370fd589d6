"""A model made of plain lists and dicts says the same as states, monitors and rules, in any order of events."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tsgraph.errors import CallerError, RuleViolation
from tsgraph.lifecycle import Lifecycle
from tsgraph.testing import find, machine_for

HEATING = st.sampled_from([None, None, "take", "burn"])  # which step fails
CASTING = st.sampled_from([None, None, "pour", "vote"])
VOTES = st.sampled_from(["agreed", "agreed", "refused"])


@attrs.define
class Books:
    """What a scope saw, as a list of names; counters and modes as dicts."""

    events: list[str] = attrs.field(factory=list)
    counters: Counter[str] = attrs.field(factory=Counter)
    modes: dict[str, bool] = attrs.field(factory=dict)

    def later(self, event: str, than: str) -> bool:
        """Whether the newest `event` comes after the newest `than`, read off the list from its end."""
        return next((seen == event for seen in reversed(self.events) if seen in (event, than)), False)


@attrs.define
class Model:
    """The tiny spec, told a second time, by hand: one slot of it."""

    shared: Books
    own: Books = attrs.field(factory=Books)
    state: str = "cold"

    def see(self, event: str) -> None:
        self.own.events.append(event)
        self.shared.events.append(event)

    def take(self) -> None:
        self.own.counters["held"] += 1
        self.shared.counters["lent"] += 1
        self.see("taken")

    def burn(self) -> None:
        self.own.counters["held"] -= 1
        self.shared.counters["lent"] -= 1
        self.see("burnt")

    def switch(self, mode: str, on: bool, event: str) -> None:
        self.shared.modes[mode] = on
        self.see(event)

    def put_back(self) -> None:
        self.own.counters["held"] = 0
        self.see("put_back")

    def vote(self, outcome: str) -> None:
        self.see(outcome)

    def clean(self, *, voted: bool) -> None:
        """What `break` does; a slot that has voted does not vote again."""
        self.switch("casting", False, "off")
        self.put_back()
        if not voted:
            self.vote("agreed")
        self.state = "broken"

    def refusal_to_pour(self) -> str | None:
        """The first rule that guards `pour`, in the order of the spec."""
        if not self.shared.modes.get("light"):
            return "lit"
        if not self.shared.modes.get("casting"):
            return "casting"
        if not self.own.later("burnt", "poured"):
            return "burnt_here"
        return None if self.shared.later("lit", "served") else "fresh"


class Smithy(RuleBasedStateMachine):
    """Up to four slots of two variants that share one runtime; one rule per trigger, one for a whole bringing-up."""

    slots = Bundle("slots")

    def __init__(self, spec: Any, recorder: Any) -> None:
        super().__init__()
        self.lifecycle, self.recorder = Lifecycle(spec), recorder
        self.shared = Books()
        self.pairs: list[tuple[Any, Model]] = []

    def session_events(self, *events: str) -> None:
        self.shared.events.extend(events)

    def raises(self, step: str) -> Any:
        return self.recorder(raises={step: OSError(step)})

    # -- slots and sessions --

    @precondition(lambda self: len(self.pairs) < 4)
    @rule(target=slots, variant=st.sampled_from("ab"))
    def begin(self, variant: str) -> Any:
        """A new slot."""
        pair = self.lifecycle.begin(f"{variant}/{len(self.pairs)}", variant), Model(self.shared)
        self.pairs.append(pair)
        return pair

    @precondition(lambda self: not self.lifecycle.session_open)
    @rule()
    def open(self) -> None:
        """Open a session."""
        self.lifecycle.open_session(self.recorder())
        self.light(True)

    @precondition(lambda self: self.lifecycle.session_open)
    @rule()
    def close(self) -> None:
        """Close it."""
        self.lifecycle.close_session(self.recorder())
        self.light(False)

    def light(self, on: bool) -> None:
        self.shared.modes["light"] = on
        self.session_events("lit" if on else "dark")

    @rule()
    def serve(self) -> None:
        """Serve a replay, which makes what `fresh` demands of the runtime's events old."""
        self.lifecycle.admit("replay")
        for effect in self.lifecycle.serving.replay:
            self.lifecycle.runtime_scope.apply(effect)
        self.session_events("lent_out", "served")

    # -- one rule per trigger --

    @rule(pair=slots, failing=HEATING)
    def heat(self, pair: Any, failing: str | None) -> None:
        """Two rounds of taking and burning, from cold; or a failure in the first."""
        life, model = pair
        if model.state != "cold":
            return self.refused(life, "heat", "")
        with self.session():
            if failing == "take":
                self.fails(life, "heat", "take")
                model.clean(voted=False)
            elif failing == "burn":
                self.fails(life, "heat", "burn")
                model.take()
                model.clean(voted=False)
            else:
                life.fire("heat", self.recorder())
                for work in (model.take, model.burn) * 2:
                    work()
                model.state = "hot"
        return None

    @rule(pair=slots, failing=CASTING, vote=VOTES)
    def cast(self, pair: Any, failing: str | None, vote: str) -> None:
        """Pour in casting mode, and vote, from hot."""
        life, model = pair
        if model.state != "hot":
            return self.refused(life, "cast", "")
        if refusal := self.refusal_to_cast(model):
            return self.refused(life, "cast", refusal)
        with self.session():
            self.pour(life, model, failing, vote)
        return None

    def refusal_to_cast(self, model: Model) -> str | None:
        """`cast` switches the mode on, and opens a session where none is open: what the rules on `pour` say then."""
        seen = [*self.shared.events] + ([] if self.lifecycle.session_open else ["lit"])
        shared = Books(seen, self.shared.counters, {"light": True, "casting": True})
        return Model(shared, model.own).refusal_to_pour()

    def pour(self, life: Any, model: Model, failing: str | None, vote: str) -> None:
        model.switch("casting", True, "on")
        if failing == "pour":
            self.fails(life, "cast", "pour")
            return model.clean(voted=False)
        model.see("poured")
        model.switch("casting", False, "off")
        if failing == "vote":
            self.fails(life, "cast", "vote")
            return model.clean(voted=True)
        model.vote(vote)
        if vote == "agreed":
            life.fire("cast", self.recorder())
            model.state = "solid"
            return None
        with pytest.raises(RuleViolation, match="rule agreed"):
            life.fire("cast", self.recorder(outcomes={"vote": vote}))
        return model.clean(voted=True)

    @rule(pair=slots)
    def spoil(self, pair: Any) -> None:
        """Spoil what is solid."""
        self.plain(pair, "spoil", ("solid",), "spoilt")

    @rule(pair=slots)
    def free(self, pair: Any) -> None:
        """Free what is solid, spoilt or broken."""
        self.plain(pair, "free", ("solid", "spoilt", "broken"), "freed")

    @rule(pair=slots)
    def again(self, pair: Any) -> None:
        """Begin again: a slot's own books start anew."""
        if self.plain(pair, "again", ("spoilt", "broken", "freed"), "cold"):
            pair[1].own = Books()

    @rule(pair=slots)
    def break_(self, pair: Any) -> None:
        """Fail by hand."""
        life, model = pair
        if model.state not in ("cold", "hot"):
            self.refused(life, "break", "")
            return
        life.fire("break", self.recorder())
        model.clean(voted=False)

    @rule(pair=slots)
    def end(self, pair: Any) -> None:
        """End for good; what is held is put back."""
        if self.plain(pair, "end", ("cold", "hot", "solid", "spoilt", "broken", "freed"), "ended"):
            pair[1].put_back()

    @rule(pair=slots, failing=CASTING, vote=VOTES)
    def bring_up(self, pair: Any, failing: str | None, vote: str) -> None:
        """Take a slot from wherever it is to solid, if it can come there and nothing fails."""
        self.again(pair)
        self.heat(pair, None)
        self.cast(pair, failing, vote)

    # -- what rules have in common --

    def plain(self, pair: Any, trigger: str, sources: tuple[str, ...], to: str) -> bool:
        life, model = pair
        if model.state not in sources:
            self.refused(life, trigger, "")
            return False
        life.fire(trigger, self.recorder())
        model.state = to
        return True

    def refused(self, life: Any, trigger: str, by: str) -> None:
        perform = self.recorder()
        assert by == life.explain(trigger).refusal.rule
        with pytest.raises(CallerError) as caught:
            life.fire(trigger, perform)
        assert (by, []) == (getattr(caught.value, "rule", ""), perform.steps)

    def fails(self, life: Any, trigger: str, step: str) -> None:
        once = self.raises(step)
        with pytest.raises(OSError, match=step):
            life.fire(trigger, once)

    def session(self) -> Any:
        return _OwnSession(self)

    # -- what always holds --

    @invariant()
    def the_monitors_agree_with_the_model(self) -> None:
        """States, counts and order of events, counters and modes are those of the plain lists."""
        layout, runtime = self.lifecycle.law.layout, self.lifecycle.runtime_scope
        self.agree(runtime, self.shared.events, layout)
        assert self.shared.counters["lent"] == runtime.counters[layout.counters["lent"]]
        for mode, number in layout.modes.items():
            assert self.shared.modes.get(mode, False) == runtime.modes[number]
        for life, model in self.pairs:
            assert model.state == life.state
            assert model.own.counters["held"] == life.scopes.slot.counters[layout.counters["held"]]
            self.agree(life.scopes.slot, model.own.events, layout)

    @staticmethod
    def agree(monitors: Any, events: list[str], layout: Any) -> None:
        counts = Counter(events)
        newest = {event: number for number, event in enumerate(events)}
        assert {event: counts[event] for event in layout.events} == {
            e: monitors.count[n] for e, n in layout.events.items()
        }
        assert {event: newest.get(event, -1) for event in layout.events} == {
            event: monitors.newest[number] for event, number in layout.events.items()
        }


@attrs.define
class _OwnSession:
    """The session that a slot opens where none is open, in the model: light before, dark after."""

    smithy: Smithy
    own: bool = False

    def __enter__(self) -> None:
        self.own = not self.smithy.lifecycle.session_open
        if self.own:
            self.smithy.light(True)

    def __exit__(self, *error: object) -> None:
        if self.own:
            self.smithy.light(False)


def test_the_generated_machine_agrees_too(tiny):
    """What is generated from the tiny spec finds nothing either: the oracle's reading is that of the model by hand."""
    assert None is find(machine_for(tiny), settings(max_examples=15))


def test_a_model_of_plain_lists_agrees(tiny, recorder):
    """Whatever slots, sessions and served forwards do in any order, the machine and the model say the same."""
    run_state_machine_as_test(lambda: Smithy(tiny, recorder))
