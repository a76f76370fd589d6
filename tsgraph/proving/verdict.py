"""One law explored, and each property that is broken shown to be: its way is done again on the machine's monitors."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from tsgraph.errors import InternalError
from tsgraph.proving.bits import SLACK
from tsgraph.proving.combinations import Restricted
from tsgraph.proving.explore import Exploration, explore
from tsgraph.proving.trace import Impossible, counterexample
from tsgraph.proving.values import Combination, Counterexample
from tsgraph.proving.world import World
from tsgraph.spec.model import Spec

MOST_SLACK = 1 << 7
"""How far counters are let count before the proof gives up on a way that no counter of the machine can go."""


@attrs.frozen
class Verdict:
    """What exploring the law that `restricted` leaves has shown."""

    restricted: Restricted
    found: Exploration
    violations: tuple[Counterexample, ...]

    @property
    def spec(self) -> Spec:
        """The law."""
        return self.restricted.spec

    @property
    def combination(self) -> Combination:
        """What is present, and how much was explored."""
        return Combination(
            present=self.restricted.present,
            configurations=len(self.found.came),
            stands_for=self.restricted.stands_for,
        )


def judge(restricted: Restricted) -> Verdict:
    """Explore a law to the end."""
    return _confirmed(World.of(restricted.spec), restricted, first=False)


def refutation(world: World, restricted: Restricted) -> tuple[Exploration, Counterexample | None]:
    """What was explored until a property was broken, and how it was; None if all hold."""
    verdict = _confirmed(world, restricted, first=True)
    return verdict.found, next(iter(verdict.violations), None)


def _confirmed(world: World, restricted: Restricted, *, first: bool) -> Verdict:
    """A way that only the bits know makes counters count further, until none is left.

    Raises: InternalError if that does not help.
    """
    slack = SLACK
    while slack <= MOST_SLACK:
        found = explore(world, first=first)
        try:
            return Verdict(restricted, found, tuple(_counterexamples(found, restricted.present)))
        except Impossible:
            slack *= 4
            world = world.counting(slack)
    raise InternalError(f"a counter of spec {restricted.spec.name} would have to count beyond {MOST_SLACK}")


def _counterexamples(found: Exploration, present: tuple[str, ...]) -> Iterable[Counterexample]:
    return [counterexample(found, broken, present) for broken in found.properties_broken]
