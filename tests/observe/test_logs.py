"""Events as structured logs."""

import logging

import pytest
import structlog

from tsgraph.events import Event
from tsgraph.observe.logs import write_log


@pytest.fixture
def unconfigured():
    """structlog as an application that never touched it has it."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def test_an_event_goes_through_what_the_application_configured(unconfigured):
    """A configured structlog gets the event's name, level and fields."""
    entries = structlog.testing.LogCapture()
    structlog.configure(processors=[entries])
    write_log(Event("slot.failed", "error", {"slot": "default/8", "step": "record"}))
    assert [{"event": "slot.failed", "log_level": "error", "slot": "default/8", "step": "record"}] == entries.entries


def test_without_configuration_events_go_to_the_standard_logger(unconfigured, caplog):
    """An application that uses plain logging finds event and facts in the message."""
    with caplog.at_level(logging.INFO, logger="tsgraph"):
        write_log(Event("capture.started", "info", {"spec": "decode"}))
    (record,) = caplog.records
    assert ("tsgraph", "event='capture.started' spec='decode'") == (record.name, record.getMessage())


def test_writing_a_log_configures_nothing(unconfigured):
    """The library never configures structlog."""
    write_log(Event("capture.started", "info", {}))
    assert not structlog.is_configured()
