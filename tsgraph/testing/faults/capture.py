"""Faults of a capture: steps that say that they were done and were not, and checks that look away.

The ledger has their events, so that no rule refuses: only what follows from them can tell.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import attrs

from tsgraph import assembly
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.state import StateGuard
from tsgraph.capture import laziness, setup
from tsgraph.capture.mode import is_capturing, set_capturing
from tsgraph.capture.pipeline import Pipeline, SessionWork
from tsgraph.capture.session import Capturer
from tsgraph.capture.setup import SetupWork
from tsgraph.dispatch.peers import Peers
from tsgraph.keys import RankCounts
from tsgraph.testing.faults.fault import Fault, Patch, nothing, replaced

Step = Callable[[Pipeline], Any]


@contextmanager
def _mode_kept() -> Iterator[None]:
    mode = is_capturing()
    try:
        yield
    finally:
        set_capturing(mode)


@contextmanager
def _collector_kept() -> Iterator[None]:
    collects, frozen = gc.isenabled(), gc.get_freeze_count()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        if not frozen:
            gc.unfreeze()


def _skipped(name: str, step: str, says: str, *breaks: str, worker: type = Pipeline, **rest: Any) -> Fault:
    """The fault `name`: `step` does nothing."""
    return Fault(name, says, breaks, (Patch(worker, step, replaced(nothing)),), **rest)


def _of_one_rank(self: Peers, rows: int) -> RankCounts | None:
    return None if self.count == 1 else RankCounts([rows * self.tokens_per_request], [rows], all_decode_or_idle=True)


def _as_if_extending(uniform: Callable[[Peers, int], Any]) -> Callable[[Peers, int], Any]:
    def wrong(self: Peers, rows: int) -> Any:
        counts = uniform(self, rows)
        return counts and attrs.evolve(counts, all_decode_or_idle=False)

    return wrong


def _once(step: Step) -> Step:
    """Done for the first warm-up, and said to be done afterwards."""

    def wrong(self: Pipeline) -> Any:
        return step(self) if self.slot.state == "allocated" else None

    return wrong


def _prepares_inside(record: Step) -> Step:
    def wrong(self: Pipeline) -> Any:
        forward, sampler = self.engine.forward, self.engine.sampler

        def prepared(batch: Any) -> Any:
            if sampler is not None:
                sampler.prepare(batch)
                sampler.reset()
                sampler.prepare(batch)
            return forward(batch)

        engine, self.engine = self.engine, _Stand(self.engine, prepared)  # type: ignore[assignment]
        try:
            return record(self)
        finally:
            self.engine = engine

    return wrong


@attrs.define
class _Stand:
    """An engine with another forward."""

    engine: Any
    forward: Callable[[Any], Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("engine", "forward"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.engine, name, value)


def _copied_views(views: Callable[..., Any]) -> Callable[..., Any]:
    """The batch of a slot holds copies of the static buffers."""
    made: dict[tuple[int, int], Any] = {}

    def copies(self: Arena, size: int) -> Any:
        if (id(self), size) not in made:
            made[id(self), size] = {name: _copy(self, view) for name, view in views(self, size).items()}
        return made[id(self), size]

    return copies


def _copy(arena: Arena, view: Any) -> Any:
    if isinstance(view, dict):
        return {group: _copy(arena, each) for group, each in view.items()}
    copy = arena.backend.allocate(view.shape, view.dtype, 0)
    copy.copy_(view)
    return copy


def _agreed(_self: Pipeline) -> str:
    return "ranks_agreed"


def _half_hidden(batch: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: assembly.Declaration, *args: Any, **words: Any) -> Any:
        made = batch(self, *args, **words)
        return attrs.evolve(made, full_hidden=not made.full_hidden)

    return wrong


@contextmanager
def _unwatched(_self: StateGuard) -> Iterator[None]:
    yield


@contextmanager
def _disturbed(_self: Capturer) -> Iterator[None]:
    yield


def _none_found(*_told: Any) -> tuple[str, ...]:
    return ()


def _unaudited(_self: Pipeline) -> Any:
    return nullcontext()


def _unaccounted(forward: Step) -> Step:
    """The tickets of a forward count as consumed before it has run."""

    def wrong(self: Pipeline) -> Any:
        self.slot.tickets.clear()
        return forward(self)

    return wrong


FAULTS = (
    _skipped("forgotten_drain", "drain_grammar", "the entry of a recording stays in the queue", "R23"),
    _skipped("forgotten_grammar_reset", "reset_grammar", "the entries of warm-up and recording stay current", "R23"),
    _skipped(
        "mode_left_on", "leave_capture_mode", "capture mode stays on after a recording", "R20", keeping=_mode_kept
    ),
    _skipped("mode_not_entered", "enter_capture_mode", "a recording is made without capture mode", "R20"),
    _skipped("push_skipped", "push_grammar", "a forward runs without a grammar entry of its own", "R22"),
    _skipped("mask_not_bound", "bind_mask", "the batch has no grammar mask", "R18"),
    _skipped("prepare_skipped", "prepare_sampler", "random numbers are not filled before a forward", "R8"),
    _skipped("sampler_not_reset", "reset_sampler", "what warm-ups counted stays in the sampler", "R10"),
    _skipped("lengths_not_filled", "fill_lengths", "a warm-up runs over lengths of 1", "R7"),
    _skipped("metadata_not_bound", "bind_metadata", "metadata are never bound", "R8", "R9"),
    _skipped("comm_not_armed", "arm_comm", "communication is recorded in whatever mode it has", "C3"),
    _skipped("address_check_blind", "check_addresses", "a recording whose memory has moved is published", "R21"),
    _skipped("views_check_blind", "check_views", "a batch that holds copies is recorded", "R19"),
    _skipped("graph_not_released", "release_graph", "a slot that gives its memory back keeps it", "P17"),
    _skipped("garbage_not_frozen", "freeze_gc", "the collector may run while recording", "R43", worker=SessionWork),
    _skipped(
        "garbage_left_frozen",
        "thaw_gc",
        "the collector stays away after a capture",
        "R43",
        worker=SessionWork,
        keeping=_collector_kept,
    ),
    Fault(
        "bind_skipped",
        "metadata are bound for the first warm-up only; what that left current is recorded",
        ("R9",),
        (Patch(Pipeline, "bind_metadata", _once),),
    ),
    Fault(
        "prepare_inside_recording",
        "random numbers are filled while recording, and so by every replay",
        ("R11",),
        (Patch(Pipeline, "record", _prepares_inside),),
    ),
    Fault(
        "entry_orphaned",
        "an entry counts as consumed before its forward has run",
        ("R25",),
        (Patch(Pipeline, "forward", _unaccounted),),
    ),
    Fault(
        "vote_ignored",
        "a slot serves although a rank refused it",
        ("R6",),
        (Patch(Pipeline, "settle_ranks", replaced(_agreed)),),
    ),
    Fault(
        "copied_views",
        "the batch that is recorded holds copies of the static buffers",
        ("R19",),
        (Patch(Arena, "views", _copied_views),),
    ),
    Fault(
        "one_ranks_counts",
        "what is recorded has the counts of this rank alone",
        ("R14",),
        (Patch(Peers, "uniform", replaced(_of_one_rank)),),
    ),
    Fault(
        "other_collectives_recorded",
        "what is recorded takes the collectives of steps in which some rank extends",
        ("R15",),
        (Patch(Peers, "uniform", _as_if_extending),),
    ),
    Fault(
        "metadata_not_made",
        "metadata are never told to make their state, and say that they were",
        ("R2",),
        (Patch(SetupWork, "init_metadata", replaced(nothing)),),
    ),
    Fault(
        "unequal_indices_shared",
        "a draft shares the target's indices whatever their forms",
        ("R3",),
        (Patch(setup, "_form", replaced(nothing)),),
    ),
    Fault(
        "full_hidden_wrong",
        "full hidden states are recorded without a drafter, and not with one",
        ("R17",),
        (Patch(assembly.Declaration, "batch", _half_hidden),),
    ),
    Fault(
        "guard_blind",
        "whatever rows of a state a warm-up writes stay written",
        ("R12",),
        (Patch(StateGuard, "protected", replaced(_unwatched)),),
    ),
    Fault(
        "audit_blind",
        "a warm-up may write memory that nobody declared",
        ("R12",),
        (Patch(Pipeline, "_audited", replaced(_unaudited)),),
    ),
    Fault(
        "lazy_work_unseen",
        "a slot without warm-ups of its own may read, run and keep what the warmed-up one did not",
        ("S4",),
        (Patch(laziness, "lazy_work", replaced(_none_found)),),
    ),
    Fault(
        "reach_unseen",
        "a graph that nobody watched may be handed memory that the warmed-up one was not",
        ("S4",),
        (Patch(laziness, "new_memory", replaced(_none_found)),),
    ),
    Fault(
        "workspace_unseen",
        "a slot without warm-ups of its own may leave memory that is no output",
        ("S4",),
        (Patch(laziness, "new_workspace", replaced(_none_found)),),
    ),
    Fault(
        "caller_disturbed",
        "a capture draws from the caller's random generator and overwrites rows in static buffers",
        ("R41",),
        (Patch(Capturer, "_undisturbed", replaced(_disturbed)),),
    ),
)
