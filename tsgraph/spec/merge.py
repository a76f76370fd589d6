"""One spec over another: `extends = "decode"` inherits everything and changes what it names.

Tables merge key by key. Lists of entries with an identity (`id`, or `on` for transitions) merge entry by entry, with
new ones at the end; all other lists replace. An entry that says `remove = true` takes the inherited one away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from tsgraph.spec.problems import IDENTITIES, Address, Problem, identity, suggestion

CONDITION_KEYS = ("event", "than", "n", "counter", "equals", "mode", "is")


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """`base` with `over` laid on it, as new data; and what `over` asks that cannot be done."""
    merge = _Merge()
    return merge.tables(base, over, ()), merge.problems


@attrs.define
class _Merge:
    problems: list[Problem] = attrs.field(factory=list)

    def tables(self, base: Mapping[str, Any], over: Mapping[str, Any], at: Address) -> dict[str, Any]:
        result = dict(base)
        for key, value in over.items():
            if _removes(value):
                self._remove(result, key, value, (*at, key))
            else:
                result[key] = self._values(base[key], value, (*at, key)) if key in base else value
        return result

    def _values(self, base: Any, over: Any, at: Address) -> Any:
        if isinstance(base, Mapping) and isinstance(over, Mapping):
            return self.tables(base, over, at)
        if _are_entries(base) and isinstance(over, list) and all(isinstance(entry, Mapping) for entry in over):
            return list(self._entries(base, over, at).values())
        return over

    def _entries(self, base: list[Any], over: list[Any], at: Address) -> dict[Any, Any]:
        result = dict(_keyed(base))
        for index, (name, entry) in enumerate(_keyed(over)):
            if _removes(entry):
                self._remove(result, name, entry, (*at, index))
            else:
                result[name] = self._entry(result[name], entry, (*at, index)) if name in result else entry
        return result

    def _entry(self, base: Mapping[str, Any], over: Mapping[str, Any], at: Address) -> dict[str, Any]:
        """A rule that gets another kind loses the words of its old one."""
        if over.get("kind", base.get("kind")) != base.get("kind"):
            base = {key: value for key, value in base.items() if key not in CONDITION_KEYS}
        return self.tables(base, over, at)

    def _remove(self, result: dict[Any, Any], name: Any, entry: Mapping[str, Any], at: Address) -> None:
        if name not in result:
            near = suggestion(str(name), map(str, result))
            self.problems.append(Problem(at, f"there is nothing to remove{near}"))
        if extra := [key for key in entry if key != "remove" and key not in IDENTITIES]:
            self.problems.append(Problem(at, f"an entry that is removed says nothing else, but has {', '.join(extra)}"))
        result.pop(name, None)


def _keyed(entries: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Entries by identity. One without, or with one that was there before, stays on its own, for the check to find."""
    seen: set[str | None] = {None}
    for entry in entries:
        name = identity(entry)
        yield (object() if name in seen else name), entry
        seen.add(name)


def _removes(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("remove") is True


def _are_entries(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(identity(entry) for entry in value)
