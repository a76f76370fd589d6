"""Findings about where a slot can go: the declared way, states that nothing reaches, and slots without a way out."""

from __future__ import annotations

from collections.abc import Iterator

from tsgraph.errors import TsgraphError
from tsgraph.lifecycle import Lifecycle
from tsgraph.proving.explore import Exploration, successors
from tsgraph.proving.trace import told
from tsgraph.proving.values import Finding, with_
from tsgraph.proving.verdict import Verdict
from tsgraph.proving.world import UNBORN, Place
from tsgraph.spec.model import Spec, Step


def way_findings(verdicts: tuple[Verdict, ...]) -> tuple[Finding, ...]:
    """The declared steps, done in order, lead to a replayable slot; every state is reached; and none holds a slot."""
    return (*_routes(verdicts), *_unreached(verdicts), *_traps(verdicts))


# -- the declared way --------------------------------------------------------------------------------------------------


def _routes(verdicts: tuple[Verdict, ...]) -> Iterator[Finding]:
    """Without it nothing would ever be replayed: an error, told for the smallest combination."""
    for verdict in verdicts:
        stopped = _stopped(verdict.spec)
        if stopped:
            where = with_(verdict.restricted.present)
            says = f"the declared steps, in order, do not lead to a slot that serves, {where}: {stopped}"
            yield Finding(severity="error", kind="route", subject="transitions", says=says)
            return


def _stopped(spec: Spec) -> str:
    """What stops a slot on the declared way, each transition in a session of its own or all in one; "" if nothing."""
    lifecycle = Lifecycle(spec)
    if not lifecycle.route:
        return f"no triggers without a role lead from {spec.lifecycle.initial} to where replays are permitted"
    try:
        lifecycle.set_up(_done)
        _taken(lifecycle, "one")
        with lifecycle.session(_done):
            _taken(lifecycle, "another")
    except TsgraphError as error:
        return error.what
    return ""


def _taken(lifecycle: Lifecycle, variant: str) -> None:
    life = lifecycle.begin(f"{variant}/1", variant)
    for trigger in lifecycle.route:
        life.fire(trigger, _done)


def _done(step: Step) -> None:
    """Every step does its work."""


# -- states ------------------------------------------------------------------------------------------------------------


def _unreached(verdicts: tuple[Verdict, ...]) -> Iterator[Finding]:
    """A state that no order of events leads to is an error; if some combination leads there, a note."""
    reached = {verdict.restricted.present: _states(verdict.found) for verdict in verdicts}
    for state in verdicts[0].spec.lifecycle.states:
        without = [present for present, states in reached.items() if state not in states]
        if len(without) == len(reached):
            says = "no order of events leads to this state"
            yield Finding(severity="error", kind="unreachable", subject=state, says=says)
        elif without:
            says = f"no order of events leads to this state {with_(without[0])}"
            yield Finding(severity="note", kind="unreachable", subject=state, says=says)


def _states(found: Exploration) -> set[str]:
    return {place.state for place in found.met} - {UNBORN}


def _traps(verdicts: tuple[Verdict, ...]) -> Iterator[Finding]:
    """A slot from which neither an end nor a replay can be reached any more: an error, told once for each state."""
    seen: set[str] = set()
    for verdict in verdicts:
        for stuck in _stuck(verdict.found, verdict.spec):
            state = verdict.found.place(stuck).state
            if state not in seen:
                seen.add(state)
                way = "; ".join(line.strip() for line in told(verdict.found, stuck))
                says = f"a slot can be stuck here, {with_(verdict.restricted.present)}, after: {way or 'nothing'}"
                yield Finding(severity="error", kind="trap", subject=state, says=says)


def _stuck(found: Exploration, spec: Spec) -> tuple[int, ...]:
    """The configurations between transitions from which neither can be reached, in the order in which they were met."""
    if found.met <= _always_out(found, spec):
        return ()
    saved = _saved(found, spec)
    return tuple(now for now in found.came if now not in saved and not found.place(now).trigger)


def _goal(place: Place, spec: Spec) -> bool:
    return not place.trigger and place.state in (*spec.lifecycle.final, *spec.lifecycle.replays_in)


def _always_out(found: Exploration, spec: Spec) -> set[Place]:
    """The places from which moves that nothing can prevent lead to an end or a replay: mostly all, cheap to find."""
    moves = found.world.moves
    out = {place for place in moves if _goal(place, spec)}
    before = -1
    while before != len(out):
        before = len(out)
        out.update(place for place in moves if any(move.is_free and move.target in out for move in moves[place]))
    return out


def _saved(found: Exploration, spec: Spec) -> set[int]:
    """The configurations from which an end or a replay can be reached, by going backward from there."""
    back: dict[int, list[int]] = {}
    for now in found.came:
        for then in successors(found.rows, now):
            back.setdefault(then, []).append(now)
    queue = [now for now in found.came if _goal(found.place(now), spec)]
    saved = set(queue)
    for now in queue:
        fresh = [before for before in back.get(now, ()) if before not in saved]
        saved.update(fresh)
        queue += fresh
    return saved
