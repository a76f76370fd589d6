"""States and transitions as a graph: everything declared, everything reachable, and a way out of every failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tsgraph.spec.checks.names import repeated, undeclared
from tsgraph.spec.model import Lifecycle, Spec, Transition

ROLES = ("on_failure", "on_change", "on_release", "on_reset")


def check_lifecycle(spec: Spec) -> Iterator[str]:
    """Names first; the graph is judged only where they are all declared."""
    problems = list(_names(spec))
    yield from problems or _graph(spec)


# -- names -------------------------------------------------------------------------------------------------------------


def _names(spec: Spec) -> Iterator[str]:
    law = spec.lifecycle
    yield from repeated("lifecycle.states", law.states)
    yield from repeated("transitions", [transition.on for transition in law.transitions])
    yield from undeclared("lifecycle.initial", "state", [law.initial], law.states)
    yield from undeclared("lifecycle.final", "state", law.final, law.states)
    yield from undeclared("lifecycle.replays_in", "state", law.replays_in, law.states)
    for role in ROLES:
        yield from undeclared(f"lifecycle.{role}", "trigger", [getattr(law, role)], [t.on for t in law.transitions])
    for transition in law.transitions:
        yield from _transition_names(transition, spec)


def _transition_names(transition: Transition, spec: Spec) -> Iterator[str]:
    at = f"transitions[{transition.on}]"
    yield from repeated(f"{at}.from", transition.source)
    yield from undeclared(f"{at}.from", "state", transition.source, spec.lifecycle.states)
    yield from undeclared(f"{at}.to", "state", [transition.to], spec.lifecycle.states)
    yield from undeclared(f"{at}.steps", "step", transition.steps, spec.steps)
    yield from undeclared(f"{at}.finally", "step", transition.cleanup, spec.steps)
    for group in transition.free:
        yield from repeated(f"{at}.free", group)
        yield from _group(f"{at}.free", group, transition)
    if not transition.source:
        yield f"{at}.from: leads from no state"
    if transition.repeat < 0:
        yield f"{at}.repeat: {transition.repeat} is no number of times"


def _group(at: str, group: tuple[str, ...], transition: Transition) -> Iterator[str]:
    """Steps whose order is free stand in one list: what `finally` holds always runs after, or on its own."""
    steps = transition.cleanup if set(group) & set(transition.cleanup) else transition.steps
    yield from undeclared(at, f"step of {transition.on!r}", group, steps)


# -- the graph ---------------------------------------------------------------------------------------------------------


def _graph(spec: Spec) -> Iterator[str]:
    law = spec.lifecycle
    yield from _ends(law)
    yield from _unreachable(law)
    yield from _traps(law)
    yield from _failure(law)
    yield from _change(law)
    yield from _votes(spec)


def _ends(law: Lifecycle) -> Iterator[str]:
    if not law.replays_in:
        yield "lifecycle.replays_in: no state permits replays"
    if law.initial in law.final:
        yield f"lifecycle.initial: {law.initial!r} is final too; a slot would end where it begins"
    for transition in law.transitions:
        for state in (state for state in transition.source if state in law.final):
            yield f"transitions[{transition.on}].from: {state!r} is final; nothing leads out of it"


def _unreachable(law: Lifecycle) -> Iterator[str]:
    reached = _closure([law.initial], law, forward=True)
    for state in (state for state in law.states if state not in reached):
        yield f"lifecycle.states: {state!r} cannot be reached from {law.initial!r}"


def _traps(law: Lifecycle) -> Iterator[str]:
    saved = _closure([*law.final, *law.replays_in], law, forward=False)
    for state in (state for state in law.states if state not in saved):
        yield f"lifecycle.states: {state!r} is a trap; neither an end nor a replay can be reached from it"


def _closure(start: Iterable[str], law: Lifecycle, *, forward: bool) -> set[str]:
    """The states that transitions lead to from `start`, or (backward) from which they lead there."""
    queue = list(dict.fromkeys(start))
    for state in queue:
        for transition in law.transitions:
            near, far = (transition.source, (transition.to,)) if forward else ((transition.to,), transition.source)
            queue += [other for other in far if state in near and other not in queue]
    return set(queue)


def _failure(law: Lifecycle) -> Iterator[str]:
    """A step may always raise, so wherever steps are taken the failure's trigger is legal; and it ends replays."""
    failure = law.transition(law.on_failure)
    for transition in law.transitions:
        if transition.steps and law.refusable(transition):
            for state in (state for state in transition.source if state not in (*failure.source, *law.final)):
                yield f"transitions[{failure.on}].from: lacks {state!r}, where the steps of {transition.on!r} may fail"
    for role in ("on_failure", "on_change", "on_release"):
        end = law.transition(getattr(law, role))
        if end.to in law.replays_in:
            yield f"transitions[{end.on}].to: {end.to!r} permits replays, but {role} must end them"


def _change(law: Lifecycle) -> Iterator[str]:
    change = law.transition(law.on_change)
    for state in (state for state in law.replays_in if state not in change.source):
        yield f"transitions[{change.on}].from: lacks {state!r}; a slot would go on replaying what is out of date"


def _votes(spec: Spec) -> Iterator[str]:
    """Peers wait for the outcome of a step that ranks settle together, also where one of them fails before it."""
    law = spec.lifecycle
    failure = law.transition(law.on_failure)
    taken = [name for t in law.transitions if law.refusable(t) for name in t.steps]
    for name in dict.fromkeys(taken):
        step = spec.steps.get(name)
        if step and step.needs == "ranks" and len(step.event) > 1 and name not in failure.steps:
            yield f"transitions[{failure.on}].steps: lacks {name!r}; peers would wait for a rank that failed to settle"
