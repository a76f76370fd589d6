"""The slots of a wrapper: captured, shared, and found for a step."""

from __future__ import annotations

from typing import Any

from tsgraph.adapters.tokenspeed.collector import freeze_gc
from tsgraph.adapters.tokenspeed.errors import UncapturedGraph
from tsgraph.adapters.tokenspeed.parts import EngineParts
from tsgraph.adapters.tokenspeed.pool import share_pool, shared_pool
from tsgraph.assembly import Declaration, Parts, assemble
from tsgraph.dispatch.decision import Dispatch
from tsgraph.errors import ContractViolation
from tsgraph.events import Event
from tsgraph.keys import DEFAULT_VARIANT, Decision, Mode, RankCounts, Reason, SlotKey
from tsgraph.replay.eager import EagerPath
from tsgraph.replay.program import Program, compile_program
from tsgraph.replay.routes import Routes
from tsgraph.slots.slot import Slot


class Graphs:
    """The parts of a runtime, with what the engine decides at the call: the mode, the ranks' counts, the variant."""

    def __init__(self, engine: EngineParts, declared: Declaration, *, disabled: bool) -> None:
        """Put the parts together. Nothing is captured yet."""
        self._engine = engine
        self._recurrent = declared.collaborators.recurrent
        self._disabled = disabled
        self.parts: Parts = assemble(declared)
        self.parts.observers.add(self._share_pool)
        self.eager_path = EagerPath(engine=self.parts.engine, lifecycle=self.parts.lifecycle, recurrent=self._recurrent)
        self._routes = Routes(Dispatch(self.parts.sizes, peers=self.parts.peers))
        self._publish()

    @property
    def disabled(self) -> bool:
        """Whether no step uses a slot."""
        return self._disabled

    @disabled.setter
    def disabled(self, on: bool) -> None:
        self._disabled = on
        self._publish()

    def ready(self) -> tuple[Slot, ...]:
        """The slots that can be replayed, in the order of their capture."""
        return self.parts.slots.in_state(*self.parts.spec.lifecycle.replays_in)

    # -- captures -----------------------------------------------------------------------------------------------------

    def capture(self) -> None:
        """Capture every slot, those again that were captured before. Raises: CaptureFailed, with its cause."""
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

    def _share_pool(self, event: Event) -> None:
        if event.name in [f"slot.{state}" for state in self.parts.spec.lifecycle.replays_in]:
            share_pool(self.parts.engine.backend, self.parts.engine.pool)

    def _publish(self) -> None:
        parts, ready = self.parts, self.ready()
        blocked = {slot.key: parts.reason(slot) for slot in parts.slots.values() if slot not in ready}
        dispatch = Dispatch(parts.sizes, parts.spec.sizes.padding, not self._disabled, blocked, parts.peers)
        self._routes = self._routes.renewed(dispatch, ready, parts.variants, self._compile)

    def _compile(self, slot: Slot) -> Program:
        return compile_program(
            slot,
            self.parts.engine,
            recurrent=self._recurrent,
            lifecycle=self.parts.lifecycle,
            choose=lambda live: self._chosen(slot.key.size, live),
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    def decide(self, bs: int, ctx: Any) -> Decision:
        """Where a step of `bs` rows goes. One in idle mode uses no slot."""
        mode = Mode.DECODE if ctx.forward_mode.is_decode() else Mode.EXTEND
        counts = None
        if self._engine.config.data_parallel_size > 1 and ctx.global_num_tokens is not None:
            counts = RankCounts(ctx.global_num_tokens, all_decode_or_idle=bool(ctx.all_decode_or_idle))
        return self._routes.dispatch.decide(bs, variant=DEFAULT_VARIANT, mode=mode, counts=counts)

    def program(self, decision: Decision) -> Program | None:
        """What replays the step, or None for an eager one.

        Raises: UncapturedGraph where padding sends the step to a slot that was never captured.
        """
        if decision.reason is Reason.NOT_CAPTURED and self.parts.spec.sizes.padding:
            hint = "capture() first, or disable the wrapper"
            raise UncapturedGraph(f"{decision.detail} was not captured", hint=hint)
        return None if decision.key is None else self._routes.programs[decision.key]

    def _chosen(self, size: int, live: int) -> Program:
        """The program of the variant that the sampler asks for; without rows it is not asked."""
        sampler, variant = self._engine.sampling_backend, DEFAULT_VARIANT
        if sampler is not None and live:
            variant = sampler.cuda_graph_replay_variant(self._engine.tokens_per_request)
        try:
            return self._routes.programs[SlotKey(variant, size)]
        except KeyError:
            captured = sorted(key.variant for key in self._routes.programs if key.size == size)
            what = f"variant {variant!r} was not captured for {size} rows"
            raise UncapturedGraph(what, hint=f"the variants captured for this size: {', '.join(captured)}") from None
