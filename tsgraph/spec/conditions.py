"""Conditions: what rules demand and properties promise of a ledger."""

from __future__ import annotations

import attrs


@attrs.frozen
class After:
    """The newest `event` is later than the newest `than`. A missing `event` never is; any is later than none."""

    event: str
    than: str

    def __str__(self) -> str:
        return f"the newest {self.event} is later than the newest {self.than}"


@attrs.frozen
class AtLeast:
    """`event` has happened at least `n` times since its scope began."""

    event: str
    n: int

    def __str__(self) -> str:
        return f"{self.event} has happened" if self.n == 1 else f"{self.event} has happened at least {self.n} times"


@attrs.frozen
class CounterIs:
    """`counter` equals `equals`."""

    counter: str
    equals: int

    def __str__(self) -> str:
        return f"counter {self.counter} is {self.equals}"


@attrs.frozen
class ModeIs:
    """`mode` is on (`value` true) or off."""

    mode: str
    value: bool

    def __str__(self) -> str:
        return f"mode {self.mode} is {'on' if self.value else 'off'}"


Condition = After | AtLeast | CounterIs | ModeIs
