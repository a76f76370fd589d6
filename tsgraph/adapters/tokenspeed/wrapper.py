"""`CudaGraphWrapper` of TokenSpeed: its constructor, its calls and its attributes, over the parts of a runtime.

Whatever it may do, in which order and with which pads, `specs/tokenspeed.toml` says. What it does otherwise than the
original is listed in the reference, each point with its test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tsgraph.adapters.tokenspeed.assembling import declare
from tsgraph.adapters.tokenspeed.call import RECURRENT, Call, Desk, Pads, require_groups
from tsgraph.adapters.tokenspeed.deepep import DeepEPCudaGraphRunnerAdapter
from tsgraph.adapters.tokenspeed.engine_types import find_types
from tsgraph.adapters.tokenspeed.errors import MissingTables
from tsgraph.adapters.tokenspeed.graphs import Graphs
from tsgraph.adapters.tokenspeed.parts import EngineParts, Tables, group_ids, mode_of
from tsgraph.adapters.tokenspeed.sizes import sizes_of, spec_of
from tsgraph.errors import StaleSlot
from tsgraph.keys import DEFAULT_VARIANT, Batch
from tsgraph.protocols.backend import Backend, Graph
from tsgraph.replay.program import Program
from tsgraph.replay.turnstile import STEP
from tsgraph.slots.slot import Slot
from tsgraph.spec.load import with_policy


class CudaGraphWrapper:
    """Serves each step of the engine through a captured graph where one fits, else eagerly; callers need not know.

    `capture_bs`: the capture sizes, in rows, increasing; `max_bs`: the largest. Two arguments the original has not:
    `backend` ("auto" takes the device that the engine's buffers are on), and `staleness`, the word of the spec's policy
    that says how often it is looked whether recorded memory has moved.
    """

    def __init__(
        self,
        forward_func: Callable[..., Any],
        attn_backend: Any,
        token_to_kv_pool: Any,
        input_buffers: Any,
        config: Any,
        draft_attn_backend: Any = None,
        draft_token_to_kv_pool: Any = None,
        drafter: Any = None,
        capturable_grammar: Any = None,
        eager_grammar_buffers: Any = None,
        sampling_backend: Any = None,
        runtime_states: Any = None,
        *,
        backend: str | Backend = "auto",
        staleness: str = "always",
    ) -> None:
        """Let the backends make their state, then capture, unless the configuration enforces eager steps.

        Raises: SpecError for sizes of which none is left; ContractViolation for parts that do not fit together;
        CaptureFailed where a slot fails, with its cause.
        """
        self.config = config
        spec = with_policy(spec_of(config), {"staleness": staleness})
        self.capture_bs = sizes_of(spec, config)
        self.max_bs = self.capture_bs[-1]
        self._engine = EngineParts(
            forward_func=forward_func,
            attn_backend=attn_backend,
            token_to_kv_pool=token_to_kv_pool,
            input_buffers=input_buffers,
            config=config,
            draft_attn_backend=draft_attn_backend,
            draft_token_to_kv_pool=draft_token_to_kv_pool,
            drafter=drafter,
            capturable_grammar=capturable_grammar,
            eager_grammar_buffers=eager_grammar_buffers,
            sampling_backend=sampling_backend,
            runtime_states=runtime_states,
            types=find_types(),
            largest=self.max_bs,
        )
        self._engine.check()
        self.deepep_adapter = DeepEPCudaGraphRunnerAdapter()
        self._desk = Desk()
        self._pads = Pads.said_by(spec)
        declared = declare(
            self._engine,
            spec,
            self._desk,
            self.deepep_adapter,
            sizes=self.capture_bs,
            backend=backend,
        )
        self._graphs = Graphs(self._engine, declared, disabled=bool(config.enforce_eager))
        if not self.disable:
            self.capture()

    # -- what the engine reads ----------------------------------------------------------------------------------------

    @property
    def disable(self) -> bool:
        """Whether every step runs eagerly."""
        return self._graphs.disabled

    @disable.setter
    def disable(self, on: bool) -> None:
        self._graphs.disabled = on

    @property
    def stream(self) -> Any:
        """The stream that recordings, and the warm-ups before them, go to."""
        return getattr(self._graphs.parts.engine.backend, "stream", None)

    @property
    def graphs(self) -> dict[tuple[str, int], Graph]:
        """The graph of each (variant, size) that can be replayed."""
        return {slot.key: slot.graph for slot in self._graphs.ready() if slot.graph is not None}

    @property
    def output_buffers(self) -> dict[tuple[str, int], tuple[Any, ...]]:
        """Tokens, accept lengths and log probabilities of each graph, in the memory that its replays overwrite."""
        return {slot.key: tuple(slot.outputs.leaves) for slot in self._graphs.ready() if slot.outputs is not None}

    @property
    def slots(self) -> Mapping[tuple[str, int], Slot]:
        """All slots, with their states and histories."""
        return self._graphs.parts.slots

    def _capture_paged_cache_block_tables(self, bs: int, pool: Any) -> Tables | None:
        return self._engine.capture_tables(bs, pool)

    def capture(self) -> None:
        """Capture every slot, those again that were captured before. Raises: CaptureFailed, with its cause."""
        self._graphs.capture()

    # -- serving ------------------------------------------------------------------------------------------------------

    def can_run(self, bs: int, ctx: Any) -> bool:
        """Whether a graph serves a step of `bs` rows in this context."""
        return self._graphs.decide(bs, ctx).key is not None

    def padded_bs(self, bs: int, ctx: Any) -> int:
        """Rows of the graph that serves the step; `bs` itself where none does."""
        return self._graphs.decide(bs, ctx).padded_to

    def __call__(
        self,
        bs: int,
        ctx: Any,
        sampling_info: Any,
        req_to_page: Any,
        extend_with_prefix: bool = False,
        extend_prefix_lens: Any = None,
        extend_prefix_lens_cpu: Any = None,
        extend_seq_lens: Any = None,
        extend_seq_lens_cpu: Any = None,
        positions: Any = None,
        out_cache_loc: Any = None,
        mamba_pool_indices: Any = None,
        mamba_cow_src_indices: Any = None,
        mamba_branching_seqlens: Any = None,
        mamba_track_pool_indices: Any = None,
        spec_info: Any = None,
        paged_cache_block_tables: Any = None,
        paged_cache_block_table_base_offsets: Any = None,
        flat_block_tables: Any = None,
    ) -> Any:
        """Serve a step of `bs` rows; returns tokens, accept lengths and log probabilities at live size.

        Those of a graph are static memory, until the next replay. The context is as before on every exit. Where memory
        that graphs recorded was replaced, those are stale, and their steps eager, until `capture` is called again.

        Raises: BadBatch for tables that do not fit, with nothing changed; UncapturedGraph for a variant that was never
        captured; MissingTables; ReplayFailed where the device fails; WrongThread while another call is inside;
        CaptureUnsupported where a graph would be replayed inside a recording.
        """
        given = locals()
        call = Call(
            bs=bs,
            ctx=ctx,
            sampling_info=sampling_info,
            req_to_page=req_to_page,
            recurrent={name: given[name] for name in RECURRENT if given[name] is not None},
            paged=paged_cache_block_tables,
            offsets=paged_cache_block_table_base_offsets,
            flat=flat_block_tables,
            extend={name: given[name] for name in EXTEND},
        )
        with self._graphs.turnstile.passing(STEP, recorded=True):
            program = self._graphs.program(bs, ctx)
            if program is not None:
                try:
                    return self._replay(call, program)
                except StaleSlot as error:
                    self._graphs.take(error)
            return self._eager(call)

    def _replay(self, call: Call, program: Program) -> Any:
        call = attrs.evolve(call, **self._idle_tables(call, program.size))
        self._require_tables(call)
        call = attrs.evolve(call, **self._pads.padded(call, program.size))
        with self._desk.serve(call):
            call.widen_context(program.size)
            return tuple(program.run(call.bs, {}))

    def _idle_tables(self, call: Call, size: int) -> dict[str, Any]:
        """The least tables for a step without rows, as the target takes them."""
        engine, tables = self._engine, dict[str, Any]()
        if call.bs == 0 and call.paged is None and engine.target_paged:
            tables["paged"] = engine.capture_tables(size, engine.token_to_kv_pool)
        if call.bs == 0 and not call.flat and engine.target_flat:
            tables["flat"] = engine.idle_flat_tables(size)
        return tables

    def _require_tables(self, call: Call) -> None:
        engine = self._engine
        if engine.target_paged:
            require_groups("paged", call.paged, group_ids(engine.token_to_kv_pool), call.bs)
        if engine.draft_paged and engine.draft_token_to_kv_pool is not None:
            require_groups("paged", call.paged, group_ids(engine.draft_token_to_kv_pool), call.bs)
        if engine.target_flat:
            require_groups("flat", call.flat, group_ids(engine.token_to_kv_pool), call.bs)

    def _eager(self, call: Call) -> Any:
        self._guard_flat(call)
        batch = Batch(call.bs, call.ctx.input_num_tokens, mode_of(call.ctx.forward_mode), DEFAULT_VARIANT, {})
        with self._desk.serve(call):
            return self._graphs.eager_path.serve(batch)

    def _guard_flat(self, call: Call) -> None:
        groups, mode = group_ids(self._engine.token_to_kv_pool), call.ctx.forward_mode
        if call.bs > 0 and not mode.is_idle() and not call.flat and self._engine.target_flat and len(groups) > 1:
            raise MissingTables(
                f"an eager step of {call.bs} rows ({mode.name}) has no flat tables, but there are {len(groups)} groups",
                hint=f"pass flat_block_tables with {', '.join(groups)}: one table cannot serve them all",
            )


EXTEND = (
    "extend_with_prefix",
    "extend_prefix_lens",
    "extend_prefix_lens_cpu",
    "extend_seq_lens",
    "extend_seq_lens_cpu",
    "positions",
    "out_cache_loc",
    "spec_info",
)
"""The arguments of a call that an eager init takes as they are."""
