"""Every mutant of a spec's law: one rule gone or weaker, two steps the other way round, a step, scope or effect less.

If the law is sound and nothing in it is idle, each of these breaks something; `kill_table` finds out what. A mutant
differs from its original in one place only, save that a step which nothing takes any more is not defined either.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import attrs

from tsgraph.spec.model import After, AtLeast, Condition, Rule, Scope, Spec, Step, Transition

Kind = Literal["rule removed", "rule weakened", "scope changed", "steps swapped", "step dropped", "effect dropped"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


@attrs.frozen(kw_only=True)
class Mutant:
    """One changed law.

    `subject`: the rule, trigger, step, counter or mode that was changed. `what` was done to it, in words. `swapped`:
    the two steps that changed places, with those `between`, and whether the spec declares their order `free`. `tried`:
    whether an adversarial pipeline may do just this by itself, so that only the declared course can tell the mutant
    from its original.
    """

    kind: Kind
    subject: str
    what: str
    spec: Spec = attrs.field(repr=False)
    swapped: tuple[str, str] | None = None
    between: tuple[str, ...] = ()
    free: bool = False
    tried: bool = False

    @property
    def name(self) -> str:
        """What tells it from the other mutants of its spec."""
        return f"{self.subject}: {self.what}"


def mutants(spec: Spec) -> tuple[Mutant, ...]:
    """Every mutant of `spec`, in the order of its declarations."""
    sources = (_without_rules, _with_weaker_rules, _with_other_scopes, _swapped, _without_steps, _without_effects)
    return tuple(mutant for source in sources for mutant in source(spec))


# -- rules -------------------------------------------------------------------------------------------------------------


def _without_rules(spec: Spec) -> Iterator[Mutant]:
    for rule in spec.rules:
        rest = tuple(other for other in spec.rules if other is not rule)
        mutated = attrs.evolve(spec, rules=rest)
        yield Mutant(kind="rule removed", subject=rule.id, what="removed", spec=mutated)


def _with_weaker_rules(spec: Spec) -> Iterator[Mutant]:
    for rule in spec.rules:
        for what, weaker in _weaker(rule):
            mutated = attrs.evolve(spec, rules=_replaced(spec.rules, rule, weaker))
            yield Mutant(kind="rule weakened", subject=rule.id, what=what, spec=mutated)


def _weaker(rule: Rule) -> Iterator[tuple[str, Rule]]:
    for guard in rule.guards if len(rule.guards) > 1 else ():
        rest = tuple(other for other in rule.guards if other != guard)
        yield f"no longer guards {guard}", attrs.evolve(rule, guards=rest)
    for what, condition in _weaker_condition(rule.condition):
        yield what, attrs.evolve(rule, condition=condition)


def _weaker_condition(condition: Condition) -> Iterator[tuple[str, Condition]]:
    """To demand an event 0 times would be to remove the rule."""
    match condition:
        case After(event, than):
            yield f"{event} at any time, not after {than}", AtLeast(event, 1)
        case AtLeast(event, n) if n > 1:
            yield f"{event} {n - 1} times, not {n}", AtLeast(event, n - 1)


def _with_other_scopes(spec: Spec) -> Iterator[Mutant]:
    """The scope of a rule about a counter or a mode says nothing: theirs is asked."""
    for rule in spec.rules:
        if isinstance(rule.condition, After | AtLeast):
            for scope, other in _rescoped(rule):
                mutated = attrs.evolve(spec, rules=_replaced(spec.rules, rule, other))
                yield _scope_mutant(rule.id, rule.scope, scope, mutated)
    for section in ("counters", "modes"):
        things: Mapping[str, Any] = getattr(spec, section)
        for name, thing in things.items():
            for scope, other in _rescoped(thing):
                words: dict[str, Any] = {section: {**things, name: other}}
                mutated = attrs.evolve(spec, **words)
                yield _scope_mutant(name, thing.scope, scope, mutated)


def _rescoped(thing: Any) -> Iterator[tuple[Scope, Any]]:
    return ((scope, attrs.evolve(thing, scope=scope)) for scope in SCOPES if scope != thing.scope)


def _scope_mutant(subject: str, was: Scope, scope: Scope, spec: Spec) -> Mutant:
    return Mutant(kind="scope changed", subject=subject, what=f"scope {scope}, not {was}", spec=spec)


# -- steps -------------------------------------------------------------------------------------------------------------


def _swapped(spec: Spec) -> Iterator[Mutant]:
    for transition in spec.lifecycle.transitions:
        for part in ("steps", "cleanup"):
            names: tuple[str, ...] = getattr(transition, part)
            for first, second in itertools.combinations(range(len(names)), 2):
                if names[first] != names[second]:
                    yield _swap(spec, transition, part, first, second)

    steps = spec.setup.steps
    for first, second in itertools.combinations(range(len(steps)), 2):
        yield _setup_swap(spec, steps, first, second)


def _setup_swap(spec: Spec, steps: tuple[str, ...], first: int, second: int) -> Mutant:
    pair, between = (steps[first], steps[second]), steps[first : second + 1]
    swapped = tuple({first: pair[1], second: pair[0]}.get(at, name) for at, name in enumerate(steps))
    mutated = attrs.evolve(spec, setup=attrs.evolve(spec.setup, steps=swapped))
    what = f"{pair[0]} and {pair[1]} change places"
    return Mutant(
        kind="steps swapped", subject="setup", what=what, spec=mutated, swapped=pair, between=between, tried=True
    )


def _swap(spec: Spec, transition: Transition, part: str, first: int, second: int) -> Mutant:
    names = list(getattr(transition, part))
    pair = (names[first], names[second])
    names[first], names[second] = names[second], names[first]
    mutated = _with_transition(spec, transition, **{part: tuple(names)})
    free = any(set(pair) <= set(group) for group in transition.free)
    return Mutant(
        kind="steps swapped",
        subject=transition.on,
        what=f"{pair[0]} and {pair[1]} change places",
        spec=mutated,
        swapped=pair,
        between=getattr(transition, part)[first : second + 1],
        free=free,
        tried=_may_be_left_out(spec, transition, part),
    )


def _without_steps(spec: Spec) -> Iterator[Mutant]:
    for transition in spec.lifecycle.transitions:
        for part in ("steps", "cleanup"):
            for name, rest in _each_dropped(getattr(transition, part)):
                free = tuple(tuple(step for step in group if step != name) for group in transition.free)
                mutated = _with_transition(spec, transition, free=free, **{part: rest})
                yield _drop(transition.on, name, mutated, tried=_may_be_left_out(spec, transition, part))
    for name, rest in _each_dropped(spec.setup.steps):
        setup = attrs.evolve(spec.setup, steps=rest)
        yield _drop("setup", name, attrs.evolve(spec, setup=setup), tried=True)
    for part in ("enter", "leave"):
        for name, rest in _each_dropped(getattr(spec.session, part)):
            session = attrs.evolve(spec.session, **{part: rest})
            yield _drop(f"session {part}", name, attrs.evolve(spec, session=session), tried=part == "enter")


def _may_be_left_out(spec: Spec, transition: Transition, part: str) -> bool:
    """An adversary takes the steps of a transition as it likes, if it can be refused; cleanup is taken as declared."""
    return part == "steps" and spec.lifecycle.refusable(transition)


def _each_dropped(names: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    return ((name, names[:at] + names[at + 1 :]) for at, name in enumerate(names))


def _drop(subject: str, name: str, spec: Spec, *, tried: bool) -> Mutant:
    steps = {other: step for other, step in spec.steps.items() if other != name or name in _taken(spec)}
    spec = attrs.evolve(spec, steps=steps)
    return Mutant(kind="step dropped", subject=subject, what=f"without {name}", spec=spec, tried=tried)


def _taken(spec: Spec) -> set[str]:
    lists = [spec.setup.steps, *(names for t in spec.lifecycle.transitions for names in (t.steps, t.cleanup))]
    return set(itertools.chain(*lists, *attrs.astuple(spec.session), *attrs.astuple(spec.serving)))


def _without_effects(spec: Spec) -> Iterator[Mutant]:
    for step in spec.steps.values():
        for part in ("count", "set", "mode"):
            effects: Mapping[str, Any] = getattr(step, part)
            for name, value in effects.items():
                words: dict[str, Any] = {part: {other: kept for other, kept in effects.items() if other != name}}
                mutated = _with_step(spec, attrs.evolve(step, **words))
                what = f"no longer does {part} {name} = {value}"
                yield Mutant(kind="effect dropped", subject=step.name, what=what, spec=mutated)
    for name, counter in spec.counters.items():
        if counter.sums is not None:
            mutated = attrs.evolve(spec, counters={**spec.counters, name: attrs.evolve(counter, sums=None)})
            yield Mutant(kind="effect dropped", subject=name, what=f"no longer sums {counter.sums}", spec=mutated)


# -- a spec with one thing changed -------------------------------------------------------------------------------------


def _replaced(rules: tuple[Rule, ...], rule: Rule, other: Rule) -> tuple[Rule, ...]:
    return tuple(other if kept is rule else kept for kept in rules)


def _with_transition(spec: Spec, transition: Transition, **words: Any) -> Spec:
    rows = tuple(attrs.evolve(t, **words) if t is transition else t for t in spec.lifecycle.transitions)
    return attrs.evolve(spec, lifecycle=attrs.evolve(spec.lifecycle, transitions=rows))


def _with_step(spec: Spec, step: Step) -> Spec:
    return attrs.evolve(spec, steps={**spec.steps, step.name: step})
