"""What a runtime is made of: models, memory, the step over them, and the numbers that the spec leaves open."""

from __future__ import annotations

from typing import Any

import attrs
from torch import Tensor

from tsgraph.buffers.contract import State
from tsgraph.keys import Batch, Geometry, Mode
from tsgraph.reference.cache import DUMMY_PAGE, DUMMY_SLOT, PagedCache
from tsgraph.reference.config import EngineConfig
from tsgraph.reference.constraint import Constraints
from tsgraph.reference.model import Decoder
from tsgraph.reference.recurrent import Passage, RecurrentMemory
from tsgraph.reference.sampler import SamplingTensors, logprobs_of
from tsgraph.reference.speculation import Draft, Read, verify
from tsgraph.reference.text import EOS
from tsgraph.reference.variants import PENALTIES, VariantSampler, draw_by, penalise


@attrs.frozen(eq=False)
class Parts:
    """The model and its cache, and whichever of draft model, recurrent memory, sampler and grammar the engine has."""

    config: EngineConfig
    model: Decoder
    cache: PagedCache
    geometry: Geometry
    draft: Draft | None = None
    memory: RecurrentMemory | None = None
    sampler: VariantSampler | None = None
    constraints: Constraints | None = None

    @classmethod
    def build(cls, config: EngineConfig) -> Parts:
        """A seeded model and empty memory for `config`."""
        model = Decoder(config.decoder, seed=config.seed, device=config.device, dtype=config.dtype)
        return cls(
            config,
            model,
            _cache(config, config.decoder.attending),
            _geometry(config),
            draft=_draft(config, model) if config.drafts else None,
            memory=_memory(config) if config.decoder.recurrent else None,
            sampler=_sampler(config) if config.variants else None,
            constraints=_constraints(config) if config.constrained else None,
        )

    @property
    def states(self) -> dict[str, State]:
        """All that a step writes and keeps. The trail lasts only until its step is verified."""
        caches = {"": self.cache} | ({"draft ": self.draft.cache} if self.draft is not None else {})
        states = {}
        for whose, cache in caches.items():
            states[f"{whose}keys"] = State(cache.keys, sink=DUMMY_PAGE)
            states[f"{whose}values"] = State(cache.values, sink=DUMMY_PAGE)
        if self.memory is not None:
            states["recurrent states"] = State(self.memory.states, sink=self.memory.sink)
            states["trail"] = State(self.memory.trail, restore=True)
        if self.sampler is not None:
            states["counts"] = State(self.sampler.counts, sink=self.sampler.sentinel)
        return states

    # -- the step -----------------------------------------------------------------------------------------------------

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """The next token after each row's last one, and in a decode step after each draft too: n draws a row.

        `tokens` [rows * n] int64, `logits` [rows * n, vocabulary] (that the draw is from), `logprobs` [rows * n]
        float32; with a draft model `accept_lengths` [rows] (how many of its draws a row gains) and `drafts`
        [rows, drafts], for the next step; with recurrent layers `state_slots` [rows], whose states they read.
        """
        read, draws = Read.of(batch), self._draws(batch)
        if self.constraints is not None:
            self.constraints.begin(batch, read.rows, draws)
        raw = self._logits(batch, each=draws > 1)
        logits, how = self._masked(self._penalised(raw, batch, read), batch), sampling_of(batch, draws)
        tokens = draw_by(batch.variant, logits, how)
        outputs = {"tokens": tokens, "logits": logits, "logprobs": logprobs_of(raw, tokens)}
        drawn = tokens.view(batch.rows, draws)
        gained = verify(read.rows[:, -draws:], drawn)
        self._count(batch, drawn, gained)
        if self.constraints is not None:
            self.constraints.end(tokens, gained, draws)
        if self.memory is not None:
            outputs["state_slots"] = batch.recurrent_slots
        if self.draft is not None:
            outputs["accept_lengths"] = gained
            outputs["drafts"] = self.draft.propose(batch, read, drawn, gained)
        return outputs

    def _draws(self, batch: Batch) -> int:
        return self.config.tokens_per_request if batch.mode is Mode.DECODE else 1

    def _logits(self, batch: Batch, *, each: bool) -> Tensor:
        logits: Tensor = self.model(
            batch.input_ids,
            batch.positions,
            batch.cache_locations,
            batch.seq_lens,
            batch.page_table,
            self.cache,
            passage=self._passage(batch, noted=each),
            each=each,
        )
        return logits

    def _passage(self, batch: Batch, *, noted: bool) -> Passage | None:
        if self.memory is None:
            return None
        places, fresh = self.memory.locate(batch.recurrent_slots), batch.mode is not Mode.DECODE
        return Passage(self.memory, places, fresh=fresh, noted=noted)

    def _penalised(self, logits: Tensor, batch: Batch, read: Read) -> Tensor:
        if self.sampler is None or batch.variant != PENALTIES:
            return logits
        if batch.mode is not Mode.DECODE:
            self.sampler.begin(batch.request_pool)
        draws = len(logits) // batch.rows
        seen = self.sampler.seen(batch.request_pool, read.rows[:, -draws:])
        penalties = (_spread(batch[name], draws) for name in ("repetition_penalty", "frequency_penalty"))
        return penalise(logits, seen, *penalties)

    def _masked(self, logits: Tensor, batch: Batch) -> Tensor:
        return logits if self.constraints is None else self.constraints.masked(batch, logits)

    def _count(self, batch: Batch, drawn: Tensor, gained: Tensor) -> None:
        if self.sampler is not None and batch.variant == PENALTIES:
            self.sampler.count(batch.state_write_pool, drawn, gained)


def sampling_of(batch: Any, draws: int = 1) -> SamplingTensors:
    """How the rows of a batch (or of sources) sample, each after the last `draws` of its tokens."""
    rows = len(batch["seq_lens"])
    how = {name: _spread(batch[name], draws) for name in ("temperature", "top_k", "top_p", "seed")}
    return SamplingTensors(position=batch["positions"].view(rows, -1)[:, -draws:].flatten(), **how)


def _spread(each: Tensor, draws: int) -> Tensor:
    """`each` [rows] for every draw, [rows * draws]."""
    return each[:, None].expand(-1, draws).flatten()


# -- building ---------------------------------------------------------------------------------------------------------


def _cache(config: EngineConfig, layers: int) -> PagedCache:
    return PagedCache.empty(
        pages=config.pages,
        layers=layers,
        page_size=config.page_size,
        kv_heads=config.decoder.kv_heads,
        head_dim=config.decoder.head_dim,
        device=config.device,
        dtype=config.dtype,
    )


def _draft(config: EngineConfig, model: Decoder) -> Draft:
    """The first half of the target's attending layers, over the target's weights (early exit)."""
    attending = [layer for layer in range(config.decoder.layers) if layer not in config.decoder.recurrent]
    layers = tuple(attending[: max(1, len(attending) // 2)])
    return Draft(model.shortened(layers), _cache(config, len(layers)), config.drafts)


def _memory(config: EngineConfig) -> RecurrentMemory:
    shape = config.decoder
    return RecurrentMemory.empty(
        slots=config.rows,
        rows=config.rows,
        tokens=config.tokens_per_request,
        layers=len(shape.recurrent),
        heads=shape.kv_heads,
        head_dim=shape.head_dim,
        device=config.device,
    )


def _sampler(config: EngineConfig) -> VariantSampler:
    return VariantSampler.empty(rows=config.rows, vocabulary=config.decoder.vocabulary, device=config.device)


def _constraints(config: EngineConfig) -> Constraints:
    vocabulary, stop = config.decoder.vocabulary, EOS if config.eos is None else config.eos
    return Constraints(rows=config.rows, draws=config.tokens_per_request, vocabulary=vocabulary, stop=stop)


def _geometry(config: EngineConfig) -> Geometry:
    sinks = {"dummy_cache_slot": DUMMY_SLOT, "dummy_page": DUMMY_PAGE, "sentinel": config.rows + 1}
    return Geometry(
        rows=config.rows,
        tokens_per_request=config.tokens_per_request,
        extents={"pages": config.pages_per_request},
        sinks=sinks,
        context=config.context,
    )
