"""How a spec's problems are worded: the address of a value, the nearest known word, a value as TOML shows it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

Address = tuple[str | int, ...]
IDENTITIES = ("id", "on")


@attrs.frozen
class Problem:
    """What is wrong with the value at `address`, given as keys and indices into the spec's TOML data.

    `extra`: the key itself is at fault and nothing else, so that the rest can be read without it.
    """

    address: Address
    what: str
    extra: bool = False

    def shown(self, data: Any) -> str:
        """`key.path: what`, with rules, properties and transitions called by their ids: `rules[R9].guards: …`."""
        return f"{path(self.address, data)}: {self.what}"


def told(problems: Iterable[Problem], data: Any) -> list[str]:
    """Each problem as `key.path: what`."""
    return [problem.shown(data) for problem in problems]


def path(address: Address, data: Any) -> str:
    """`address` as people read it, with the help of the `data` that it leads into."""
    shown = ""
    for part in address:
        data = _entered(data, part)
        shown += f"[{identity(data) or part}]" if isinstance(part, int) else f".{part}"
    return shown.removeprefix(".") or "spec"


def identity(entry: Any) -> str | None:
    """What tells this entry of a list from the others: its `id` or `on`."""
    if not isinstance(entry, Mapping):
        return None
    return next((entry[key] for key in IDENTITIES if isinstance(entry.get(key), str)), None)


def _entered(data: Any, part: str | int) -> Any:
    try:
        return data[part]
    except (KeyError, IndexError, TypeError):
        return None


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'record'?` where a known word is near, else nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def listed(words: Iterable[str], *, none: str = "none") -> str:
    """Words as a list in a sentence."""
    return ", ".join(words) or none


def shown(value: Any) -> str:
    """A value as its TOML would show it, with the name of its type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    words = {str: "the text", int: "the whole number", float: "the fraction"}
    return f"{words.get(type(value), type(value).__name__)} {value!r}"
