"""How slots live: a spec's states, transitions and rules, compiled and run. The only importer of `transitions`."""

from __future__ import annotations

from tsgraph.lifecycle.law import Refusal
from tsgraph.lifecycle.ledger import Cause, Entry, Failure
from tsgraph.lifecycle.life import Explanation, Life
from tsgraph.lifecycle.machine import Lifecycle
from tsgraph.lifecycle.monitors import FLOOR_RULE, Effect, Monitors
from tsgraph.lifecycle.shared import Kind, Perform, ServingEffects

__all__ = [
    "FLOOR_RULE",
    "Cause",
    "Effect",
    "Entry",
    "Explanation",
    "Failure",
    "Kind",
    "Life",
    "Lifecycle",
    "Monitors",
    "Perform",
    "Refusal",
    "ServingEffects",
]
