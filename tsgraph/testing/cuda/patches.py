"""Attributes that are replaced for a while, and put back exactly."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Patches:
    """Replaced attributes, in order. Undone, each is the object that it was, or absent if it was."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, object]] = []

    def put(self, owner: Any, name: str, value: object) -> None:
        """`owner.name` is `value` until `undo`."""
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back, the last first."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
