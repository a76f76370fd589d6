"""Specs: small ones made from nothing, and variations of those that there are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Literal

import attrs
from hypothesis import strategies as st

from tsgraph.spec.catalog import shipped
from tsgraph.spec.load import load_spec, parse_spec
from tsgraph.spec.model import (
    COLLABORATORS,
    After,
    AtLeast,
    Condition,
    CounterIs,
    ModeIs,
    Rule,
    Spec,
    Step,
    Transition,
)


@attrs.frozen
class LeftOut:
    """A step that a transition does without, by its place among the transition's steps."""

    trigger: str
    place: int

    def of(self, steps: tuple[str, ...]) -> tuple[str, ...]:
        """`steps` without it."""
        return steps[: self.place] + steps[self.place + 1 :]


@attrs.frozen
class Moved:
    """A step of a transition that stands at another place among the others."""

    trigger: str
    place: int
    to: int

    def of(self, steps: tuple[str, ...]) -> tuple[str, ...]:
        """`steps` with it moved."""
        others = steps[: self.place] + steps[self.place + 1 :]
        return others[: self.to] + steps[self.place : self.place + 1] + others[self.to :]


@attrs.frozen
class Variation:
    """What is varied of a spec, in words that print as code.

    `present`: collaborators and policies that are there. `forwards`, `per`: other numbers in `[warmup]`, of specs that
    are loaded by name or path (None: as they are). `edits`: steps left out or moved, so that rules have to refuse.
    `rules`: those that are kept (None: all), so that one does not hide another.
    """

    present: tuple[str, ...] = ()
    forwards: int | None = None
    per: Literal["slot", "variant"] | None = None
    freeze_gc: bool = True
    edits: tuple[LeftOut | Moved, ...] = ()
    rules: tuple[str, ...] | None = None

    def of(self, spec: Spec | str | os.PathLike[str]) -> Spec:
        """`spec`, varied; still whole: `restricted_to` what is present is the next thing to do with it."""
        whole = spec if isinstance(spec, Spec) else self._loaded(os.fspath(spec))
        whole = attrs.evolve(whole, policy=attrs.evolve(whole.policy, freeze_gc=self.freeze_gc))
        rows = tuple(self._edited(row) for row in whole.lifecycle.transitions)
        rules = tuple(rule for rule in whole.rules if self.rules is None or rule.id in self.rules)
        return attrs.evolve(whole, rules=rules, lifecycle=attrs.evolve(whole.lifecycle, transitions=rows))

    def _loaded(self, name: str) -> Spec:
        return _loaded(name, self.forwards, self.per)

    def _edited(self, row: Transition) -> Transition:
        steps = row.steps
        for edit in self.edits:
            if edit.trigger == row.on:
                steps = edit.of(steps)
        return attrs.evolve(row, steps=steps)


@lru_cache(maxsize=64)
def _loaded(name: str, forwards: int | None, per: str | None) -> Spec:
    numbers = {key: value for key, value in {"forwards": forwards, "per": per}.items() if value is not None}
    if not numbers:
        return load_spec(name)
    return parse_spec({"extends": name, "name": "varied", "version": 1, "warmup": numbers})


def specs() -> st.SearchStrategy[Spec]:
    """Valid specs, whole: small ones, and variations of those that are shipped."""
    names = st.sampled_from(sorted(shipped()))
    return st.one_of(small_specs(), names.flatmap(lambda name: st.builds(_varied, st.just(name), variations(name))))


def _varied(name: str, variation: Variation) -> Spec:
    return variation.of(name)


@st.composite
def small_specs(draw: st.DrawFn) -> Spec:
    """Specs of a few states in a row, each reached by a few steps, with rules that the declared order keeps."""
    length, forwards = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    states = ["new", *(f"state_{number}" for number in range(1, length)), "ready", "stale", "failed", "freed", "ended"]
    route = [*states[:length], "ready"]
    steps = {f"step_{number}": {"event": f"event_{number}"} for number in range(2 * length)}
    rows = [
        {"on": f"go_{n}", "from": [route[n]], "to": route[n + 1], "steps": [f"step_{2 * n}", f"step_{2 * n + 1}"]}
        for n in range(length)
    ]
    rows[0] |= {"repeat": "warmup.forwards"}
    before = draw(st.lists(st.integers(1, 2 * length - 1), unique=True, max_size=3))
    return parse_spec(
        {
            "name": "small",
            "version": 1,
            "lifecycle": {
                "initial": "new",
                "final": ["ended"],
                "states": states,
                "replays_in": ["ready"],
                "on_failure": "fail",
                "on_change": "spoil",
                "on_release": "free",
                "on_reset": "again",
            },
            "transitions": [
                *rows,
                {"on": "spoil", "from": ["ready"], "to": "stale"},
                {"on": "fail", "from": route[:-1], "to": "failed", "finally": ["clean"]},
                {"on": "free", "from": ["ready", "stale", "failed"], "to": "freed", "finally": ["clean"]},
                {"on": "again", "from": ["stale", "failed", "freed"], "to": "new"},
                {"on": "end", "from": states[:-1], "to": "ended", "finally": ["clean"]},
            ],
            "steps": steps | {"clean": {"event": "cleaned"}},
            "rules": [_rule_before(number) for number in before],
            "warmup": {"forwards": forwards},
            "sizes": {"default": [1, 2], "default_without_padding": [1, 2], "cap": 2},
            **{table: {} for table in ("counters", "modes", "session", "serving", "buffers", "outputs", "policy")},
            "properties": [],
        }
    )


def _rule_before(number: int) -> dict[str, Any]:
    """The step before has happened when this one does."""
    return {
        "id": f"S{number}",
        "guards": [f"step_{number}"],
        "kind": "at_least",
        "event": f"event_{number - 1}",
        "n": 1,
        "because": "the steps build on each other",
        "fix": f"take step_{number - 1} first",
    }


def variations(spec: Spec | str) -> st.SearchStrategy[Variation]:
    """Variations of `spec` that keep its orders and rules: any collaborators, 1 or 2 warm-up forwards, the policy."""
    whole = spec if isinstance(spec, Spec) else load_spec(spec)
    numbers = not isinstance(spec, Spec)
    return st.builds(
        Variation,
        present=_presences(whole),
        forwards=st.integers(1, 2) if numbers else st.none(),
        per=st.sampled_from(("slot", "variant")) if numbers else st.none(),
        freeze_gc=st.booleans(),
    )


def broken_variations(spec: Spec | str) -> st.SearchStrategy[Variation]:
    """Variations of `spec` in which a drawn rule has something to refuse: steps that it asks for are missing or late.

    Either all rules are kept, or that one alone, so that no other refuses before it.
    """
    whole = spec if isinstance(spec, Spec) else load_spec(spec)
    breakable = {rule: places for rule in whole.rules if (places := tuple(_places(rule, whole)))}
    sound = variations(spec)
    if not breakable:
        return sound
    return st.sampled_from(tuple(breakable)).flatmap(lambda rule: _breaking(rule, breakable[rule], sound))


def _breaking(
    rule: Rule, places: tuple[Moved, ...], sound: st.SearchStrategy[Variation]
) -> st.SearchStrategy[Variation]:
    edits = st.one_of(st.just(places), st.sets(st.sampled_from(places), min_size=1))
    moved = st.tuples(edits, st.one_of(st.none(), st.integers(0, 8)))
    return st.builds(
        lambda variation, edited, alone: attrs.evolve(
            variation,
            present=variation.present if rule.needs in (None, *variation.present) else (*variation.present, rule.needs),
            edits=_edits(*edited),
            rules=(rule.id,) if alone else None,
        ),
        sound,
        moved,
        st.booleans(),
    )


def _edits(places: Iterable[Moved], to: int | None) -> tuple[LeftOut | Moved, ...]:
    """The last places first: what is left out does not shift those before it."""
    last_first = sorted(places, key=lambda place: (place.trigger, -place.place))
    if to is None:
        return tuple(LeftOut(place.trigger, place.place) for place in last_first)
    return tuple(attrs.evolve(place, to=to) for place in last_first)


def _places(rule: Rule, whole: Spec) -> Iterator[Moved]:
    """Where steps stand that do what the condition of `rule` asks for."""
    for row in whole.lifecycle.transitions:
        for place, name in enumerate(row.steps):
            if _serves(whole.steps[name], rule.condition):
                yield Moved(row.on, place, place)


def _serves(step: Step, condition: Condition) -> bool:
    match condition:
        case After(event) | AtLeast(event):
            return event in step.event
        case CounterIs(counter):
            return counter in step.count or counter in step.set
        case ModeIs(mode):
            return mode in step.mode


def _presences(whole: Spec) -> st.SearchStrategy[tuple[str, ...]]:
    """All that the spec knows, none of it, or some."""
    named: list[Any] = [*whole.steps.values(), *whole.rules, *whole.properties, *whole.counters.values()]
    needed = {thing.needs for thing in named if thing.needs is not None}
    known = tuple(name for name in COLLABORATORS if name in needed)
    some = st.sets(st.sampled_from(known)).map(lambda names: tuple(sorted(names))) if known else st.just(())
    return st.one_of(st.just(known), some)
