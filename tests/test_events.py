"""Observers: everyone is told in order; one that raises is ejected, and the work goes on."""

from __future__ import annotations

import re

from tsgraph import events
from tsgraph.events import Event, Observers


def _raise(event: Event) -> None:
    raise ValueError("full disk")


def test_observers_are_told_in_order_of_joining():
    """Each observer hears each event once, first come, first told."""
    heard: list[tuple[str, str]] = []
    observers = Observers()
    observers.add(lambda event: heard.append(("first", event.name)))
    observers.add(lambda event: heard.append(("second", event.name)))

    observers.emit(events.CAPTURE_STARTED)

    assert [("first", "capture.started"), ("second", "capture.started")] == heard


def test_event_carries_its_facts():
    """What was emitted by keyword arrives as fields, with how much it matters."""
    heard: list[Event] = []
    observers = Observers()
    observers.add(heard.append)

    observers.emit(events.SLOT_REFUSED, "warning", slot="default/16", trigger="capture")

    assert [Event("slot.refused", "warning", {"slot": "default/16", "trigger": "capture"})] == heard


def test_raising_observer_is_ejected_and_the_rest_are_told():
    """The one at fault hears nothing more; the others hear the event, and who was ejected, during what and why."""
    heard: list[Event] = []
    observers = Observers()
    observers.add(_raise)
    observers.add(heard.append)

    observers.emit(events.CAPTURE_STARTED)
    observers.emit(events.CAPTURE_FINISHED)

    assert ["observer.ejected", "capture.started", "capture.finished"] == [event.name for event in heard]
    assert ("capture.started", "ValueError('full disk')") == (heard[0].fields["during"], heard[0].fields["error"])


def test_last_observer_may_be_ejected():
    """With nobody left to tell, an ejection is silent: observing never breaks what it observes."""
    observers = Observers()
    observers.add(_raise)

    observers.emit(events.CAPTURE_STARTED)
    observers.emit(events.CAPTURE_STARTED)


def test_every_raising_observer_is_ejected():
    """Two observers at fault are both ejected, though the second is told of the first's ejection in between."""
    heard: list[str] = []
    observers = Observers([_raise, _raise, lambda event: heard.append(event.name)])

    observers.emit(events.CAPTURE_STARTED)
    observers.emit(events.CAPTURE_FINISHED)

    assert ["observer.ejected", "observer.ejected", "capture.started", "capture.finished"] == heard


def test_observer_that_joins_meanwhile_hears_the_next_event():
    """Adding an observer from within one neither loses nor doubles an event."""
    heard: list[str] = []
    observers = Observers()
    observers.add(lambda _: observers.add(lambda event: heard.append(event.name)) if not heard else None)

    observers.emit(events.CAPTURE_STARTED)
    assert [] == heard
    observers.emit(events.CAPTURE_FINISHED)
    assert ["capture.finished"] == heard


def test_names_are_noun_and_participle():
    """Every event of the vocabulary is named `noun.past`, each once."""
    names = [value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)]

    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in names)
