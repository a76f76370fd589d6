"""What of a wrong spec can still be checked, so that one load tells as many problems as it can.

Unknown keys are left out. A table with a wrong value is replaced by a harmless one, an entry with a wrong value is
taken away, and problems that name what the missing would have declared are its consequences and not told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tsgraph.spec.check import check_spec
from tsgraph.spec.problems import Address, Problem
from tsgraph.spec.references import resolve
from tsgraph.spec.structure import structure

HARMLESS: dict[str, Any] = {
    "name": "spec",
    "version": 1,
    "rules": [],
    "properties": [],
    "value_rules": [],
    "buffers": {},
    "outputs": {},
    "setup": {},
    "session": {},
    "serving": {},
    "policy": {},
    "warmup": {"forwards": 1, "per": "slot"},
    "sizes": {"default": [1], "default_without_padding": [1], "cap": 1},
}
DECLARING = ("steps", "counters", "modes", "buffers", "setup", "session", "serving")
ENTRIES = ("rules", "value_rules", "properties", "buffers", "outputs", "steps", "counters", "modes")


def check_remainder(data: Mapping[str, Any], wrong: list[Problem]) -> tuple[str, ...]:
    """The problems of structure of what is left of `data` without everything that is `wrong`.

    None are told where nothing sound is left: a wrong lifecycle or transition leaves no graph to judge.
    """
    rest = plain(data)
    gone = [word for address in _cuts(wrong) for word in _words(_cut(rest, address), address)]
    resolve(rest)
    spec, still_wrong = structure(rest)
    problems = check_spec(spec) if spec and not still_wrong else ()
    return tuple(problem for problem in problems if not any(repr(word) in problem.split(";")[0] for word in gone))


def plain(value: Any) -> Any:
    """A copy of dicts and lists only, as tomllib would give it."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _cuts(wrong: list[Problem]) -> list[Address]:
    """The addresses to take away, later entries of a list and deeper values first."""
    addresses = {problem.address if problem.extra else _scope(problem.address) for problem in wrong}
    return sorted(addresses, key=lambda address: [str(part).zfill(6) for part in address], reverse=True)


def _scope(address: Address) -> Address:
    """How much must go when the value at `address` is wrong: its entry, else its whole table."""
    return address[:2] if address[0] in ENTRIES else address[:1]


def _cut(data: Any, address: Address) -> Any:
    """Take away the value at `address`, and return it."""
    last: Any
    *above, last = address
    for part in above:
        data = data[part]
    value = data.pop(last) if isinstance(data, list) or last in data else None
    if not above and last in HARMLESS:
        data[last] = plain(HARMLESS[last])
    return value


def _words(value: Any, address: Address) -> Iterator[str]:
    """The words that are no longer declared, or used: the key of what was taken away, and all the texts in it."""
    if address[0] in DECLARING:
        yield from (part for part in address[1:2] if isinstance(part, str))
        yield from _texts(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from _texts(item)
