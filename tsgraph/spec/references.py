"""Values by address: `repeat = "warmup.forwards"` takes what the same spec has there. And `"8..160 by 8"`, a range."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import attrs

from tsgraph.spec.problems import Address, Problem, shown, suggestion

REFERRING = ("repeat", "n", "scope")
_ADDRESS = re.compile(r"[a-z]\w*(\.\w+)+")
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?: by (\d+))?")
_MOST = 4096


def resolve(data: dict[str, Any]) -> tuple[dict[Address, Address], list[Problem]]:
    """Put the value in the place of every reference, in `data` itself.

    Returns: for each reference that leads to a value, the addresses of both; and the problems of those that do not.
    """
    found: dict[Address, Address] = {}
    problems = []
    for place in list(_places(data, ())):
        target = tuple(place.text.split("."))
        try:
            place.put(_value(data, target))
            found[place.address] = target
        except KeyError as unknown:
            problems.append(Problem(place.address, f"{place.text!r} is the address of no value{unknown.args[0]}"))
    return found, problems


@attrs.frozen
class _Place:
    """Where a reference stands: `holder[key]`."""

    holder: Any
    key: str | int
    address: Address

    @property
    def text(self) -> str:
        return str(self.holder[self.key])

    def put(self, value: Any) -> None:
        self.holder[self.key] = value


def _value(data: Any, target: tuple[str, ...]) -> Any:
    """The value at `target`. Raises KeyError with the nearest known key."""
    for part in target:
        if not isinstance(data, dict) or part not in data:
            raise KeyError(suggestion(part, data if isinstance(data, dict) else ()))
        data = data[part]
    return data


def _places(value: Any, address: Address) -> Iterator[_Place]:
    for key, inner in _items(value):
        inside = (*address, key)
        if isinstance(inner, str) and _refers(inside) and _ADDRESS.fullmatch(inner):
            yield _Place(value, key, inside)
        yield from _places(inner, inside)


def _items(value: Any) -> list[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _refers(address: Address) -> bool:
    """Whether the value at this address may be a reference; a property's `at_least` has its count in a list."""
    return address[-1] in REFERRING or address[-2:-1] == ("at_least",)


def expand(size: Any) -> range | str:
    """The sizes that `size` stands for: itself, or a range such as "8..160 by 8". A text says what is wrong with it."""
    if type(size) is int:
        return range(size, size + 1)
    found = _RANGE.fullmatch(size) if isinstance(size, str) else None
    if not found:
        return f'expected a size or a range such as "8..160 by 8", got {shown(size)}'
    first, last, by = int(found[1]), int(found[2]), int(found[3] or 1)
    return _span(first, last, by) if by else f"{size!r} never gets anywhere"


def _span(first: int, last: int, by: int) -> range | str:
    sizes = range(first, last + 1, by)
    if not sizes:
        return f"no size lies between {first} and {last}"
    return sizes if last - first <= _MOST * by else f"{first}..{last} is more than {_MOST} sizes"
