"""All places that a slot can be in, and every move from each: the machine of `lifecycle`, and a pipeline at its worst.

Theory of operation. Between transitions any legal trigger may fire. One that rules can refuse begins only where the run
of its declared steps is not refused (`Gate`). Once it has begun, the pipeline does as it likes: any step of the
transition, and of the session that it opened, in any order, again or not at all, each asked its rules just before, with
any outcome; any step may raise, and the slot fails; or the transition ends: cleanup, the trigger's rules, the state. So
it does with the setup, before a slot begins. Cleanup and the steps that leave a session do their work. Between
transitions sessions open and close, entries are pushed and taken back, and forwards are served. Other slots take their
steps, and begin again, at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Literal, NamedTuple

import attrs

from tsgraph.proving.acts import NONE, OTHERS, Act, Acts, Run, Runs, chained, lively
from tsgraph.proving.bits import ALWAYS, SLACK, Bits, Test, both
from tsgraph.proving.gate import Gate
from tsgraph.proving.rows import Row, rows
from tsgraph.spec.model import AtLeast, Spec, Transition

UNBORN = ""
"""The state of a slot that has not begun: what others did before it counts, too."""
BORN = "begin"

Session = Literal["none", "outside", "own"]
Sort = Literal["begin", "step", "end", "fail", "fire", "open", "close", "serve", "other"]


class Place(NamedTuple):
    """Where a slot is: its state, the transition under way ("": between transitions), and the session around it."""

    state: str
    trigger: str = ""
    session: Session = "none"


@attrs.frozen(eq=False)
class Move:
    """Something that the pipeline, or the world around it, can do at a place, all or none of it: `acts`, in order."""

    sort: Sort
    name: str
    acts: Run
    target: Place
    gate: Gate | None = None

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every way through its acts."""
        return rows(self.acts)

    @property
    def is_free(self) -> bool:
        """Whether nothing can prevent it."""
        return self.gate is None and all(act.wanted and act.test == ALWAYS for act in self.acts)

    def reads(self, bits: Bits) -> tuple[int, int]:
        """The bits that it reads before it overwrites them, and those that it does not overwrite."""
        read, kept = bits.whole(self.gate.mask) if self.gate else 0, -1
        for act in reversed(self.acts):
            read |= act.claimed(before=False)
            read = bits.whole(read & ~act.change.clear | act.test.mask | act.claimed(before=True))
            kept &= ~act.change.clear
        return read, kept


class _Group(NamedTuple):
    """Moves of one sort at one place. `asks`: the steps and triggers whose rules they ask."""

    sort: Sort
    name: str
    asks: tuple[str, ...]
    moves: Callable[[], Iterable[Move]]


@attrs.frozen(eq=False)
class World:
    """The places of one spec, already restricted to what is present, and the moves from each of them."""

    spec: Spec
    bits: Bits
    acts: Acts
    _made: dict[tuple[Place, Sort, str], tuple[Move, ...]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, spec: Spec, slack: int = SLACK) -> World:
        """The world of `spec`."""
        bits = Bits.of(spec, slack)
        return cls(spec, bits, Acts(spec, bits))

    def without(self, *rules: str, watched: str = "") -> World:
        """The same world with `rules` lifted, one of them `watched`. Whatever does not ask them is shared."""
        return World(self.spec, self.bits, self.acts.without(frozenset(rules), watched), self._made)

    def counting(self, slack: int) -> World:
        """The same world, with counters that count further."""
        bits = Bits.of(self.spec, slack)
        return World(self.spec, bits, Acts(self.spec, bits, self.acts.lifted, self.acts.watched))

    @cached_property
    def moves(self) -> Mapping[Place, tuple[Move, ...]]:
        """The moves from every place that moves lead to, whether or not anything is in the way."""
        found: dict[Place, tuple[Move, ...]] = {}
        queue = [Place(UNBORN)]
        for place in queue:
            if place not in found:
                found[place] = tuple(move for group in self._groups(place) for move in self._kept(place, group))
                queue += dict.fromkeys(move.target for move in found[place])
        return found

    def _kept(self, place: Place, group: _Group) -> tuple[Move, ...]:
        """The moves of `group`, made once for all worlds in which it asks the same."""
        if self.acts.lifted_from(group.asks):
            return tuple(group.moves())
        key = place, group.sort, group.name
        if key not in self._made:
            self._made[key] = tuple(group.moves())
        return self._made[key]

    def _groups(self, place: Place) -> Iterator[_Group]:
        if place.trigger:
            yield from self._inside(place)
            return
        if place.state == UNBORN:
            yield from self._setting_up(place)
        if self.has_session:
            yield from self._around(place)
        yield from self._served(place)
        yield from self._others(place)
        yield from self._fired(place)

    def _setting_up(self, place: Place) -> Iterator[_Group]:
        """A runtime is built before its slots begin: any step of its setup, in any order, again or not at all."""
        for name in dict.fromkeys(self.spec.setup.steps):
            yield self._group("step", f"setup {name}", (name,), partial(self.acts.step, name, "setup"), place)

    # -- between transitions --

    def _fired(self, place: Place) -> Iterator[_Group]:
        if place.state == UNBORN:
            born = Transition(on=BORN, source=(), to=self.spec.lifecycle.initial)
            yield self._group("fire", BORN, (), lambda: self.acts.entered(born), place._replace(state=born.to))
        for transition in self.spec.lifecycle.transitions:
            if place.state in transition.source:
                yield self._trigger(transition, place)

    def _trigger(self, transition: Transition, place: Place) -> _Group:
        name, target = transition.on, place._replace(state=transition.to)
        if not self.spec.lifecycle.refusable(transition):
            return self._group("fire", name, (), lambda: self._concluded(transition), target)
        if not transition.steps:
            return self._group("fire", name, (name,), lambda: self.acts.entered(transition, asked=True), target)
        own = self.has_session and place.session == "none"
        inside = place._replace(trigger=name, session="own" if own else place.session)
        asks = (*self.spec.session.enter, *transition.steps, name)
        return _Group("begin", name, asks, lambda: (Move("begin", name, (), inside, self._gate(transition, own=own)),))

    def _concluded(self, transition: Transition) -> Runs:
        """What cannot be refused: cleanup, and any of a failure's steps."""
        cleanup, steps = self.acts.all_forced(transition.cleanup), self.acts.untried(transition.steps, ())
        return chained(cleanup, steps, self.acts.entered(transition))

    def _gate(self, transition: Transition, *, own: bool) -> Gate:
        """As `Law.simulate` has it: a step with several outcomes is taken to have the first."""
        shared = tuple(self._shared_counts(transition.on))
        cleanup = self.acts.first(transition.cleanup, asked=False)
        return Gate(
            opening=self.acts.first(self.spec.session.enter if own else (), "session"),
            steps=self.acts.first(transition.steps),
            rounds=transition.repeat,
            enough=both(shared) if shared else None,
            final=(*cleanup, Act("state", transition.to, test=self.acts.asked(transition.on))),
        )

    def _shared_counts(self, trigger: str) -> Iterator[Test]:
        """The trigger's rules that count in a wider scope than the slot's: they end the rounds once they hold."""
        for rule in self.acts.in_force(trigger):
            if isinstance(rule.condition, AtLeast) and rule.scope != "slot":
                yield self.acts.test(rule)

    # -- inside of one --

    def _inside(self, place: Place) -> Iterator[_Group]:
        transition, own = self.spec.lifecycle.transition(place.trigger), place.session == "own"
        after = Place(place.state, session="none" if own else place.session)
        leave = self._left if own else lambda: NONE
        for name in dict.fromkeys(transition.steps):
            yield self._step(name, place)
        yield from self._entering(place) if own else ()
        yield from self._others(place)  # the machine keeps only this slot from firing meanwhile
        yield self._group(
            "end", place.trigger, (place.trigger,),
            lambda: chained(self._ended(transition), leave()), after._replace(state=transition.to),
        )  # fmt: skip
        yield self._group(
            "fail", place.trigger, (place.trigger,),
            lambda: chained(self._failed(transition, place.state), leave()), self._failed_to(after),
        )  # fmt: skip

    def _step(self, name: str, place: Place) -> _Group:
        return self._group("step", name, (name,), lambda: self.acts.tried(self.acts.step(name)), place)

    def _ended(self, transition: Transition) -> Runs:
        cleanup = (lively(self.acts.step(name, asked=False)) for name in transition.cleanup)
        return chained(*cleanup, self.acts.entered(transition, asked=True))

    def _failed(self, transition: Transition, state: str) -> Runs:
        """All that runs after something raised: cleanup and, if it exists in `state`, the failure's own trigger."""
        failure, cleanup = self._failure, self.acts.all_forced(transition.cleanup)
        troubles = tuple(self._troubles(transition))
        if state not in failure.source:
            return chained(troubles, cleanup)
        steps = self.acts.untried(failure.steps, (*transition.steps, *transition.cleanup))
        return chained(troubles, cleanup, self.acts.all_forced(failure.cleanup), steps, self.acts.entered(failure))

    def _failed_to(self, after: Place) -> Place:
        return after._replace(state=self._failure.to) if after.state in self._failure.source else after

    @property
    def _failure(self) -> Transition:
        return self.spec.lifecycle.transition(self.spec.lifecycle.on_failure)

    def _troubles(self, transition: Transition) -> Iterator[Run]:
        """The ways to fail that differ: a step raises that the failure takes too, or another; cleanup; the rules."""
        raising = {name if name in self._failure.steps else "": name for name in reversed(transition.steps)}
        yield from (self.acts.raised(name) for name in raising.values())
        cleanup: Runs = NONE
        for name in transition.cleanup:
            yield from chained(cleanup, self.acts.tried(self.acts.overflowing(name)))
            cleanup = chained(cleanup, self.acts.tried(self.acts.step(name, asked=False)))
        yield from chained(cleanup, self.acts.refused(transition.on))

    # -- around slots --

    @cached_property
    def has_session(self) -> bool:
        """Whether a session makes any difference."""
        enter = (run for name in self.spec.session.enter for run in self.acts.step(name, "session"))
        return any(not act.idle for run in (*enter, *self._left()) for act in run)

    def _left(self) -> Runs:
        return self.acts.all_forced(self.spec.session.leave, "session")

    def _entering(self, place: Place) -> Iterator[_Group]:
        for name in dict.fromkeys(self.spec.session.enter):
            yield self._group("step", f"session {name}", (name,), partial(self.acts.step, name, "session"), place)

    def _around(self, place: Place) -> Iterator[_Group]:
        if place.session == "none":
            enter, opened = self.spec.session.enter, place._replace(session="outside")
            yield _Group(
                "open", "", enter, lambda: (Move("open", "", (), opened, Gate(self.acts.first(enter, "session"))),)
            )
        else:
            yield from self._entering(place)
            yield self._group("close", "", (), self._left, place._replace(session="none"))

    def _served(self, place: Place) -> Iterator[_Group]:
        """The slot's own replays, other slots' (which no property of this one judges), and forwards of no slot."""
        for kind, names in attrs.asdict(self.spec.serving).items():
            own = kind != "replay" or place.state in self.spec.lifecycle.replays_in
            yield self._group("serve", kind, names, partial(self._serving, names, judged=own), place)

    def _serving(self, names: tuple[str, ...], *, judged: bool) -> Runs:
        run = self.acts.first(names, "serving")
        return (run if judged else tuple(attrs.evolve(act, claims=()) for act in run),)

    def _others(self, place: Place) -> Iterator[_Group]:
        for name, asked in self._steps_of_slots.items():
            yield self._group("other", name, (name,), partial(self._other, name, asked=asked), place)
        reset = self.spec.lifecycle.on_reset
        yield self._group("other", "begin again", (), partial(self.acts.forgetting, reset), place)

    def _other(self, name: str, *, asked: bool) -> Runs:
        near, far = (self.acts.step(name, whose, asked=asked) for whose in OTHERS)
        same = [act.change for (act,) in near] == [act.change for (act,) in far]
        return far if same else (*near, *far)

    @cached_property
    def _steps_of_slots(self) -> dict[str, bool]:
        """The steps that slots take, and whether each is always asked its rules: a transition's cleanup is not."""
        law = self.spec.lifecycle
        asked = {name for t in law.transitions for name in t.steps if law.refusable(t)}
        forced = {n for t in law.transitions for n in (*t.cleanup, *(() if law.refusable(t) else t.steps))}
        return {name: name not in forced for name in self.spec.steps if name in asked | forced}

    # -- moves --

    def _group(self, sort: Sort, name: str, asks: tuple[str, ...], runs: Callable[[], Runs], target: Place) -> _Group:
        """One move for each run, save for those on which nothing depends."""
        idle = sort in ("step", "serve", "other")
        return _Group(
            sort, name, asks, lambda: (Move(sort, name, run, target) for run in lively(runs()) if run or not idle)
        )
