"""The slots of a wrapper: captured, shared, found for a step, and looked after while they serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tsgraph.adapters.tokenspeed.collector import freeze_gc
from tsgraph.adapters.tokenspeed.errors import StaleVariant, UncapturedGraph
from tsgraph.adapters.tokenspeed.parts import EngineParts
from tsgraph.adapters.tokenspeed.pool import share_pool, shared_pool
from tsgraph.assembly import Declaration, Parts, assemble
from tsgraph.dispatch.decision import Dispatch
from tsgraph.errors import ContractViolation, StaleSlot
from tsgraph.events import Event
from tsgraph.keys import DEFAULT_VARIANT, Decision, Mode, RankCounts, Reason, SlotKey
from tsgraph.lifecycle import Cause
from tsgraph.replay.eager import EagerPath
from tsgraph.replay.program import Program, compile_program
from tsgraph.replay.turnstile import STEP, Turnstile
from tsgraph.slots.slot import Slot


class Graphs:
    """The parts of a runtime, with what the engine decides at the call: the mode, the ranks' counts, the variant.

    One call at a time passes its turnstile. What graphs recorded is looked at before each replay, as a runtime does.
    """

    def __init__(self, engine: EngineParts, declared: Declaration, *, disabled: bool) -> None:
        """Put the parts together. Nothing is captured yet."""
        self._engine = engine
        self._recurrent = declared.collaborators.recurrent
        self._disabled = disabled
        self.parts: Parts = assemble(declared)
        self.parts.observers.add(self._share_pool)
        self._server = attrs.evolve(self.parts, door=None).server()  # the engine pushes into a queue of its own
        self._server.stale = self._invalidate
        self._publish()

    @property
    def turnstile(self) -> Turnstile:
        """What lets one call at a time in."""
        return self._server.turnstile

    @property
    def eager_path(self) -> EagerPath:
        """What runs steps eagerly."""
        return self._server.eager_path

    @property
    def disabled(self) -> bool:
        """Whether no step uses a slot."""
        return self._disabled

    @disabled.setter
    def disabled(self, on: bool) -> None:
        with self.turnstile.passing("disable", recorded=True):
            self._disabled = on
            self._publish()

    def ready(self) -> tuple[Slot, ...]:
        """The slots that can be replayed, in the order of their capture."""
        return self.parts.slots.in_state(*self.parts.spec.lifecycle.replays_in)

    # -- captures -----------------------------------------------------------------------------------------------------

    def capture(self) -> None:
        """Capture every slot, those again that were captured before. Raises: CaptureFailed, with its cause."""
        with self.turnstile.passing("capture"):
            self._capture()

    def _capture(self) -> None:
        parts, variants = self.parts, self.parts.declared.variants()
        if variants != parts.variants:
            raise ContractViolation("Sampler", "variants", repr(parts.variants), repr(variants))
        self._begin_again()
        if parts.engine.pool is None:
            parts.engine.pool = shared_pool(parts.engine.backend)
        try:
            with freeze_gc(enable_cudagraph_gc=True):  # whether to freeze, the spec's policy says
                parts.capturer.capture(list(parts.slots.values()))
        finally:
            self._publish()

    def _begin_again(self) -> None:
        law, capturer = self.parts.spec.lifecycle, self.parts.capturer
        for slot in self.ready():
            capturer.fire(slot, law.on_change)
        for slot in self.parts.slots.in_state(*law.transition(law.on_reset).source):
            capturer.fire(slot, law.on_reset)
        self._publish()  # nobody holds the old graphs, nor what they recorded, when new ones are made

    def _invalidate(self, causes: Mapping[SlotKey, Cause]) -> None:
        for key, cause in causes.items():
            self.parts.capturer.fire(self.parts.slots[key], self.parts.spec.lifecycle.on_change, cause)
        self._publish()

    def _share_pool(self, event: Event) -> None:
        if event.name in [f"slot.{state}" for state in self.parts.spec.lifecycle.replays_in]:
            share_pool(self.parts.engine.backend, self.parts.engine.pool)

    def _publish(self) -> None:
        parts, ready = self.parts, self.ready()
        blocked = {slot.key: parts.reason(slot) for slot in parts.slots.values() if slot not in ready}
        dispatch = Dispatch(parts.sizes, parts.spec.sizes.padding, not self._disabled, blocked, parts.peers)
        self._server.guard.watch(ready)
        self._server.routes = self._server.routes.renewed(dispatch, ready, parts.variants, self._compile)

    def _compile(self, slot: Slot) -> Program:
        return compile_program(
            slot,
            self.parts.engine,
            recurrent=self._recurrent,
            lifecycle=self.parts.lifecycle,
            choose=lambda live: self._chosen(slot.key.size, live),
            guard=self._server.guard,
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    def decide(self, bs: int, ctx: Any) -> Decision:
        """Where a step of `bs` rows goes. One in idle mode uses no slot."""
        mode = Mode.DECODE if ctx.forward_mode.is_decode() else Mode.EXTEND
        counts = None
        if self._engine.config.data_parallel_size > 1 and ctx.global_num_tokens is not None:
            counts = RankCounts(ctx.global_num_tokens, all_decode_or_idle=bool(ctx.all_decode_or_idle))
        return self._server.routes.dispatch.decide(bs, variant=DEFAULT_VARIANT, mode=mode, counts=counts)

    def program(self, bs: int, ctx: Any) -> Program | None:
        """What replays a step of `bs` rows in this context; None for an eager one, as where recorded memory has moved.

        Raises: UncapturedGraph where padding sends the step to a slot that was never captured; CaptureUnsupported where
        a graph would be replayed inside a recording.
        """
        decision, server = self.decide(bs, ctx), self._server
        if decision.key is not None and self.parts.engine.backend.recording:
            raise self.turnstile.refusal_of_recording(STEP)
        if decision.key is not None and server.look is not None and server.look() and server.settle():
            decision = self.decide(bs, ctx)
        if decision.reason is Reason.NOT_CAPTURED and self.parts.spec.sizes.padding:
            hint = "capture() first, or disable the wrapper"
            raise UncapturedGraph(f"{decision.detail} was not captured", hint=hint)
        return None if decision.key is None else server.routes.programs[decision.key]

    def take(self, error: StaleSlot) -> None:
        """A program found, before its launch, that its graph would read other memory. Raises: `error` of another's."""
        if not self._server.settle() and not isinstance(error, StaleVariant):
            raise error

    def _chosen(self, size: int, live: int) -> Program:
        """The program of the variant that the sampler asks for; without rows it is not asked."""
        sampler, variant = self._engine.sampling_backend, DEFAULT_VARIANT
        if sampler is not None and live:
            variant = sampler.cuda_graph_replay_variant(self._engine.tokens_per_request)
        program = self._server.routes.programs.get(SlotKey(variant, size))
        if program is None:
            raise self._unready(SlotKey(variant, size))
        if variant != DEFAULT_VARIANT and program.metadata is not None and program.metadata.turn.look():
            program.metadata.settle(live)
        return program

    def _unready(self, key: SlotKey) -> UncapturedGraph | StaleVariant:
        slot = self.parts.slots.get(key)
        if slot is not None and self.parts.reason(slot) is Reason.SLOT_STALE:
            return StaleVariant(f"{slot}: {slot.cause}", hint="capture() again")
        captured = sorted(each.variant for each in self._server.routes.programs if each.size == key.size)
        what = f"variant {key.variant!r} was not captured for {key.size} rows"
        return UncapturedGraph(what, hint=f"the variants captured for this size: {', '.join(captured)}")
