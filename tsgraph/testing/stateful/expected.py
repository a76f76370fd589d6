"""What a runtime should be, by plain dicts: where every slot is and what was served, kept by hand beside it."""

from __future__ import annotations

from typing import Any

import attrs

from tsgraph.spec.model import Lifecycle

Key = tuple[str, int]


@attrs.define(eq=False)
class Expected:
    """Where every slot should be and what was served, kept by hand beside the runtime.

    `recorded`: the slots that had a recording when they were released. `asleep`: everything was released, so that
    no step has a slot captured, even if the policy is `lazy`.
    """

    law: Lifecycle
    sizes: tuple[int, ...]
    padding: bool
    states: dict[Key, str]
    enabled: bool = True
    lazy: bool = False
    asleep: bool = False
    recorded: set[Key] = attrs.field(factory=set)
    replays: dict[Key, int] = attrs.field(factory=dict)
    pads: dict[Key, int] = attrs.field(factory=dict)
    eager: dict[str, int] = attrs.field(factory=dict)

    def decision(self, rows: int, variant: str) -> tuple[Key | None, int, str]:
        """Where a decode step should go: the smallest size that holds it, if its slot can be replayed."""
        fitting = [size for size in self.sizes if size >= rows]
        if not self.enabled:
            return None, rows, "DISABLED"
        if not fitting:
            return None, rows, "NO_SIZE_FITS"
        if not self.padding and rows not in self.sizes:
            return None, rows, "NO_EXACT_SIZE"
        key = (variant, min(fitting))
        if self.states[key] in self.law.replays_in:
            return key, key[1], "EXACT" if key[1] == rows else "PADDED"
        return None, rows, "ON_DEMAND" if self._awaits(key) else self._reason(self.states[key])

    def served(self, rows: int, variant: str) -> tuple[Key | None, int, str]:
        """The same, once the slot is captured that the step wants, if it is one that is captured on demand."""
        decision = self.decision(rows, variant)
        if decision[2] == "ON_DEMAND":
            self.capture((variant, min(size for size in self.sizes if size >= rows)))
        return self.decision(rows, variant)

    def _awaits(self, key: Key) -> bool:
        return self.lazy and not self.asleep and self.states[key] in (self.law.initial, self.stale)

    @property
    def stale(self) -> str:
        """The state of a slot of which something recorded has changed."""
        return self._to(self.law.on_change)

    def holds(self, key: Key) -> bool:
        """Whether the slot, which is in a transition's end, holds a recording."""
        return self.states[key] in (*self.law.replays_in, self.stale)

    def lost(self, key: Key) -> bool:
        """Whether waking brings the slot back."""
        released = self.states[key] == self._to(self.law.on_release) and key in self.recorded
        return released or self.states[key] in (self.stale, self._to(self.law.on_failure))

    def _reason(self, state: str) -> str:
        roles = {
            "SLOT_STALE": self.law.on_change,
            "SLOT_FAILED": self.law.on_failure,
            "SLOT_RELEASED": self.law.on_release,
        }
        reasons = {self._to(trigger): reason for reason, trigger in roles.items()}
        return reasons.get(state, "NOT_CAPTURED")

    def _to(self, trigger: str) -> str:
        (to,) = (t.to for t in self.law.transitions if t.on == trigger)
        return to

    def may(self, key: Key, trigger: str) -> bool:
        """Whether the trigger exists in the slot's state."""
        return any(t.on == trigger and self.states[key] in t.source for t in self.law.transitions)

    def fire(self, key: Key, trigger: str) -> None:
        """Change the slot's state."""
        if trigger == self.law.on_release:
            (self.recorded.add if self.holds(key) else self.recorded.discard)(key)
        self.states[key] = self._to(trigger)

    def capture(self, key: Key) -> None:
        """Take the slot along the route, where it is on it: reached without the triggers that play a role.

        A stale one begins again.
        """
        if self.states[key] == self.stale:
            self.states[key] = self._to(self.law.on_reset)
        roles = (self.law.on_failure, self.law.on_change, self.law.on_release, self.law.on_reset)
        reached = {self.law.initial}
        for _ in self.law.states:
            ways = [t for t in self.law.transitions if t.on not in roles and t.to not in self.law.final]
            reached |= {t.to for t in ways if set(t.source) & reached}
        if self.states[key] in reached:
            self.states[key] = self.law.replays_in[0]

    def figures(self) -> dict[str, Any]:
        """As `stateful.figures` of the runtime."""
        slots = {k: (state, self.replays.get(k, 0), self.pads.get(k, 0)) for k, state in self.states.items()}
        return {
            "enabled": self.enabled,
            "slots": slots,
            "eager": self.eager,
            "replays": sum(self.replays.values()),
            "pad_rows": sum(self.pads.values()),
        }
