"""A spec as a value: what `specs/*.toml` says, structured. Pure data; `load` makes it, everything else reads it.

`needs` names what a step, rule, property or buffer presupposes: a collaborator (`sampler`, `grammar`, …) or a policy
(`freeze_gc`). `Spec.restricted_to(present)` drops what is not there, so that nothing downstream asks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import attrs

from tsgraph.spec.conditions import After as After
from tsgraph.spec.conditions import AtLeast as AtLeast
from tsgraph.spec.conditions import Condition as Condition
from tsgraph.spec.conditions import CounterIs as CounterIs
from tsgraph.spec.conditions import ModeIs as ModeIs

Scope = Literal["slot", "variant", "runtime"]
Per = Literal["request", "token"]
Reader = Literal["graph", "host", "device"]

COLLABORATORS = (
    "attention",
    "sampler",
    "grammar",
    "drafter",
    "recurrent",
    "comm",
    "ranks",
    "paged_groups",
    "flat_groups",
)
POLICIES = ("freeze_gc",)


# -- rules and properties ----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Rule:
    """A condition that guards steps or triggers, with the reason for it and what to do when it refuses."""

    id: str
    guards: tuple[str, ...]
    condition: Condition
    because: str
    fix: str
    needs: str | None = None
    scope: Scope = "slot"


@attrs.frozen(kw_only=True)
class ValueRule:
    """A rule about values rather than order: no ledger can hold it, so a part of the code keeps it.

    `kept_by`: the module that does. `faults`: the planted faults, by name, that show that its removal is found.
    """

    id: str
    says: str
    because: str
    kept_by: str
    faults: tuple[str, ...] = ()
    needs: str | None = None


@attrs.frozen(kw_only=True)
class Clause:
    """One condition of a property, judged over the ledger of `scope`."""

    condition: Condition
    scope: Scope = "slot"
    needs: str | None = None


@attrs.frozen(kw_only=True)
class Property:
    """What must hold, said apart from the rules that make it hold. `before` is judged just before the moment."""

    id: str
    says: str
    when: tuple[str, ...]
    holds: tuple[Clause, ...] = ()
    before: tuple[Clause, ...] = ()
    needs: str | None = None


# -- the lifecycle ----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Transition:
    """One trigger: where it may fire from, where it leads, its steps. `cleanup` cannot be skipped or refused.

    `free`: groups of its steps whose order among each other means nothing; every other order is law.
    """

    on: str
    source: tuple[str, ...]
    to: str
    steps: tuple[str, ...] = ()
    repeat: int = 1
    cleanup: tuple[str, ...] = ()
    free: tuple[tuple[str, ...], ...] = ()
    because: str = ""


@attrs.frozen(kw_only=True)
class Lifecycle:
    """States and transitions, and which trigger plays which part when the runtime itself must act."""

    initial: str
    final: tuple[str, ...]
    states: tuple[str, ...]
    replays_in: tuple[str, ...]
    on_failure: str
    on_change: str
    on_release: str
    on_reset: str
    transitions: tuple[Transition, ...]

    def transition(self, trigger: str) -> Transition:
        """The transition that `trigger` fires. Raises KeyError for an unknown trigger."""
        for transition in self.transitions:
            if transition.on == trigger:
                return transition
        raise KeyError(trigger)

    def refusable(self, transition: Transition) -> bool:
        """Whether rules may refuse `transition`: not the failure's own, and not one that only cleans up."""
        return transition.on != self.on_failure and not (transition.cleanup and not transition.steps)

    def ending(self, state: str) -> str | None:
        """The trigger that ends a slot which is in `state`; without one, what gives its memory back, if it can."""
        ends = (t.on for t in self.transitions if t.to in self.final and state in t.source)
        return next(ends, self.on_release if self.on_release in self.triggers(state) else None)

    def triggers(self, state: str) -> tuple[str, ...]:
        """The triggers that exist in `state`."""
        return tuple(t.on for t in self.transitions if state in t.source)


@attrs.frozen(kw_only=True)
class Setup:
    """Steps taken once, when a runtime is built, and which buffers hold the lengths that metadata may alias."""

    steps: tuple[str, ...] = ()
    lengths: str | None = None
    draft_lengths: str | None = None


@attrs.frozen(kw_only=True)
class Session:
    """Steps around a run of captures: `enter` before the first slot, `leave` after the last, on every exit."""

    enter: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Serving:
    """Steps that the runtime scope is told of: `push`, the entry of a forward to come; `abandon`, one taken back.

    `replay`, `eager`: a forward that was served, replayed or not.
    """

    push: tuple[str, ...] = ()
    replay: tuple[str, ...] = ()
    eager: tuple[str, ...] = ()
    abandon: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Step:
    """What one step appends to the ledger and does to counters and modes. Of several events its outcome picks one."""

    name: str
    event: tuple[str, ...]
    needs: str | None = None
    count: Mapping[str, int] = attrs.field(factory=dict)
    set: Mapping[str, int] = attrs.field(factory=dict)
    mode: Mapping[str, bool] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Counter:
    """An integer that steps move. Going below `floor` is an error at the moment it happens (R24).

    `sums`: the slots' counter whose sum over all slots this one is. It moves with that one, and never by itself.
    """

    name: str
    counts: str
    scope: Scope = "slot"
    floor: int | None = None
    sums: str | None = None
    needs: str | None = None


@attrs.frozen(kw_only=True)
class Switch:
    """A mode: on or off, moved by steps."""

    name: str
    scope: Scope = "runtime"


# -- buffers, outputs, numbers ----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Pad:
    """What a row beyond the live ones holds: a value, or the index of a named sink (given by the geometry)."""

    value: int | float | bool | None = None
    sink: str | None = None

    def __str__(self) -> str:
        return f"sink {self.sink}" if self.sink else str(self.value)


@attrs.frozen(kw_only=True)
class Buffer:
    """One static tensor that graphs read at a fixed address.

    `shape`: trailing dimensions, as numbers or names of the geometry's extents. `pad`: pad rows. `column_pad`: columns
    of a live row beyond what the caller gave (None: the caller gives all). `warm`: what every row holds in a warm-up
    (None: the pad). `probe`: what it holds in the second recording of a probe (None: as in a warm-up). `read_by`: who
    reads it before or in the replay. `source`: "call" (the caller passes live rows) or "engine" (it wrote them in
    place). `mirrors`: the buffer whose live rows this one takes too. `grouped`: one tensor per cache group. `rules`:
    the value rules that its declaration states.
    """

    name: str
    dtype: str
    per: Per
    pad: Pad
    shape: tuple[int | str, ...] = ()
    column_pad: int | float | None = None
    warm: int | float | Literal["tokens_per_request"] | None = None
    probe: int | float | Literal["context"] | None = None
    read_by: tuple[Reader, ...] = ("graph",)
    source: Literal["call", "engine"] = "call"
    mirrors: str | None = None
    grouped: bool = False
    needs: str | None = None
    rules: tuple[str, ...] = ()
    why: str = ""


@attrs.frozen(kw_only=True)
class Output:
    """How a leaf that the step returns relates to rows."""

    name: str
    per: Literal["request", "token", "whole"]
    optional: bool = False


@attrs.frozen(kw_only=True)
class Sizes:
    """R1: which sizes to capture, and in which order. `cap` bounds them all.

    `outer`: what is gone through once, whether each size for all variants, or each variant for all sizes.
    """

    default: tuple[int, ...]
    default_without_padding: tuple[int, ...]
    cap: int
    order: Literal["largest_first", "smallest_first"] = "largest_first"
    outer: Literal["size", "variant"] = "size"
    padding: bool = True


@attrs.frozen(kw_only=True)
class Warmup:
    """How slots are warmed: how many forwards, counted per slot or per variant, and the lengths that rows have."""

    forwards: int
    per: Literal["slot", "variant"] = "slot"


@attrs.frozen(kw_only=True)
class Policy:
    """What the runtime does where the law leaves a choice: see docs/spec-format.md.

    `sweep`: how many pointers of modules are looked at before each replay. `receipts`: which recordings are watched.
    """

    on_capture_failure: Literal["eager", "raise"] = "eager"
    undeclared_writes: Literal["refuse", "allow"] = "refuse"
    undeclared_reads: Literal["warn", "refuse", "allow"] = "warn"
    staleness: Literal["always", "sampled", "full", "off"] = "always"
    sweep: int = 1
    outputs: Literal["views", "leased"] = "views"
    capture: Literal["ahead", "lazy"] = "ahead"
    over_budget: Literal["refuse", "evict"] = "refuse"
    staging: Literal["auto", "launch", "copies"] = "auto"
    receipts: Literal["each", "warmed"] = "each"
    freeze_gc: bool = True
    collect: Literal["all", "young"] = "all"


T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Spec:
    """The whole contract of one engine."""

    name: str
    version: int
    lifecycle: Lifecycle
    steps: Mapping[str, Step]
    counters: Mapping[str, Counter]
    modes: Mapping[str, Switch]
    rules: tuple[Rule, ...]
    properties: tuple[Property, ...]
    session: Session
    serving: Serving
    warmup: Warmup
    sizes: Sizes
    buffers: Mapping[str, Buffer]
    outputs: Mapping[str, Output]
    policy: Policy
    value_rules: tuple[ValueRule, ...] = ()
    setup: Setup = Setup()
    source: str = "<memory>"

    @property
    def events(self) -> tuple[str, ...]:
        """Every event that a step can append, in the order of declaration."""
        return tuple(dict.fromkeys(event for step in self.steps.values() for event in step.event))

    def restricted_to(self, present: frozenset[str]) -> Spec:
        """This spec without what an absent collaborator or policy makes void."""
        held = present | {policy for policy in POLICIES if getattr(self.policy, policy)}
        return _Restriction(self, held).spec()


@attrs.frozen
class _Restriction:
    """The one place that decides what `needs` drops."""

    whole: Spec
    held: frozenset[str]

    def spec(self) -> Spec:
        whole = self.whole
        properties = tuple(self._property(p) for p in self._kept(whole.properties))
        return attrs.evolve(
            whole,
            steps=self._named(whole.steps),
            counters=self._named(whole.counters),
            buffers=self._named(whole.buffers),
            rules=self._kept(whole.rules),
            value_rules=self._kept(whole.value_rules),
            properties=tuple(p for p in properties if p.holds or p.before),
            lifecycle=self._lifecycle(),
            setup=attrs.evolve(whole.setup, steps=self._steps(whole.setup.steps)),
            session=Session(enter=self._steps(whole.session.enter), leave=self._steps(whole.session.leave)),
            serving=Serving(**{k: self._steps(v) for k, v in attrs.asdict(whole.serving).items()}),
        )

    def _has(self, thing: Any) -> bool:
        return thing.needs is None or thing.needs in self.held

    def _kept(self, things: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(thing for thing in things if self._has(thing))

    def _named(self, things: Mapping[str, T]) -> dict[str, T]:
        return {name: self._strip(thing) for name, thing in things.items() if self._has(thing)}

    def _strip(self, thing: T) -> T:
        """A step keeps only the counters that are still there."""
        if not isinstance(thing, Step):
            return thing
        counters = {name for name, counter in self.whole.counters.items() if self._has(counter)}
        count = {name: n for name, n in thing.count.items() if name in counters}
        return attrs.evolve(thing, count=count, set={name: n for name, n in thing.set.items() if name in counters})

    def _steps(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if self._has(self.whole.steps[name]))

    def _property(self, prop: Property) -> Property:
        return attrs.evolve(prop, holds=self._kept(prop.holds), before=self._kept(prop.before))

    def _lifecycle(self) -> Lifecycle:
        transitions = tuple(
            attrs.evolve(
                t,
                steps=self._steps(t.steps),
                cleanup=self._steps(t.cleanup),
                free=tuple(self._steps(group) for group in t.free),
            )
            for t in self.whole.lifecycle.transitions
        )
        return attrs.evolve(self.whole.lifecycle, transitions=transitions)
