"""Steps, rules and properties: everything they name exists, whoever is absent, and every rule is asked somewhere."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from tsgraph.spec.checks.names import repeated, undeclared, unneeded
from tsgraph.spec.model import (
    After,
    AtLeast,
    Clause,
    Condition,
    Counter,
    CounterIs,
    ModeIs,
    Property,
    Rule,
    Spec,
    Step,
)
from tsgraph.spec.problems import suggestion


def check_steps(spec: Spec) -> Iterator[str]:
    """Steps move what is declared, say what they did, and are taken somewhere."""
    used = _used(spec)
    for counter in spec.counters.values():
        yield from unneeded(f"counters.{counter.name}", counter.needs)
        yield from _sum(counter, spec) if counter.sums is not None else ()
    for step in spec.steps.values():
        yield from _step(step, spec)
        if step.name not in used:
            yield f"steps.{step.name}: no transition, session or serving takes this step"
    yield from _lists(spec)


def _used(spec: Spec) -> set[str]:
    taken = {name for t in spec.lifecycle.transitions for name in (*t.steps, *t.cleanup)}
    return taken | {name for names in _sections(spec).values() for name in names}


def _sections(spec: Spec) -> dict[str, tuple[str, ...]]:
    """The lists of steps outside of transitions, by their key paths."""
    setup = {"steps": spec.setup.steps}
    sections = {"setup": setup, "session": attrs.asdict(spec.session), "serving": attrs.asdict(spec.serving)}
    return {f"{at}.{key}": names for at, section in sections.items() for key, names in section.items()}


def _lists(spec: Spec) -> Iterator[str]:
    for at, names in _sections(spec).items():
        yield from undeclared(at, "step", names, spec.steps)


def _step(step: Step, spec: Spec) -> Iterator[str]:
    at = f"steps.{step.name}"
    yield from unneeded(at, step.needs)
    yield from undeclared(f"{at}.count", "counter", step.count, spec.counters)
    yield from undeclared(f"{at}.set", "counter", step.set, spec.counters)
    yield from undeclared(f"{at}.mode", "mode", step.mode, spec.modes)
    yield from repeated(f"{at}.event", step.event)
    if not step.event:
        yield f"{at}.event: appends no event, so that no rule can tell that it was taken"
    for name, value in step.set.items():
        yield from _floor(f"{at}.set.{name}", name, value, spec)
    for part in ("count", "set"):
        for name in getattr(step, part):
            yield from _moves_sum(f"{at}.{part}.{name}", name, spec)


def _floor(at: str, counter: str, value: int, spec: Spec) -> Iterator[str]:
    floor = spec.counters[counter].floor if counter in spec.counters else None
    if floor is not None and value < floor:
        yield f"{at}: {value} is below the floor {floor} of counter {counter!r}"


# -- sums --------------------------------------------------------------------------------------------------------------


def _sum(counter: Counter, spec: Spec) -> Iterator[str]:
    """A sum is the runtime's, over a counter that every slot has; it goes where that one goes."""
    at, own = f"counters.{counter.name}", spec.counters.get(counter.sums or "")
    yield from undeclared(f"{at}.sums", "counter", [counter.sums or ""], spec.counters)
    if counter.scope != "runtime":
        yield f"{at}.scope: a sum over all slots is of scope 'runtime', not {counter.scope!r}"
    if counter.floor is not None:
        yield f"{at}.floor: a sum has none of its own; it falls with {counter.sums!r}"
    if own is not None:
        if own.scope != "slot" or own.floor != 0 or own.sums is not None:
            yield f"{at}.sums: {own.name!r} is no counter of scope 'slot' with floor 0"
        yield from _absent(f"{at}.sums", f"counter {own.name!r}", {own.needs}, (counter.needs,))
        yield from _nobodys(at, own.name, spec)


def _nobodys(at: str, own: str, spec: Spec) -> Iterator[str]:
    """A step of no slot has no counter that would be summed."""
    for where, names in _sections(spec).items():
        for step in (spec.steps[name] for name in names if name in spec.steps):
            if own in (*step.count, *step.set):
                yield f"{at}.sums: {step.name!r} moves {own!r} in {where}, where there is no slot"


def _moves_sum(at: str, name: str, spec: Spec) -> Iterator[str]:
    sums = spec.counters[name].sums if name in spec.counters else None
    if sums is not None:
        yield f"{at}: a sum is moved by whatever moves {sums!r}, and never by itself"


# -- rules -------------------------------------------------------------------------------------------------------------


def check_rules(spec: Spec) -> Iterator[str]:
    """Rules guard steps and triggers that can be refused, by conditions that can hold."""
    yield from repeated("rules", [rule.id for rule in spec.rules])
    for rule in spec.rules:
        at = f"rules[{rule.id}]"
        yield from unneeded(at, rule.needs)
        yield from _guards(f"{at}.guards", rule, spec)
        yield from _condition(at, rule.condition, (rule.needs,), spec)
        for key in ("because", "fix"):
            if not getattr(rule, key).strip():
                yield f"{at}.{key}: says nothing; a refusal without it helps nobody"


def _guards(at: str, rule: Rule, spec: Spec) -> Iterator[str]:
    triggers = [transition.on for transition in spec.lifecycle.transitions]
    if not rule.guards:
        yield f"{at}: guards nothing"
    yield from undeclared(at, "step or trigger", rule.guards, [*spec.steps, *triggers])
    for name in dict.fromkeys(rule.guards):
        if name in spec.steps and name in triggers:
            yield f"{at}: {name!r} is both a step and a trigger; rename one"
        elif name in spec.steps:
            yield from _guarded_step(at, spec.steps[name], rule, spec)
        elif name in triggers and not spec.lifecycle.refusable(spec.lifecycle.transition(name)):
            yield f"{at}: {name!r} cannot be refused; a failure, and what only cleans up, must always be possible"


def _guarded_step(at: str, step: Step, rule: Rule, spec: Spec) -> Iterator[str]:
    yield from _absent(at, f"step {step.name!r}", {step.needs}, (rule.needs,))
    if step.name not in _asked(rule, spec):
        yield f"{at}: step {step.name!r} is in no transition that can be refused, so nothing asks this rule"


def _asked(rule: Rule, spec: Spec) -> set[str]:
    """The steps before which `rule` is asked; outside of transitions only rules of the runtime's ledger are."""
    law = spec.lifecycle
    steps = {name for t in law.transitions if law.refusable(t) for name in t.steps}
    if _scope(rule, spec) == "runtime":
        steps |= {
            name for names in (spec.setup.steps, spec.session.enter, *attrs.astuple(spec.serving)) for name in names
        }
    return steps


def _scope(rule: Rule, spec: Spec) -> str:
    match rule.condition:
        case CounterIs(counter) if counter in spec.counters:
            return spec.counters[counter].scope
        case ModeIs(mode) if mode in spec.modes:
            return spec.modes[mode].scope
    return rule.scope


# -- properties --------------------------------------------------------------------------------------------------------


def check_properties(spec: Spec) -> Iterator[str]:
    """Properties speak of moments that come, and promise something."""
    yield from repeated("properties", [prop.id for prop in spec.properties])
    for prop in spec.properties:
        at = f"properties[{prop.id}]"
        yield from unneeded(at, prop.needs)
        yield from _moments(f"{at}.when", prop, spec)
        yield from _clauses(f"{at}.holds", prop.holds, prop, spec)
        yield from _clauses(f"{at}.before", prop.before, prop, spec)
        if not (prop.holds or prop.before):
            yield f"{at}: promises nothing; say what `holds`, or what holds `before`"
        if not prop.says.strip():
            yield f"{at}.says: says nothing"


def _moments(at: str, prop: Property, spec: Spec) -> Iterator[str]:
    if not prop.when:
        yield f"{at}: names no moment"
    yield from undeclared(at, "event or state", prop.when, [*spec.events, *spec.lifecycle.states])
    for name in prop.when:
        if name in spec.events and name in spec.lifecycle.states:
            yield f"{at}: {name!r} is both an event and a state; rename one"
        elif name in spec.events:
            yield from _absent(at, f"event {name!r}", _producers(name, spec), (prop.needs,))


def _clauses(at: str, clauses: tuple[Clause, ...], prop: Property, spec: Spec) -> Iterator[str]:
    for index, clause in enumerate(clauses):
        yield from unneeded(f"{at}[{index}]", clause.needs)
        yield from _condition(f"{at}[{index}]", clause.condition, (prop.needs, clause.needs), spec)
        yield from _clause_scope(f"{at}[{index}].scope", clause, spec)


def _clause_scope(at: str, clause: Clause, spec: Spec) -> Iterator[str]:
    """A counter or a mode moves in one scope only; in another it would be judged by a value that never changes."""
    match clause.condition:
        case CounterIs(name) if name in spec.counters:
            moves = spec.counters[name].scope
        case ModeIs(name) if name in spec.modes:
            moves = spec.modes[name].scope
        case _:
            return
    if clause.scope != moves:
        yield f"{at}: {name!r} moves in scope {moves!r}, and is judged in {clause.scope!r}, where it never does"


# -- conditions --------------------------------------------------------------------------------------------------------


def _condition(at: str, condition: Condition, needs: tuple[str | None, ...], spec: Spec) -> Iterator[str]:
    """What `condition` names exists wherever `needs` are present, and it can hold."""
    match condition:
        case After(event, than):
            yield from _event(f"{at}.event", event, needs, spec)
            yield from _event(f"{at}.than", than, needs, spec)
        case AtLeast(event, n):
            yield from _event(f"{at}.event", event, needs, spec)
            if n < 0:
                yield f"{at}.n: {n} is no number of times"
        case CounterIs(counter, equals):
            yield from undeclared(f"{at}.counter", "counter", [counter], spec.counters)
            yield from _counter(f"{at}.counter", counter, needs, spec)
            yield from _floor(f"{at}.equals", counter, equals, spec)
            if equals and counter in spec.counters and spec.counters[counter].sums is not None:
                yield f"{at}.equals: a sum over all slots can only be asked to be 0, not {equals}"
        case ModeIs(mode):
            yield from undeclared(f"{at}.mode", "mode", [mode], spec.modes)


def _event(at: str, event: str, needs: tuple[str | None, ...], spec: Spec) -> Iterator[str]:
    if event not in spec.events:
        yield f"{at}: no step appends {event!r}{suggestion(event, spec.events)}"
    else:
        yield from _absent(at, f"event {event!r}", _producers(event, spec), needs)


def _producers(event: str, spec: Spec) -> set[str | None]:
    """What the steps that append `event` need."""
    return {step.needs for step in spec.steps.values() if event in step.event}


def _counter(at: str, counter: str, needs: tuple[str | None, ...], spec: Spec) -> Iterator[str]:
    if counter in spec.counters:
        yield from _absent(at, f"counter {counter!r}", {spec.counters[counter].needs}, needs)


def _absent(at: str, what: str, theirs: set[str | None], ours: tuple[str | None, ...]) -> Iterator[str]:
    """A problem if `what` can be absent while whatever speaks of it is there."""
    if theirs and None not in theirs and not theirs & set(ours):
        missing = " or ".join(f'"{need}"' for need in sorted(filter(None, theirs)))
        yield f"{at}: {what} is absent without {missing}; add needs = {missing}"
