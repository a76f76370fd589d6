"""An engine of fakes around the drop-in: every call of a part goes to one trace, with its arguments as plain data."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any, TypeVar

import attrs
import torch

from tests.adapters.tokenspeed.configuration import Configuration, Flags, Step
from tsgraph.adapters.tokenspeed import CudaGraphWrapper, get_is_capture_mode
from tsgraph.adapters.tokenspeed.engine_types import CaptureHiddenMode, ForwardContext, ForwardMode
from tsgraph.adapters.tokenspeed.engine_types import bind_grammar_mask_buf as bind_mask
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.streams import current_stream

T = TypeVar("T")
ROWS = 8
SENTINEL = 20
RECURRENT = (
    "mamba_pool_indices",
    "mamba_cow_src_indices",
    "mamba_branching_seqlens",
    "mamba_track_pool_indices",
)


WAITED: tuple[Any, ...] = ("device", "synchronize", {})


class Trace(list[tuple[Any, ...]]):
    """The calls. Tensors are told by the memory that they live in, their dtype and their values."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []
        self._names: dict[int, str] = {}

    def place(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Call the memory of `tensor` so."""
        self._places[tensor.data_ptr()] = name
        self._kept.append(tensor)
        return tensor

    def name(self, name: str, thing: T) -> T:
        """Call `thing` so."""
        self._names[id(thing)] = name
        return thing

    def add(self, *event: Any, **words: Any) -> None:
        """One call happened."""
        self.append((*(self.told(part) for part in event), self.told(words)))

    def told(self, value: Any) -> Any:
        """`value` as plain data."""
        if id(value) in self._names:
            return self._names[id(value)]
        if isinstance(value, torch.Tensor):
            place = self._places.get(value.data_ptr(), "fresh") if value.numel() else "empty"
            return (place, str(value.dtype).removeprefix("torch."), value.tolist())
        if isinstance(value, dict):
            return {key: self.told(each) for key, each in value.items()}
        if isinstance(value, tuple | list):
            return [self.told(each) for each in value]
        return value.name if isinstance(value, ForwardMode | CaptureHiddenMode) else value


class TracedBackend(EmulatedBackend):
    """The emulated device, which tells when it is waited for: once, where nothing happens in between."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def synchronize(self) -> None:
        if self._trace[-1:] != [WAITED]:
            self._trace.append(WAITED)
        super().synchronize()


@attrs.define(eq=False, slots=False)
class FakeAttention:
    """An attention backend, of the target or the draft."""

    who: str
    trace: Trace
    flags: Flags
    raises: Exception | None = None
    context: Any = None

    def __attrs_post_init__(self) -> None:
        self.uses_paged_cache_groups = self.flags.paged
        self.uses_flat_cache_groups = self.flags.flat
        self.uses_padded_decode_token_mask = self.flags.mask

    def init_cuda_graph_state(self, max_bs, seq_lens_buf, **extras):
        self.trace.add(self.who, "init_state", max_bs, seq_lens_buf, **extras)
        if self.flags.indices is not None:
            dtype = torch.int64 if self.flags.indices == "wide" else torch.int32
            self.decode_cuda_graph_kv_indices = torch.zeros(max_bs, dtype=dtype)

    def init_forward_metadata_capture_cuda_graph(self, *args, **words):
        self.trace.add(self.who, "bind", *args, **words)
        self._fail()

    def init_forward_metadata_replay_cuda_graph(self, *args, **words):
        self.trace.add(self.who, "refresh", *args, **words)
        self._fail()

    def init_forward_metadata(self, *args, **words):
        self.trace.add(self.who, "eager", *args, **words)
        self._fail()

    def _fail(self):
        if self.raises is not None:
            raise self.raises


class NarrowAttention(FakeAttention):
    """One whose state init names one extra only."""

    def init_cuda_graph_state(self, max_bs, seq_lens_buf, *, max_tokens_per_req):
        super().init_cuda_graph_state(max_bs, seq_lens_buf, max_tokens_per_req=max_tokens_per_req)


class VerifyingAttention(FakeAttention):
    """One with recurrent state."""

    def update_mamba_state_after_mtp_verify(self, accepted, rest):
        self.trace.add(self.who, "verified", accepted, rest, rows=self.context.bs)


@attrs.define(eq=False)
class FakeSampler:
    """A sampling backend."""

    trace: Trace
    declared: tuple[str, ...]
    wanted: str = "default"

    def cuda_graph_capture_variants(self, tokens):
        self.trace.add("sampler", "variants", tokens)
        return self.declared

    def prepare_capture_variant(self, *args, **words):
        self.trace.add("sampler", "prepare", *args, **words)

    def reset_capture_state(self):
        self.trace.add("sampler", "reset")

    def cuda_graph_replay_variant(self, tokens):
        self.trace.add("sampler", "replay_variant", tokens)
        return self.wanted


class FakeQueue(queue.Queue[Any]):
    """A queue that tells who empties it."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def get_nowait(self):
        self.trace.add("queue", "get_nowait", not self.empty())
        return super().get_nowait()


@attrs.define(eq=False)
class FakeGrammar:
    """A capturable grammar."""

    trace: Trace
    max_tokens_per_req: int
    queue: FakeQueue
    bitmask: torch.Tensor

    def add_batch(self, **words):
        self.trace.add("grammar", "add_batch", **words)
        self.queue.put(words)

    def reset_state(self):
        self.trace.add("grammar", "reset_state")


class FakeHome:
    """DeepEP's home."""

    trace: Trace
    _buffer: Any = object()

    @classmethod
    def set_dispatch_mode_as_low_latency(cls):
        cls.trace.add("deepep", "set_mode")

    @classmethod
    def clean_buffer(cls):
        cls.trace.add("deepep", "clean")


class FakeEngine:
    """All parts of an engine, and the wrapper around them. `fails`: raised by the next forwards."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.trace = Trace()
        self.backend = TracedBackend(self.trace)
        self.fails: BaseException | None = None
        self.streams: list[Any] = []
        self.buffers = self._buffers()
        self.target = self._attention("target", configuration.target, verifies=configuration.verifies)
        self.draft = None if configuration.draft is None else self._attention("draft", configuration.draft)
        self.drafter = self._drafter() if configuration.drafter else None
        self.sampler = None if configuration.variants is None else FakeSampler(self.trace, configuration.variants)
        self.grammar = self._grammar() if configuration.grammar == "capturable" else None
        self.eager_grammar = self._eager_grammar() if configuration.grammar == "eager" else None
        self.pool = SimpleNamespace(paged_cache_group_specs=list(configuration.groups))
        self.draft_pool = SimpleNamespace(paged_cache_group_specs=list(configuration.draft_groups))
        self.states = SimpleNamespace(valid_cache_lengths=torch.zeros(SENTINEL + 1, dtype=torch.int32))
        self.pages = self.trace.place("pages", torch.zeros(SENTINEL + 1, 4, dtype=torch.int32))

    def _buffers(self) -> SimpleNamespace:
        place, c = self.trace.place, self.configuration
        return SimpleNamespace(
            seq_lens_buf=place("seq_lens", torch.ones(ROWS, dtype=torch.int32)),
            req_pool_indices_buf=place("pool_rows", torch.zeros(ROWS, dtype=torch.int64)),
            state_write_req_pool_indices_buf=place("write_rows", torch.full((ROWS,), SENTINEL, dtype=torch.int64)),
            has_mamba=c.mamba,
            mamba_pool_indices_buf=place("mamba", torch.full((ROWS,), -1, dtype=torch.int32)) if c.mamba else None,
        )

    def _attention(self, who: str, flags: Flags, *, verifies: bool = False) -> FakeAttention:
        kind = VerifyingAttention if verifies else NarrowAttention if flags.narrow else FakeAttention
        return self.trace.name(who, kind(who, self.trace, flags))

    def _drafter(self) -> SimpleNamespace:
        return SimpleNamespace(
            draft_seq_lens_buf=self.trace.place("draft_lens", torch.full((ROWS,), 77, dtype=torch.int32)),
            req_to_page=self.trace.place("draft_pages", torch.zeros(SENTINEL + 1, 4, dtype=torch.int32)),
        )

    def _grammar(self) -> FakeGrammar:
        tokens = self.configuration.tokens_per_request
        mask = torch.full((ROWS * tokens, 2), -1, dtype=torch.int32)
        grammar = FakeGrammar(self.trace, tokens, FakeQueue(self.trace), mask)
        return self.trace.name("capturable", grammar)

    def _eager_grammar(self) -> SimpleNamespace:
        tokens = self.configuration.tokens_per_request
        mask = torch.full((ROWS * tokens, 2), -1, dtype=torch.int32)
        buffers = SimpleNamespace(max_tokens_per_req=tokens, vocab_mask_buf=mask[:ROWS], vocab_mask_spec_buf=mask)
        return self.trace.name("eager buffers", buffers)

    @property
    def config(self) -> SimpleNamespace:
        c = self.configuration
        return SimpleNamespace(
            cudagraph_capture_sizes=list(c.sizes),
            max_num_seqs=max(c.sizes) * c.ranks,
            max_cudagraph_capture_size=160,
            disable_cuda_graph_padding=not c.padding,
            enforce_eager=c.enforce_eager,
            data_parallel_size=c.ranks,
            world_size=c.ranks,
            global_rank=0,
            gpu_id=0,
            device="cpu",
            context_len=c.context_len,
            vocab_size=64,
            grammar_backend="a grammar",
            spec_algo=c.spec_algo,
            spec_num_tokens=c.spec_num_tokens,
            overlap_schedule_depth=c.depth,
            use_v4_mtp_paged_metadata=c.v4,
            max_req_pool_size=SENTINEL,
        )

    def wrap(self, **changes: Any) -> CudaGraphWrapper:
        """The wrapper around this engine."""
        c = self.configuration
        words = {
            "forward_func": self.forward,
            "attn_backend": self.target,
            "token_to_kv_pool": self.pool,
            "input_buffers": self.buffers,
            "config": self.config,
            "draft_attn_backend": self.draft,
            "draft_token_to_kv_pool": self.draft_pool if c.draft is not None else None,
            "drafter": self.drafter,
            "capturable_grammar": self.grammar,
            "eager_grammar_buffers": self.eager_grammar,
            "sampling_backend": self.sampler,
            "runtime_states": self.states if c.runtime_states else None,
        }
        return CudaGraphWrapper(**{**words, **changes}, backend=self.backend)

    def bind_mask(self, info: Any, eager_buffers: Any, bs: int, **words: Any) -> None:
        """The engine's binding of the mask."""
        self.trace.add("mask", "bind", eager_buffers, bs, **words)
        bind_mask(info, eager_buffers, bs, **words)

    def forward(self, *, bs: int, ctx: Any, sampling_info: Any) -> tuple[Any, ...]:
        """One forward: tokens are lengths, accept lengths the rows that state is written to."""
        told = {name: getattr(ctx, name) for name in ("bs", "num_extends", "input_num_tokens", "forward_mode")}
        told |= {name: getattr(ctx, name) for name in ("capture_hidden_mode", "global_num_tokens", "global_bs")}
        capturing = get_is_capture_mode()
        greedy = getattr(sampling_info, "is_all_greedy", None)
        self.trace.add("engine", "forward", bs, capturing, greedy, steady=ctx.all_decode_or_idle, **told)
        if self.grammar is not None and not capturing and not self.grammar.queue.empty():
            queue.Queue.get_nowait(self.grammar.queue)
        self.streams.append(current_stream())
        if self.fails is not None:
            raise self.fails
        return self.answer(bs)

    def answer(self, rows: int) -> tuple[Any, ...]:
        """What a forward of `rows` rows returns."""
        tokens, lengths = self.configuration.tokens_per_request, self.buffers.seq_lens_buf[:rows]
        each = lengths.unsqueeze(1).expand(rows, tokens).reshape(-1) + 0
        accepted = self.buffers.state_write_req_pool_indices_buf[:rows] + 0
        return each, accepted, each.to(torch.float32) if self.configuration.logprobs else None

    # -- steps --------------------------------------------------------------------------------------------------------

    def context(self, step: Step) -> ForwardContext:
        """The engine's context of a step."""
        c = self.configuration
        several = c.ranks > 1 and step.known
        tokens = step.rows * c.tokens_per_request
        ctx = ForwardContext(
            attn_backend=self.target,
            token_to_kv_pool=self.pool,
            bs=step.rows,
            num_extends=step.rows if step.mode == "EXTEND" else 0,
            input_num_tokens=tokens,
            forward_mode=ForwardMode[step.mode],
            capture_hidden_mode=CaptureHiddenMode.FULL,
            global_num_tokens=[tokens, step.others * c.tokens_per_request] if several else None,
            all_decode_or_idle=step.steady,
        )
        self.target.context = ctx
        return ctx

    def stage(self, step: Step) -> None:
        """Write the rows of a step into the input buffers, as the engine does before the call."""
        rows = step.rows
        self.buffers.seq_lens_buf[:rows] = torch.arange(10, 10 + rows, dtype=torch.int32)
        self.buffers.req_pool_indices_buf[:rows] = torch.arange(1, 1 + rows)

    def words(self, step: Step) -> dict[str, Any]:
        """The optional arguments of a step's call."""
        words: dict[str, Any] = {"extend_with_prefix": step.mode == "EXTEND", "spec_info": "spec info"}
        for place, name in enumerate(RECURRENT[: step.recurrent]):
            words[name] = self.trace.place(name, torch.full((step.rows,), place + 3, dtype=torch.int32))
        if step.tables:
            words |= self._tables(step)
        return words

    def _tables(self, step: Step) -> dict[str, Any]:
        c = self.configuration
        ids = [group.group_id for group in (*c.groups, *(c.draft_groups if c.draft is not None else ()))]
        words: dict[str, Any] = {}
        for name, fill in (("paged_cache_block_tables", 5), ("flat_block_tables", 6)):
            tables = {each: torch.full((step.rows, 2), fill, dtype=torch.int32) for each in dict.fromkeys(ids)}
            words[name] = {each: self.trace.place(f"{name}[{each}]", table) for each, table in tables.items()}
        if step.offsets:
            name = "paged_cache_block_table_base_offsets"
            offsets = {each: torch.full((step.rows,), 7, dtype=torch.int32) for each in dict.fromkeys(ids)}
            words[name] = {each: self.trace.place(f"{name}[{each}]", offset) for each, offset in offsets.items()}
        return words

    def serve(self, wrapper: CudaGraphWrapper, step: Step) -> Any:
        """Let the wrapper serve a step; the trace starts anew."""
        self.stage(step)
        ctx, words = self.context(step), self.words(step)
        if self.sampler is not None:
            self.sampler.wanted = step.variant
        self.trace.clear()
        return wrapper(step.rows, ctx, None, self.pages, **words)
