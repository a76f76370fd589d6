"""Faults of what must stand between calls: recorded memory, outputs that are kept, one call at a time (S1 to S3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

from tsgraph.backends.emulated.backend import EmulatedBackend
from tsgraph.replay import guard
from tsgraph.replay.guard import Guard
from tsgraph.replay.places import COLLABORATOR, Place
from tsgraph.replay.turnstile import Passage
from tsgraph.slots import leases
from tsgraph.slots.leases import Lease
from tsgraph.testing.faults.fault import Fault, Patch, nothing, replaced


def _without_parts(places_of: Callable[..., Iterator[Place]]) -> Callable[..., list[Place]]:
    def wrong(*args: Any) -> list[Place]:
        return [place for place in places_of(*args) if not place.path.startswith(COLLABORATOR)]

    return wrong


def _stuck(arrange: Callable[[Guard], None]) -> Callable[[Guard], None]:
    """After the first look, which is at everything, the same few places are looked at for ever."""

    def wrong(self: Guard) -> None:
        arrange(self)
        everything, few = self._next(), self._next()
        self._next = chain([everything], repeat(few)).__next__

    return wrong


def _plain(tensor: Any, _leases: Any) -> Any:
    return tensor


def _kept_by_errors(leave: Callable[..., None]) -> Callable[..., None]:
    def wrong(self: Passage, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            leave(self, kind, error, trace)

    return wrong


def _anybody(_enter: Callable[..., None]) -> Callable[[Passage], None]:
    def wrong(self: Passage) -> None:
        self.turnstile.doing = self.doing

    return wrong


FAULTS = (
    Fault(
        "guard_skips_parts",
        "what collaborators hold is not looked at",
        ("S1",),
        (Patch(guard, "places_of", _without_parts),),
    ),
    Fault(
        "sweep_stuck",
        "the same few places are looked at before each replay",
        ("S1",),
        (Patch(Guard, "arrange", _stuck),),
    ),
    Fault(
        "refresh_unchecked",
        "nobody looks where a refresh has left metadata",
        ("S1",),
        (Patch(Guard, "metadata_of", replaced(nothing)),),
    ),
    Fault(
        "lease_never_ends",
        "outputs can be used when they are overwritten",
        ("S2",),
        (Patch(Lease, "require", replaced(nothing)),),
    ),
    Fault(
        "views_unleased",
        "views of leased outputs are ordinary tensors",
        ("S2",),
        (Patch(leases, "_leased_on", replaced(_plain)),),
    ),
    Fault(
        "way_barred_by_errors",
        "a call that raises lets nobody in after it",
        ("S3",),
        (Patch(Passage, "__exit__", _kept_by_errors),),
    ),
    Fault(
        "calls_inside_calls",
        "a call is let in while another is inside",
        ("S3",),
        (Patch(Passage, "__enter__", _anybody),),
    ),
    Fault(
        "replay_inside_recording",
        "a step is replayed while somebody records the stream",
        ("S3",),
        (Patch(EmulatedBackend, "recording", replaced(property(lambda _: False))),),
    ),
)
