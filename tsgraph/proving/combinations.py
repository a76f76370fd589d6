"""Which collaborators and policies may be present, and what law each combination leaves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import attrs

from tsgraph.proving.acts import Acts
from tsgraph.proving.bits import Bits
from tsgraph.spec.model import POLICIES, Lifecycle, Spec, Transition


@attrs.frozen
class Restricted:
    """The law that is left where only `present` is there; `stands_for` combinations leave the same."""

    present: tuple[str, ...]
    spec: Spec
    stands_for: int


def restrictions(spec: Spec) -> tuple[Restricted, ...]:
    """Every law that some combination leaves, once, the smallest combination of each first."""
    found: dict[Any, Restricted] = {}
    for present in _subsets(needed(spec)):
        left = with_only(spec, present)
        law = _law(left)
        same = found.get(law)
        found[law] = (
            Restricted(present, left, 1) if same is None else attrs.evolve(same, stands_for=same.stands_for + 1)
        )
    return tuple(found.values())


def needed(spec: Spec) -> tuple[str, ...]:
    """What entries of the law need, in alphabetical order. Buffers and rules about values are no law of order."""
    clauses = [clause for prop in spec.properties for clause in (*prop.before, *prop.holds)]
    entries: tuple[Any, ...] = (*spec.steps.values(), *spec.counters.values(), *spec.rules, *spec.properties, *clauses)
    return tuple(sorted({entry.needs for entry in entries if entry.needs is not None}))


def with_only(spec: Spec, present: tuple[str, ...]) -> Spec:
    """`spec` where `present` is all that is there, policies included."""
    switches: dict[str, Any] = {name: name in present for name in POLICIES}
    policy = attrs.evolve(spec.policy, **switches)
    return attrs.evolve(spec, policy=policy).restricted_to(frozenset(present))


def _subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for size in range(len(names) + 1):
        yield from combinations(names, size)


def _law(spec: Spec) -> Any:
    """What tells one law from another: all but steps on which nothing depends."""
    acts = Acts(spec, Bits.of(spec))
    lively = {name for name in spec.steps if any(not act.idle for (act,) in acts.step(name))}
    steps = tuple(repr(step) for name, step in spec.steps.items() if name in lively)
    counters, modes = tuple(spec.counters.values()), tuple(spec.modes.values())
    sections = tuple(tuple(n for n in names if n in lively) for names in _sections(spec))
    return steps, counters, modes, spec.rules, spec.properties, _lively(spec.lifecycle, lively), sections


def _sections(spec: Spec) -> tuple[tuple[str, ...], ...]:
    return (*attrs.astuple(spec.session), *attrs.astuple(spec.serving))


def _lively(lifecycle: Lifecycle, steps: set[str]) -> tuple[Any, ...]:
    """The transitions, with the steps that matter; whether there are any decides how a trigger fires."""

    def left(transition: Transition) -> Any:
        taken, cleanup = ([n for n in names if n in steps] for names in (transition.steps, transition.cleanup))
        works = bool(transition.steps), lifecycle.refusable(transition)
        return transition.on, tuple(taken), tuple(cleanup), works, transition.repeat

    return tuple(map(left, lifecycle.transitions))
