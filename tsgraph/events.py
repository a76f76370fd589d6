"""What happened, as values: the events that observers (logs, tests, reports) are told. Names are `noun.past`.

A slot's change of state is `slot.<state>`, with the state's name in the spec: `slot.warmed`, `slot.captured`, ….
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

SLOT_REFUSED = "slot.refused"
SLOT_UNDECLARED_READ = "slot.undeclared_read"
SLOT_MEMORY_ESCAPED = "slot.memory_escaped"
CAPTURE_STARTED = "capture.started"
CAPTURE_FINISHED = "capture.finished"
CAPTURE_STALLED = "capture.stalled"
MEMORY_FORECAST = "memory.forecast"
MEMORY_MOVED = "memory.moved"
MEMORY_RELEASED = "memory.released"
DISPATCH_REASON_CHANGED = "dispatch.reason_changed"
OBSERVER_EJECTED = "observer.ejected"

Severity = Literal["debug", "info", "warning", "error"]


@attrs.frozen
class Event:
    """One thing that happened: its name, how much it matters to ops, and its facts as plain data."""

    name: str
    severity: Severity = "info"
    fields: Mapping[str, Any] = attrs.field(factory=dict)


Observer = Callable[[Event], None]


@attrs.define(eq=False)
class Observers:
    """Who is told what happens. An observer that raises is ejected, and the rest are told so; the work goes on."""

    _observers: list[Observer] = attrs.field(factory=list)

    def add(self, observer: Observer) -> None:
        """Tell `observer` every event from now on."""
        self._observers.append(observer)

    def emit(self, name: str, severity: Severity = "info", /, **fields: Any) -> None:
        """Tell every observer that `name` happened."""
        event = Event(name, severity, fields)
        for observer in tuple(self._observers):
            if observer in self._observers:  # telling of an ejection may have ejected it too
                self._tell(observer, event)

    def _tell(self, observer: Observer, event: Event) -> None:
        try:
            observer(event)
        except Exception as error:
            self._observers.remove(observer)
            self.emit(OBSERVER_EJECTED, "warning", observer=repr(observer), error=repr(error), during=event.name)
