"""What attention and drafter promise alike: metadata that are views of persistent buffers, refreshed in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tsgraph.testing.conformance.metadata import MetadataTrial, live_difference
from tsgraph.testing.conformance.promises import Promise
from tsgraph.testing.conformance.readings import copy_of, difference, moved, places_of, values_in


def bind_repeats_addresses(trial: MetadataTrial) -> str | None:
    """A second bind gives the views of the first."""
    for rows in trial.ground.sizes:
        before = places_of(trial.bind(rows))
        if told := moved(before, places_of(trial.bind(rows))):
            return f"{told} ({rows} rows)"
    return None


def bind_keeps_other_sizes(trial: MetadataTrial) -> str | None:
    """Growing and then shrinking, each size keeps its own addresses: no larger one makes a smaller one's move."""
    rising = {rows: places_of(trial.bind(rows)) for rows in trial.ground.sizes}
    for rows in reversed(trial.ground.sizes):
        if told := moved(rising[rows], places_of(trial.bind(rows))):
            return f"{told} ({rows} rows, after larger sizes)"
    return None


def refresh_keeps_addresses(trial: MetadataTrial) -> str | None:
    """For every size and number of live rows."""
    for rows, live in trial.ground.lives():
        before = places_of(trial.bind(rows))
        trial.refresh(rows, live, 1)
        if told := moved(before, places_of(trial.metadata(trial.part))):
            return f"{told} ({live} of {rows} rows)"
    return None


def refresh_changes_no_value(trial: MetadataTrial) -> str | None:
    """A Python number among the metadata is what it was when it was baked into the recording."""
    for rows, live in trial.ground.lives():
        before = values_in(trial.bind(rows))
        for step in (1, 2):
            trial.refresh(rows, live, step)
            if before != values_in(trial.metadata(trial.part)):
                return f"{values_in(trial.metadata(trial.part))} instead of {before} ({live} of {rows} rows)"
    return None


def refresh_reaches_recordings(trial: MetadataTrial) -> str | None:
    """Graphs of all sizes, recorded one after the other, read what the refresh for their size wrote."""
    recordings = {rows: trial.record(rows) for rows in reversed(trial.ground.sizes)}
    for step, (rows, live) in enumerate(trial.ground.lives(), 1):
        expected = trial.refreshed(rows, live, step)
        trial.refresh(rows, live, step)
        if told := recordings[rows].misreads(expected):
            return f"{told} ({live} of {rows} rows)"
    return None


def refresh_forgets_history(trial: MetadataTrial) -> str | None:
    """After a full batch with other rows, and among garbage, a smaller one has the metadata of a fresh part."""
    for rows, live in trial.ground.lives():
        trial.bind(rows)
        trial.refresh(rows, rows, 3)
        trial.refresh(rows, live, 1)
        now = copy_of(trial.metadata(trial.part))
        if told := difference(trial.refreshed(rows, live, 1), now):
            return f"{told} ({live} of {rows} rows, after a full batch)"
    return None


def refresh_ignores_pads(trial: MetadataTrial) -> str | None:
    """What it says about live rows is what it says without pads."""
    exact = set(trial.ground.sizes)
    for rows, live in trial.ground.lives():
        if live in exact and (told := live_difference(trial, live, rows, trial.refreshed(rows, live, 1))):
            return f"{told} ({live} of {rows} rows)"
    return None


def buffers_stay(trial: MetadataTrial) -> str | None:
    """Bind, refresh and begin_eager read the batch's buffers and never write them."""
    rows = trial.ground.sizes[-1]
    calls: dict[str, Callable[[Any], None]] = {
        "bind": trial.part.bind,
        "refresh": lambda batch: trial.part.refresh(batch, rows - 1),
        "begin_eager": trial.part.begin_eager,
    }
    for name, call in calls.items():
        batch = trial.ground.stage(rows, rows - 1, 1)
        before = copy_of(batch.buffers)
        call(batch)
        if told := difference(before, batch.buffers):
            return f"{name} to write there: {told}"
    return None


def eager_leaves_bound(trial: MetadataTrial) -> str | None:
    """After an eager step of any size, binding gives the addresses of before."""
    for rows in trial.ground.sizes:
        before = places_of(trial.bind(rows))
        trial.part.begin_eager(trial.ground.eager_batch(trial.ground.sizes[-1] + 3, 2))
        if told := moved(before, places_of(trial.bind(rows))):
            return f"{told} ({rows} rows)"
    return None


def eager_leaves_recordings(trial: MetadataTrial) -> str | None:
    """An eager step, then a refresh without a bind, as in serving: the graph reads what was refreshed."""
    for rows, live in trial.ground.lives():
        recording, expected = trial.record(rows), trial.refreshed(rows, live, 1)
        trial.part.begin_eager(trial.ground.eager_batch(trial.ground.sizes[-1] + 3, 2))
        trial.refresh(rows, live, 1)
        if told := recording.misreads(expected):
            return f"{told} ({live} of {rows} rows)"
    return None


def metadata_promises() -> list[Promise[MetadataTrial]]:
    """The promises, for the protocols that make them."""
    bound = "the addresses that were bound"
    made = {
        bind_repeats_addresses: ("bind", "the same addresses at each call"),
        bind_keeps_other_sizes: ("bind", "addresses of a size that the bind of another leaves alone"),
        refresh_keeps_addresses: ("refresh", bound),
        refresh_changes_no_value: ("refresh", "no change of a value that a recording bakes in"),
        refresh_reaches_recordings: ("refresh", "metadata that an already recorded graph reads"),
        refresh_forgets_history: ("refresh", "the metadata of this batch, whatever came before or lies beyond"),
        refresh_ignores_pads: ("refresh", "the same about live rows with pads as without"),
        buffers_stay: ("refresh", "the batch's buffers left as they are"),
        eager_leaves_bound: ("begin_eager", bound + " at the next bind"),
        eager_leaves_recordings: ("begin_eager", "recordings that read what the next refresh writes"),
    }
    return [Promise(check.__name__, member, expected, check) for check, (member, expected) in made.items()]
