"""The front doors: `GraphRuntime.for_step` for any function over batch rows, `GraphRuntime` for a whole engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch

from tsgraph.assembly import Collaborators, Declaration, assemble
from tsgraph.buffers.contract import Fixed, Rows, State, as_buffers
from tsgraph.dispatch.decision import Dispatch
from tsgraph.errors import BadBatch, CallerError
from tsgraph.events import Observer
from tsgraph.grammar.door import callers_line
from tsgraph.introspect import count_replays, describe_runtime, slot_table
from tsgraph.keys import Batch, Decision, Geometry, Mode, RankCounts, Step
from tsgraph.lifecycle import Cause
from tsgraph.observe.logs import write_log
from tsgraph.slots.outputs import Marks
from tsgraph.spec.load import load_spec, with_policy
from tsgraph.spec.model import Spec

if TYPE_CHECKING:
    from tsgraph.capture.session import CaptureSummary
    from tsgraph.grammar.door import Door
    from tsgraph.protocols.backend import Backend
    from tsgraph.slots.slot import Slot


class GraphRuntime:
    """Captures the slots of one engine and serves its steps through them.

    One entry point serves every step: a decode step that a slot fits is replayed, any other runs eagerly, and both give
    outputs at live size. Outputs of a replay are views of static memory: read or copy them before the next call (R40).
    """

    def __init__(
        self,
        spec: Spec | str,
        step: Callable[[Batch], Any],
        *,
        geometry: Geometry,
        sizes: Sequence[int] | None = None,
        outputs: Marks = None,
        modules: Iterable[torch.nn.Module] = (),
        state: Mapping[str, State] | None = None,
        fixed: Mapping[str, Fixed] | None = None,
        memory: Mapping[str, torch.Tensor] | None = None,
        attention: Any = None,
        sampler: Any = None,
        grammar: Any = None,
        drafter: Any = None,
        recurrent: Any = None,
        comm: Any = None,
        ranks: Any = None,
        backend: str | Backend = "auto",
        device: str | torch.device | None = None,
        policy: Mapping[str, Any] | None = None,
        observers: Iterable[Observer] = (write_log,),
    ) -> None:
        """Build the runtime of `step`, a function from a `Batch` to any pytree of tensors. Nothing is captured yet.

        `sizes` replaces the spec's; `outputs` replaces its marks. `state` declares the mutable tensors that `step`
        writes, `fixed` tensors that it gets as they are, `memory` tensors of the engine's own that are to be static
        buffers, by name. `device` matters only where no module or state lives anywhere. `policy` replaces words of the
        spec's: `{"outputs": "leased"}`.

        Raises: SpecError, BadBatch or ContractViolation where spec, geometry and collaborators do not fit together.
        """
        law = load_spec(spec) if isinstance(spec, str) else spec
        declared = Declaration(
            spec=law if policy is None else with_policy(law, policy),
            step=step,
            geometry=geometry,
            collaborators=Collaborators(attention, sampler, grammar, drafter, recurrent, comm, ranks),
            sizes=sizes,
            outputs=outputs,
            modules=tuple(modules),
            state=dict(state or {}),
            fixed={name: declared.tensor for name, declared in (fixed or {}).items()},
            memory=dict(memory or {}),
            backend=backend,
            device=device,
            observers=observers,
        )
        self._parts = assemble(declared)
        self._server = self._parts.server()
        self._serve: Callable[..., tuple[Any, Decision]] = self._server.serve
        self.spec = self._parts.spec
        self.geometry = geometry
        self.backend = self._parts.engine.backend
        self.slots = self._parts.slots
        self._enabled = True
        self._publish()

    @classmethod
    def for_step(
        cls,
        step: Callable[..., Any],
        *,
        inputs: Mapping[str, Rows | Fixed],
        sizes: Sequence[int],
        outputs: Marks = None,
        tokens_per_request: int = 1,
        spec: Spec | str = "decode",
        **rest: Any,
    ) -> GraphRuntime:
        """The short door: `step` gets its `inputs` by keyword, each cut to the step's rows.

        The lifecycle, rules and policies are those of `spec`; buffers and outputs are declared here. `rest` goes to
        the constructor: `modules`, `state`, `device`, `backend`, collaborators.
        """
        law = load_spec(spec) if isinstance(spec, str) else spec
        rows = {name: declared for name, declared in inputs.items() if isinstance(declared, Rows)}
        fixed = {name: declared for name, declared in inputs.items() if isinstance(declared, Fixed)}
        unknown = inputs.keys() - rows.keys() - fixed.keys()
        if unknown:
            raise BadBatch(f"inputs {', '.join(sorted(unknown))} are neither Rows nor Fixed")
        cap = max((law.sizes.cap, *sizes))  # sizes asked for by name are not capped by a default
        return cls(
            attrs.evolve(law, buffers=as_buffers(rows), outputs={}, sizes=attrs.evolve(law.sizes, cap=cap)),
            _by_keyword(step, tuple(inputs)),
            geometry=Geometry(rows=max(sizes, default=1), tokens_per_request=tokens_per_request),
            sizes=sizes,
            outputs=outputs,
            fixed=fixed,
            **rest,
        )

    # -- serving ------------------------------------------------------------------------------------------------------

    def __call__(
        self,
        *,
        rows: int | None = None,
        mode: Mode = Mode.DECODE,
        variant: str | None = None,
        counts: RankCounts | None = None,
        **sources: Any,
    ) -> Any:
        """Serve one step; returns its outputs at live size.

        `rows`: live rows (None: taken from the sources). `sources`: one tensor per declared buffer, host or device,
        `rows` (or rows · tokens per request) leading entries. `counts`: what all ranks bring, if several.

        Raises: BadBatch, with nothing changed, where a source does not fit; ReplayFailed where the device fails.
        """
        return self._serve(rows, mode, variant, counts, sources)[0]

    def step(
        self,
        *,
        rows: int | None = None,
        mode: Mode = Mode.DECODE,
        variant: str | None = None,
        counts: RankCounts | None = None,
        **sources: Any,
    ) -> Step:
        """As calling the runtime, with the decision and a mark to wait for."""
        outputs, decision = self._serve(rows, mode, variant, counts, sources)
        return Step(outputs, decision, self.backend.ready())

    def explain(
        self,
        rows: int,
        *,
        mode: Mode = Mode.DECODE,
        variant: str | None = None,
        counts: RankCounts | None = None,
    ) -> Decision:
        """Where such a step would go, and why. Pure: nothing is run or counted."""
        return self._server.explain(rows, mode, variant, counts)

    def eager(
        self,
        *,
        rows: int | None = None,
        mode: Mode = Mode.DECODE,
        variant: str | None = None,
        counts: RankCounts | None = None,
        padded_to: int | None = None,
        **sources: Any,
    ) -> Any:
        """Run one step eagerly, whatever slots there are; returns its outputs at live size.

        `padded_to`: run it through the static buffers, padded to so many rows: what a replay of that size must equal
        bitwise (at another shape, products round differently). Then `counts` are those of a recording.
        """
        if padded_to is not None:
            return self._server.eager_padded(padded_to, rows, variant, sources)
        return self._server.eager(rows, mode, variant, counts, sources)

    # -- grammar ------------------------------------------------------------------------------------------------------

    def push(
        self, rows: int, *entry: Any, who: str | None = None, by: Callable[..., Any] | None = None, **words: Any
    ) -> Any:
        """Push the grammar entry of the next forward, of `rows` live rows; returns its ticket.

        Every forward takes exactly one, an idle one (0 rows) included. Where serving raises before its graph was
        launched, or its step raises, the entry is left: `cancel` it, or serve again if the step had not taken it yet.
        `entry` and `words` are further arguments of the grammar's `push`, or of `by` in its place. `who` pushes, for
        errors (None: the caller's line).

        Raises: RuleViolation while another entry waits (R22), naming who pushed it; CallerError without a grammar; what
        the grammar raises. Nothing is pushed then.
        """
        return self._entrance().push(rows, *entry, who=who or callers_line(), by=by, **words)

    def cancel(self, ticket: Any) -> bool:
        """Take back the entry of `ticket`, if no forward was served with it; whether it waited.

        A step that raised was not served: what it drew is never accepted.
        """
        return self._entrance().cancel(ticket)

    def _entrance(self) -> Door:
        if self._parts.door is None:
            raise CallerError("there is no grammar to push entries for", hint="pass grammar= to the runtime")
        return self._parts.door

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    def capture(self, *keys: tuple[str, int]) -> CaptureSummary:
        """Capture the slots of `keys` (none: all) that are not replayable yet, largest first.

        A slot that fails is served eagerly, or raises CaptureFailed, as the spec's policy says; the others, global
        state and memory are as before either way.
        """
        ready = self.spec.lifecycle.replays_in
        try:
            return self._parts.capturer.capture([slot for slot in self._chosen(keys) if slot.state not in ready])
        finally:
            self._publish()

    def fire(self, key: tuple[str, int], trigger: str, why: str | None = None) -> None:
        """Fire one trigger of one slot by hand; `why` is kept as its cause.

        Raises: IllegalTransition or RuleViolation before any effect; CaptureFailed where a step failed.
        """
        cause = None if why is None else Cause("asked", why)
        try:
            self._parts.capturer.fire(self.slots[key], trigger, cause)
        finally:
            self._publish()

    def invalidate(self, why: str, *keys: tuple[str, int]) -> None:
        """Say that something the slots of `keys` (none: all that are replayable) recorded has changed."""
        self._fire_all(self.spec.lifecycle.on_change, keys, why)

    def release(self, *keys: tuple[str, int], why: str = "released by the caller") -> None:
        """Give back the graphs and memory of the slots of `keys` (none: all that hold any)."""
        self._fire_all(self.spec.lifecycle.on_release, keys, why)
        self._parts.drop_empty_pool()

    def reset(self, *keys: tuple[str, int]) -> None:
        """Take the slots of `keys` (none: all that are stale, failed or released) back to where capture begins."""
        self._fire_all(self.spec.lifecycle.on_reset, keys, None)

    def wake(self) -> CaptureSummary:
        """Reset whatever is stale, failed or released, and capture it again."""
        self.reset()
        return self.capture()

    def _fire_all(self, trigger: str, keys: tuple[tuple[str, int], ...], why: str | None) -> None:
        source = self.spec.lifecycle.transition(trigger).source
        chosen = [self.slots[key] for key in dict.fromkeys(keys)] or self.slots.in_state(*source)
        for slot in chosen:
            slot.life.require(trigger)
        for slot in chosen:
            self.fire(slot.key, trigger, why)

    def _chosen(self, keys: tuple[tuple[str, int], ...]) -> Sequence[Slot]:
        return [self.slots[key] for key in keys] or list(self.slots.values())

    def _publish(self) -> None:
        """Renew what calls read, from the slots' states."""
        parts, law = self._parts, self.spec
        ready = self.slots.in_state(*law.lifecycle.replays_in)
        blocked = {slot.key: parts.reason(slot) for slot in self.slots.values() if slot not in ready}
        self._server.publish(Dispatch(parts.sizes, law.sizes.padding, self._enabled, blocked, parts.peers), ready)

    # -- introspection ------------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> tuple[int, ...]:
        """The capture sizes, in rows, increasing."""
        return self._parts.sizes

    @property
    def variants(self) -> tuple[str, ...]:
        """The sampler variants, the default first."""
        return self._parts.variants

    @property
    def enabled(self) -> bool:
        """Whether slots are used; switch it off and every step runs eagerly."""
        return self._enabled

    @enabled.setter
    def enabled(self, on: bool) -> None:
        self._enabled = on
        self._publish()

    def observe(self, observer: Observer) -> None:
        """Tell `observer` every event from now on: captures, refusals, failures, changed reasons. Never a replay."""
        self._parts.observers.add(observer)

    def counters(self) -> dict[str, Any]:
        """Replays, pad rows that they computed, and eager steps by reason."""
        return {**count_replays(self.slots.values()), "eager": self._server.reasons.by_name()}

    def snapshot(self) -> dict[str, Any]:
        """Everything about the runtime as plain JSON data."""
        return describe_runtime(self)

    def table(self, width: int = 100) -> str:
        """The slots as a table of `width` columns."""
        return slot_table(self.slots.values(), width)

    def __repr__(self) -> str:
        return f"<GraphRuntime {self.spec.name} on {self.backend.device} ({self.backend.name}), {self.slots!r}>"


def _by_keyword(step: Callable[..., Any], names: tuple[str, ...]) -> Callable[[Batch], Any]:
    def step_of_batch(batch: Batch) -> Any:
        return step(**{name: batch[name] for name in names})

    return step_of_batch
