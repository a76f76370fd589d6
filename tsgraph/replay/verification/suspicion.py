"""What may be behind a finding: kinds of cause, each with what to do, and which circumstances speak for which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import attrs

History = Literal["clean", "again", "dirty", "larger", "shuffled", "others", "eager", "idle"]
TOLD: Mapping[History, str] = {
    "clean": "buffers and outputs as they were",
    "again": "right after the same replay",
    "dirty": "over dirty buffers and outputs",
    "larger": "after a larger batch",
    "shuffled": "after an eager step of a full batch in reverse order",
    "others": "after replays of other slots",
    "eager": "in an eager step",
    "idle": "over another state",
}
"""What came before a replay, or which run it was, in words."""

Check = Literal[
    "equality",
    "structure",
    "staging",
    "isolation",
    "sinks",
    "writes",
    "addresses",
    "repeatability",
    "callers",
    "errors",
]

Kind = Literal[
    "moved", "stale", "baked", "early", "refresh", "pad read", "pad write", "undeclared", "unwritten", "unstaged",
    "rows", "chance",
]  # fmt: skip
CAUSES: Mapping[Kind, tuple[str, str]] = {
    "moved": (
        "a tensor that was recorded is another one now",
        "update tensors in place (copy_), or call runtime.invalidate and capture again",
    ),
    "stale": (
        "the graph reads memory that no replay refreshes",
        "slot.receipt lists what it reads, undeclared memory too: declare it, or copy into the tensor that it reads",
    ),
    "baked": (
        "a Python value was frozen when the slot was recorded",
        "runtime.probe_constants(key) shows such values: make it a buffer, or a part of the key, or capture again",
    ),
    "early": (
        "`refresh` reads a static buffer on the device before the graph has put this step's rows there",
        'declare who reads it: read_by = ["graph", "device"] in the spec, or in Rows(…)',
    ),
    "refresh": (
        "metadata that `refresh` makes for a replay are not those that `begin_eager` makes",
        "hold the collaborator against tsgraph.testing.conformance.check_attention",
    ),
    "pad read": (
        "live rows read pad rows, or rows and columns that nobody gave",
        "mask them in the step, or declare a pad that every reader skips",
    ),
    "pad write": (
        "pad rows write to a row that may be a request's",
        "let the pads of what they write by point at a sink of this state",
    ),
    "undeclared": (
        "the step keeps something between steps that nobody declared",
        "declare it: state={name: State(tensor, sink=…)}, or State(tensor, restore=True)",
    ),
    "unwritten": (
        "the graph reads memory of its pool that this replay did not write, or a workspace made while it was recorded",
        "write all of each intermediate, and make workspaces before the capture; slot.receipt lists what escaped",
    ),
    "unstaged": (
        "rows or columns that this step did not bring keep what an earlier one left, or somebody else writes there",
        "if neither the step nor a collaborator writes to the buffer, it is a fault of tsgraph: please report it",
    ),
    "rows": (
        "the step depends on how many rows there are, pads among them",
        "compute from live rows alone, by a mask or lengths; where rows are meant to meet, verify with alike=False",
    ),
    "chance": (
        "the step is not the same twice: sums in any order, memory that starts uninitialised, its own random numbers",
        "ask torch for deterministic algorithms, write all of what starts as empty(), or verify with a tolerance",
    ),
}
"""What may be the cause, and what to do about it."""


@attrs.frozen
class Suspect:
    """A likely kind of cause: `why`, and what to `do`."""

    kind: Kind
    why: str
    do: str

    @classmethod
    def of(cls, kind: Kind) -> Suspect:
        """That of this kind."""
        return cls(kind, *CAUSES[kind])


@attrs.frozen
class Place:
    """Where in a verification: at how many live rows, after which history."""

    live: int
    history: History

    def __str__(self) -> str:
        return f"{self.live} live row{'' if self.live == 1 else 's'}, {TOLD[self.history]}"


@attrs.frozen(kw_only=True)
class Evidence:
    """What is known of a slot, and the places at which a check failed.

    `moved`: a recorded tensor is elsewhere. `metadata`: there are such; `inside`: rows are staged inside of the graph.
    `hidden`: the receipt lists undeclared memory that is read, or parts that nobody looked into; `escaped`: memory of
    the pool that somebody kept.
    """

    failed: frozenset[Place]
    moved: bool = False
    metadata: bool = False
    inside: bool = False
    hidden: bool = False
    escaped: bool = False

    @property
    def histories(self) -> set[History]:
        """The histories after which it failed."""
        return {place.history for place in self.failed}


def suspects_of(check: Check, evidence: Evidence) -> tuple[Suspect, ...]:
    """The likely causes of a failed check, likeliest first."""
    return tuple(Suspect.of(kind) for kind in dict.fromkeys(_SUSPICIONS[check](evidence)))


def _of_inequality(evidence: Evidence) -> Iterator[Kind]:
    """A replay is not eager. Where it never is, it reads what is old; else it reads what some histories left."""
    if evidence.moved:
        yield "moved"
    elif evidence.histories & {"clean"}:
        yield from _of_old(evidence)
    else:
        yield from _of_history(evidence)


def _of_old(evidence: Evidence) -> Iterator[Kind]:
    if evidence.escaped:
        yield "unwritten"
    if evidence.metadata:
        yield "refresh"
    if evidence.metadata and evidence.inside:
        yield "early"
    yield "baked"
    if evidence.hidden:
        yield "stale"


def _of_history(evidence: Evidence) -> Iterator[Kind]:
    if evidence.escaped:
        yield "unwritten"
    if evidence.metadata and "shuffled" in evidence.histories:
        yield "refresh"
    if "again" in evidence.histories:
        yield "undeclared"
    if evidence.histories == {"dirty"}:
        yield "pad read"
    yield "unwritten"
    yield "undeclared"


def _always(*kinds: Kind) -> Callable[[Evidence], tuple[Kind, ...]]:
    return lambda _: kinds


_SUSPICIONS: Mapping[Check, Callable[[Evidence], Iterator[Kind] | tuple[Kind, ...]]] = {
    "equality": _of_inequality,
    "structure": _always("baked"),
    "staging": _always("unstaged"),
    "isolation": _always("pad read", "rows"),
    "sinks": _always("pad write"),
    "writes": _always("undeclared"),
    "addresses": _always("moved"),
    "repeatability": _always("chance", "undeclared"),
    "callers": _always(),
    "errors": _always(),
}
