"""Events as structured logs. The library never configures logging: it takes what the application has configured.

Where the application configured structlog, events go through its processors. Where it did not, they go to the standard
logger `tsgraph` as `event='…' name=value …`, so that nothing below a warning is printed that nobody asked for.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

from tsgraph.events import Event


def write_log(event: Event) -> None:
    """Write one event at its severity, its facts as fields."""
    getattr(_logger(), event.severity)(event.name, **event.fields)


def _logger() -> Any:
    if structlog.is_configured():
        return structlog.get_logger("tsgraph")
    return structlog.wrap_logger(
        logging.getLogger("tsgraph"),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[structlog.stdlib.filter_by_level, structlog.processors.KeyValueRenderer(key_order=["event"])],
    )
