"""State machines that hypothesis drives, over a spec's lives and over whole runtimes; what their programs use."""

from __future__ import annotations

from tsgraph.testing.stateful.find import check, find, fuzz, fuzz_spec
from tsgraph.testing.stateful.lives import machine_for
from tsgraph.testing.stateful.program import Disagreement
from tsgraph.testing.stateful.serving import runtime_machine
from tsgraph.testing.stateful.shrink import Find
from tsgraph.testing.stateful.steps import (
    Burst,
    burst,
    dirty,
    figures,
    held,
    kept,
    left_on,
    near,
    padded,
    put_state,
    same,
    state_of,
    told,
    untouched,
)
from tsgraph.testing.stateful.work import Interrupt, Work, explained, facts, outcome

__all__ = [
    "Burst",
    "Disagreement",
    "Find",
    "Interrupt",
    "Work",
    "burst",
    "check",
    "dirty",
    "explained",
    "facts",
    "figures",
    "find",
    "fuzz",
    "fuzz_spec",
    "held",
    "kept",
    "left_on",
    "machine_for",
    "near",
    "outcome",
    "padded",
    "put_state",
    "runtime_machine",
    "same",
    "state_of",
    "told",
    "untouched",
]
