"""Making a find short: actions dropped, values made simpler, as long as the same kind of error ends the run.

Hypothesis shrinks the choices behind a run; for machines that took minutes. Actions are values, so that they can be
dropped and done again directly: some hundred runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from tsgraph.testing.stateful.machine import Action, ProgramMachine, do_again

SECONDS = 5.0
"""How long one find is made shorter."""


@attrs.frozen
class Find:
    """What a machine found: the error, and the straight-line program that ends with it."""

    error: Exception
    program: str
    actions: tuple[Action, ...] = attrs.field(repr=False, default=())

    def __str__(self) -> str:
        return f"# {type(self.error).__name__} at the last line of this program:\n{self.program}"


@attrs.define(eq=False)
class Shrinker:
    """The shortest find so far, of one kind of machine."""

    kind: type[ProgramMachine]
    best: Find
    until: float = attrs.field(factory=lambda: time.monotonic() + SECONDS)

    def shrink(self) -> Find:
        """Drop actions and simplify values until neither helps, or time is up."""
        while (self._drop() or self._simplify()) and time.monotonic() < self.until:
            pass
        return self.best

    def _tries(self, actions: list[Action]) -> bool:
        """Whether `actions` end in the same kind of error; they are the best then."""
        if time.monotonic() >= self.until:
            return False
        find = run_again(self.kind, actions)
        if find is None or type(find.error) is not type(self.best.error):
            return False
        self.best = find
        return True

    def _drop(self) -> bool:
        """Drop runs of actions, long ones first; the first action is the configuration."""
        before, width = len(self.best.actions), len(self.best.actions) // 2
        while width:
            place = len(self.best.actions) - width
            while place >= 1:
                actions = list(self.best.actions)
                self._tries(actions[:place] + actions[place + width :])
                place = min(place, len(self.best.actions)) - width
            width //= 2
        return len(self.best.actions) < before

    def _simplify(self) -> bool:
        """Put simpler values in the place of drawn ones, each for itself."""
        simplified = [self._simplify_one(number) for number in range(len(self.best.actions))]  # all of them, so a list
        return any(simplified)

    def _simplify_one(self, number: int) -> bool:
        if number >= len(self.best.actions):
            return False
        simplified, again = False, True
        while again:
            again = any(self._tries(actions) for actions in _simpler_actions(list(self.best.actions), number))
            simplified = simplified or again
            again = again and number < len(self.best.actions)
        return simplified


def run_again(kind: type[ProgramMachine], actions: list[Action]) -> Find | None:
    """Do `actions` on a new machine: the find that they end in, if any."""
    done = do_again(kind, actions)
    if not isinstance(done, tuple):
        return None
    machine, error = done
    return Find(error, str(machine.program), tuple(machine.actions))


def _simpler_actions(actions: list[Action], number: int) -> Iterator[list[Action]]:
    name, drawn = actions[number]
    for other in simpler(drawn):
        if other.keys() == drawn.keys():
            yield [*actions[:number], (name, other), *actions[number + 1 :]]


# -- simpler values ---------------------------------------------------------------------------------------------------


def simpler(value: Any) -> Iterator[Any]:
    """Values like `value` that say less, the simplest first."""
    for kind, candidates in _SIMPLER.items():
        if isinstance(value, kind):
            yield from (other for other in candidates(value) if other != value)
            return
    if attrs.has(type(value)):
        yield from _simpler_fields(value)


def _simpler_fields(value: Any) -> Iterator[Any]:
    """Each field at its default, then simpler."""
    for field in attrs.fields(type(value)):
        held = getattr(value, field.name)
        plain = [] if callable(getattr(field.default, "factory", None)) else [field.default]
        others = [default for default in plain if default is not attrs.NOTHING and default != held]
        yield from (attrs.evolve(value, **{field.name: other}) for other in (*others, *simpler(held)))


def _simpler_int(value: int) -> Iterator[int]:
    yield from dict.fromkeys((0, value // 2, value - 1 if value > 0 else value + 1))


def _simpler_sequence(value: Any) -> Iterator[Any]:
    kind = type(value)
    for number in range(len(value)):
        yield kind([*value[:number], *value[number + 1 :]])
    for number, item in enumerate(value):
        yield from (kind([*value[:number], other, *value[number + 1 :]]) for other in simpler(item))


def _simpler_mapping(value: Mapping[Any, Any]) -> Iterator[dict[Any, Any]]:
    for key in value:
        yield {other: value[other] for other in value if other != key}
    for key, item in value.items():
        yield from ({**value, key: other} for other in simpler(item))


def _simpler_set(value: Any) -> Iterator[Any]:
    yield from (value - {item} for item in value)


_SIMPLER: dict[type, Callable[[Any], Iterator[Any]]] = {
    bool: lambda value: iter((False,) if value else ()),
    int: _simpler_int,
    float: lambda value: iter((0.0, 1.0)) if value else iter(()),
    str: lambda value: iter(("",) if value else ()),
    list: _simpler_sequence,
    tuple: _simpler_sequence,
    set: _simpler_set,
    frozenset: _simpler_set,
    Mapping: _simpler_mapping,
}
