"""A decode step that reads and writes everything that an engine's may: pages, tables, pool rows, recurrent slots.

Readers treat pads as kernels do: a hole is the dummy page, a recurrent index below 0 does nothing. Nothing else is
checked on the device: a wrong index reads or writes whatever is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from tests.faults.shape import COLUMNS, CONTEXT, DUMMY_PAGE, PAGE, VOCABULARY, WIDTH, WINDOW, Shape
from tsgraph.buffers.contract import State
from tsgraph.keys import Batch

if TYPE_CHECKING:
    from tests.faults.parts import Parts

ANYWHERE = 10**6


def tensor(seed: int, *shape: int) -> Tensor:
    """Normal numbers that depend on `seed` alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@attrs.frozen(eq=False)
class Memory:
    """The engine's mutable tensors. Row `state_slots` of the recurrent state is the dump; the row after it is a guard.

    A write at index -1 lands in the last row, as one before the first would on a GPU: nothing may be written there.
    """

    shape: Shape
    keys: Tensor
    values: Tensor
    lengths: Tensor
    counts: Tensor
    recurrent: Tensor

    @classmethod
    def fresh(cls, shape: Shape) -> Memory:
        """Zeros, and numbers in the recurrent slots."""
        cache, pool = (shape.pages, PAGE, WIDTH), shape.sentinel + 1
        return cls(
            shape,
            torch.zeros(cache),
            torch.zeros(cache),
            torch.zeros(pool, dtype=torch.int64),
            torch.zeros(pool, VOCABULARY),
            tensor(5, shape.state_slots + 2, WIDTH),
        )

    @property
    def dump(self) -> int:
        """Where writes to no slot go."""
        return self.shape.state_slots

    @property
    def sinks(self) -> dict[str, int]:
        """The row of each state that no request owns and pad rows may write."""
        pool = self.shape.sentinel if self.shape.drafts else 0
        pages = {"keys": DUMMY_PAGE, "values": DUMMY_PAGE}
        return {**pages, "lengths": self.shape.sentinel, "counts": pool, "recurrent": self.dump}

    def tensors(self) -> dict[str, Tensor]:
        """All of them by name."""
        return {name: getattr(self, name) for name in self.sinks}

    def states(self) -> dict[str, State]:
        """As a runtime is told."""
        return {name: State(memory, sink=self.sinks[name]) for name, memory in self.tensors().items()}


@attrs.define(eq=False)
class PagedStep:
    """The step. `parts` are the collaborators whose metadata it reads; `last` is what its last Python run returned."""

    shape: Shape
    memory: Memory
    parts: Parts
    weights: dict[str, Tensor] = attrs.field(init=False)
    last: dict[str, Tensor] = attrs.field(init=False, factory=dict)
    angles: Tensor = attrs.field(init=False, factory=lambda: torch.zeros(0, WIDTH))

    def __attrs_post_init__(self) -> None:
        tables = {"embedding": (VOCABULARY, WIDTH), "place": (CONTEXT, WIDTH), "head": (WIDTH, VOCABULARY)}
        tables |= {"noise": (4, VOCABULARY)} | dict.fromkeys(("query", "key", "value", "out"), (WIDTH, WIDTH))
        self.weights = {name: tensor(seed, *size) for seed, (name, size) in enumerate(tables.items())} | _columns()

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """One decode step, or a forward of any other mode."""
        self.parts.enter(batch)
        x = self._embed(batch)
        self._write_cache(batch, x)
        x, scanned = self._attend(batch, x)
        x = self._advance_state(batch, x)
        draft, also = self._draft(batch, x)
        outputs = self._sample(batch, x + self.parts.comm.dirt) | {"scanned": scanned + also, "draft": draft}
        self.parts.comm.dirt.fill_(1.0)
        self.last = outputs
        return outputs

    # -- parts of it ---------------------------------------------------------------------------------------------------

    def _embed(self, batch: Batch) -> Tensor:
        w = self.weights
        x = w["embedding"][batch.input_ids.long()] + w["place"][batch.positions] + self._angles(batch.tokens)
        if self.shape.drafts:
            x = x + 0.5 * w["embedding"][batch.shifted_ids.long()]
        return x * (2.0 if batch.full_hidden else 1.0)

    def _angles(self, tokens: int) -> Tensor:
        """A table that grows when it must, as rotary ones do."""
        if len(self.angles) < tokens:
            self.angles = torch.arange(tokens * WIDTH, device=self.memory.keys.device).view(tokens, WIDTH).cos()
        return self.angles[:tokens]

    def _write_cache(self, batch: Batch, x: Tensor) -> None:
        place = batch.cache_locations.long()
        at = (place // PAGE, place % PAGE)
        self.memory.keys.index_put_(at, self._product(x, "key"))
        self.memory.values.index_put_(at, self._product(x, "value"))

    def _attend(self, batch: Batch, x: Tensor) -> tuple[Tensor, Tensor]:
        """Attention over all tables side by side: a key counts once for each table that shows it."""
        paged, flat, offsets = batch.paged_tables, batch.flat_tables, batch.paged_offsets
        table = torch.cat((paged["full"], paged["window"], flat["full"], flat["window"]), 1)
        skipped = offsets["full"][:, None] * self.weights["in full"] + offsets["window"][:, None] * self.weights["near"]
        place = self.weights["place in table"] + PAGE * skipped
        queries = self._product(x, "query").view(batch.rows, -1, WIDTH)
        look = _Look(self.memory, queries, batch.positions, causal=self.shape.tokens > 1)
        seen, scanned = look.at(table, place, self.parts.attention.lengths, self.weights["span"])
        return x + self._product(seen.reshape(x.shape), "out"), scanned

    def _advance_state(self, batch: Batch, x: Tensor) -> Tensor:
        memory, last = self.memory, x.view(batch.rows, -1, WIDTH)[:, -1]
        slots, sources = batch.recurrent_slots.long(), batch.recurrent_sources.long()
        copied = memory.recurrent[sources.clamp(min=0)]
        memory.recurrent.index_put_((torch.where(sources >= 0, slots, memory.dump),), copied)
        before = memory.recurrent[slots.clamp(min=0)] * (slots >= 0)[:, None]
        after = 0.5 * before + last
        places = torch.stack((batch.recurrent_slots, batch.recurrent_branches, batch.recurrent_tracks)).long()
        memory.recurrent.index_put_((torch.where(places >= 0, places, memory.dump),), after)
        memory.lengths.index_put_((batch.state_write_pool,), batch.seq_lens.long())
        carried: Tensor = after.repeat_interleave(self.shape.tokens, 0)
        return x + carried

    def _draft(self, batch: Batch, x: Tensor) -> tuple[Tensor, Tensor]:
        """What a drafter inside the graph derives from its own lengths and from the pool row, and the keys it saw."""
        block: Tensor = self.memory.lengths[batch.request_pool]
        if not self.shape.drafts:
            return block * 0, block * 0
        lengths = self.parts.draft_lengths(batch)
        told = 10 * block + 1000 * lengths
        look = _Look(self.memory, x.view(batch.rows, -1, WIDTH), batch.positions, causal=False)
        place = self.weights["place in full"] + PAGE * batch.paged_offsets["full"][:, None]
        seen, scanned = look.at(batch.paged_tables["full"], place, batch.draft_seq_lens, self.weights["any span"])
        lengths.add_(1)
        return (100 * seen.sum((1, 2))).round().long() + told, scanned

    def _sample(self, batch: Batch, x: Tensor) -> dict[str, Tensor]:
        pool = batch.request_pool.repeat_interleave(self.shape.tokens)
        self.memory.counts.index_put_(
            (pool, batch.input_ids.long()), torch.ones_like(pool, dtype=torch.float32), accumulate=True
        )
        logits = self._product(x, "head") - 0.1 * self.memory.counts[pool]
        logits = logits + self.parts.sampler.noise(batch, self.weights["noise"])
        if batch.mask is not None:
            logits = logits.masked_fill(~batch.mask, float("-inf"))
        tokens, self_scores = logits.argmax(-1), logits.log_softmax(-1)
        accepted = 1 + tokens.view(batch.rows, -1).sum(1) % self.shape.tokens
        return {"tokens": tokens, "accept_lengths": accepted, "logprobs": self_scores.amax(-1)}

    def _product(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[name]
        return (x[..., None] * weight).sum(-2) if self.shape.row_products else x @ weight


@attrs.frozen(eq=False)
class _Look:
    """Queries [rows, tokens, width], at `positions` [tokens], that look through page tables.

    Lengths alone bound what a single token sees, as in decode kernels; several are `causal` among each other.
    """

    memory: Memory
    queries: Tensor
    positions: Tensor
    causal: bool

    def at(self, table: Tensor, place: Tensor, lengths: Tensor, span: Tensor) -> tuple[Tensor, Tensor]:
        """What is seen, [rows, tokens, width], and how many keys each row's lengths let it scan, [rows].

        `place` [rows, keys]: the position of each key of `table`; `span` [keys]: how far back it can be seen.
        """
        pages = table.clamp(min=0).long()
        keys, values = self.memory.keys[pages].flatten(1, 2), self.memory.values[pages].flatten(1, 2)
        here, place = self.positions.view(len(lengths), -1, 1), place[:, None]
        far = (place <= here - span) | (place >= lengths[:, None, None])
        hidden = far | (place > here) if self.causal else far
        scores = (self.queries[:, :, None] * keys[:, None]).sum(-1).masked_fill(hidden, float("-inf"))
        return (scores.softmax(-1)[..., None] * values[:, None]).sum(2), (~far).sum((1, 2))


def _columns() -> dict[str, Tensor]:
    """What is constant about the keys of all tables side by side: paged full, paged window, flat full, flat window."""
    full, near = torch.arange(PAGE * COLUMNS["full"]), torch.arange(PAGE * COLUMNS["window"])
    windowed = torch.cat((full * 0, near * 0 + 1, full * 0, near * 0))
    return {
        "place in table": torch.cat((full, near, full, near)),
        "place in full": full,
        "in full": torch.cat((full * 0 + 1, near * 0, full * 0, near * 0)),
        "near": windowed,
        "span": torch.where(windowed > 0, WINDOW, ANYWHERE),
        "any span": full * 0 + ANYWHERE,
    }
