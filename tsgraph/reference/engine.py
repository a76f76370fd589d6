"""A small complete engine: a decoder, a paged cache, a sampler and a scheduler around one `runtime.step`.

`graph_runtime` shows all that an engine tells tsgraph: the spec, the step, the numbers the spec leaves open, and what
the step reads (the model) and writes (the cache). The engine itself never asks which path a step took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import attrs
import torch
from attrs.validators import ge, instance_of
from torch import Tensor

from tsgraph import keys
from tsgraph.buffers.contract import State
from tsgraph.keys import Batch, Geometry, Mode
from tsgraph.protocols.backend import Backend
from tsgraph.reference.cache import DUMMY_PAGE, DUMMY_SLOT, PageAllocator, PagedCache
from tsgraph.reference.model import Decoder, DecoderConfig
from tsgraph.reference.sampler import SamplingTensors, sample
from tsgraph.reference.scheduler import Request, Scheduler, Sequence, Status
from tsgraph.reference.text import EOS
from tsgraph.runtime import GraphRuntime

Sources = dict[str, Tensor]
OnStep = Callable[[int, Mode, Sources, keys.Step], None]


@attrs.frozen(kw_only=True)
class EngineConfig:
    """The numbers of an engine: most `rows` at a time, `pages` of `page_size` tokens, `context` tokens a request.

    One page is the dummy page. The default `dtype` is float32, in which paths compare best; others work alike.
    """

    decoder: DecoderConfig = attrs.field(factory=DecoderConfig)
    rows: int = attrs.field(default=16, validator=[instance_of(int), ge(1)])
    pages: int = attrs.field(default=257, validator=[instance_of(int), ge(2)])
    page_size: int = attrs.field(default=16, validator=[instance_of(int), ge(1)])
    context: int = attrs.field(default=256, validator=[instance_of(int), ge(1)])
    seed: int = 0
    eos: int | None = EOS
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @property
    def pages_per_request(self) -> int:
        """The width of a page table."""
        return -(-self.context // self.page_size)


@attrs.frozen(eq=False)
class Parts:
    """What a runtime is made of: the model, the cache, the step that uses both, and the numbers of the spec."""

    model: Decoder
    cache: PagedCache
    geometry: Geometry

    @classmethod
    def build(cls, config: EngineConfig) -> Parts:
        """A seeded model and an empty cache for `config`."""
        shape = config.decoder
        place: dict[str, Any] = {"device": config.device, "dtype": config.dtype}
        cache = PagedCache.empty(
            pages=config.pages,
            layers=shape.layers,
            page_size=config.page_size,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            **place,
        )
        geometry = Geometry(
            rows=config.rows,
            extents={"pages": config.pages_per_request},
            sinks={"dummy_cache_slot": DUMMY_SLOT, "dummy_page": DUMMY_PAGE},
        )
        return cls(Decoder(shape, seed=config.seed, **place), cache, geometry)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One token a row: `tokens` [rows] int64, `logits` [rows, vocabulary] and `logprobs` [rows] float32."""
        lengths = batch.seq_lens
        logits = self.model(
            batch.input_ids, batch.positions, batch.cache_locations, lengths, batch.page_table, self.cache
        )
        sampled = sample(logits, sampling_of(batch))
        return {"tokens": sampled.tokens, "logits": logits, "logprobs": sampled.logprobs}


def sampling_of(batch: Any) -> SamplingTensors:
    """How the rows of a batch (or of sources) sample; a row's last token is at its length minus one."""
    names = ("temperature", "top_k", "top_p", "seed")
    return SamplingTensors(position=batch["seq_lens"] - 1, **{name: batch[name] for name in names})


class Runtime(Protocol):
    """What the engine needs of a runtime: `tsgraph.GraphRuntime` has it."""

    def step(self, *, rows: int, mode: Mode, **sources: Any) -> keys.Step:
        """Run one step on host or device tensors of the live rows."""


def graph_runtime(parts: Parts, *, backend: str | Backend = "auto", capture: bool = True) -> GraphRuntime:
    """A `GraphRuntime` over `parts`, with all its slots captured; without `capture` every step stays eager."""
    runtime = GraphRuntime(
        "reference",
        parts.step,
        geometry=parts.geometry,
        modules=[parts.model],
        state={
            "keys": State(parts.cache.keys, sink=DUMMY_PAGE),
            "values": State(parts.cache.values, sink=DUMMY_PAGE),
        },
        backend=backend,
    )
    if capture:
        runtime.capture()
    return runtime


@attrs.frozen
class Completion:
    """What a request came to: its `tokens` (an end-of-sequence token included), their logprobs, and why it `ended`."""

    request: Request
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: Status

    @classmethod
    def of(cls, sequence: Sequence) -> Completion:
        """The completion of a finished sequence."""
        return cls(sequence.request, tuple(sequence.generated), tuple(sequence.logprobs), sequence.status)


R = TypeVar("R", bound=Runtime)


class ReferenceEngine(Generic[R]):
    """Serves requests with `make_runtime(parts)`, `graph_runtime` say; graphs are wholly the runtime's business."""

    def __init__(self, config: EngineConfig, make_runtime: Callable[[Parts], R]) -> None:
        self.config = config
        self.parts = Parts.build(config)
        self.runtime = make_runtime(self.parts)

    def generate(self, requests: Iterable[Request], on_step: OnStep | None = None) -> list[Completion]:
        """Complete `requests`, in their order. `on_step(rows, mode, sources, done)` is told every step that ran.

        Raises: BadBatch if a request can never fit, before anything runs.
        """
        scheduler = self._scheduler()
        sequences = [scheduler.submit(request) for request in requests]
        while work := scheduler.next():
            if work.sequences:
                self._run(scheduler, work.mode, work.sequences, on_step)
        return [Completion.of(sequence) for sequence in sequences]

    def _scheduler(self) -> Scheduler:
        return Scheduler(
            PageAllocator(self.config.pages),
            rows=self.config.rows,
            page_size=self.config.page_size,
            pages_per_request=self.config.pages_per_request,
            eos=self.config.eos,
        )

    def _run(self, scheduler: Scheduler, mode: Mode, sequences: tuple[Sequence, ...], on_step: OnStep | None) -> None:
        rows, sources = len(sequences), sources_of(sequences, self.config.page_size)
        done = self.runtime.step(rows=rows, mode=mode, **sources)
        if on_step:
            on_step(rows, mode, sources, done)
        tokens, logprobs = (done.outputs[name].tolist() for name in ("tokens", "logprobs"))
        for sequence, token, logprob in zip(sequences, tokens, logprobs, strict=True):
            scheduler.record(sequence, token, logprob)


def sources_of(sequences: tuple[Sequence, ...], page_size: int) -> Sources:
    """Host tensors for one step over the unread tokens of `sequences`: the buffers of `specs/reference.toml`."""
    unread = [(s, position) for s in sequences for position in s.unread]
    widest = max(len(s.pages) for s in sequences)
    how = [s.request.sampling for s in sequences]
    return {
        "input_ids": torch.tensor([s.tokens[p] for s, p in unread], dtype=torch.int32),
        "positions": torch.tensor([p for _, p in unread], dtype=torch.int64),
        "cache_locations": torch.tensor([_slot(s, p, page_size) for s, p in unread], dtype=torch.int32),
        "seq_lens": torch.tensor([len(s.tokens) for s in sequences], dtype=torch.int32),
        "request_pool": torch.tensor([s.row for s in sequences], dtype=torch.int64),
        "page_table": torch.tensor([_table(s, widest) for s in sequences], dtype=torch.int32),
        "temperature": torch.tensor([h.temperature for h in how], dtype=torch.float32),
        "top_k": torch.tensor([h.top_k for h in how], dtype=torch.int32),
        "top_p": torch.tensor([h.top_p for h in how], dtype=torch.float32),
        "seed": torch.tensor([h.seed for h in how], dtype=torch.int64),
    }


def _slot(sequence: Sequence, position: int, page_size: int) -> int:
    return sequence.pages[position // page_size] * page_size + position % page_size


def _table(sequence: Sequence, width: int) -> list[int]:
    return [*sequence.pages, *[DUMMY_PAGE] * (width - len(sequence.pages))]
