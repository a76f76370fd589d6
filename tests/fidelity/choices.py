"""Where a generator's choices come from: a seed, or hypothesis."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Chosen = TypeVar("Chosen")


class Choices(Protocol):
    """Makes choices."""

    def number(self, least: int, most: int) -> int:
        """An integer between `least` and `most`, both possible."""
        ...


class Seeded:
    """The same choices for the same seed: what the differential run uses, so that no library's internals decide."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - not for secrets

    def number(self, least: int, most: int) -> int:
        """An integer between `least` and `most`, both possible."""
        return least + int(self._random.random() * (most - least + 1))


class Drawn:
    """Choices that hypothesis makes, and makes smaller where a test fails; `draw_number` draws one."""

    def __init__(self, draw_number: Callable[[int, int], int]) -> None:
        self._draw_number = draw_number

    def number(self, least: int, most: int) -> int:
        """An integer between `least` and `most`, both possible."""
        return self._draw_number(least, most)


def pick(choices: Choices, among: Sequence[Chosen]) -> Chosen:
    """One of `among`."""
    return among[choices.number(0, len(among) - 1)]


def chance(choices: Choices, percent: int) -> bool:
    """Whether something happens that happens in `percent` of all cases; the smallest choice is that it does not."""
    return choices.number(0, 99) >= 100 - percent


def some(choices: Choices, among: Sequence[Chosen], percent: int) -> list[Chosen]:
    """Each of `among` in `percent` of all cases, in their order."""
    return [each for each in among if chance(choices, percent)]
