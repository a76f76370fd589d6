"""Collaborators with consequences: where one is asked too late, too often or not at all, the step's numbers are others.

What the host can see of a forward (lengths, random numbers, a grammar entry, the collector) is checked when the step
enters, as an engine's own assertions would.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor

from tests.faults.shape import CONVENTIONS, VOCABULARY, Shape
from tsgraph.buffers.contract import State
from tsgraph.capture.mode import is_capturing
from tsgraph.keys import Batch
from tsgraph.protocols.collaborators import Capabilities
from tsgraph.testing.fakes import FakeAttention, FakeGrammar, FakeRanks

NEVER = float("nan")


class Unready(Exception):
    """The step was entered without something that it needs."""


@attrs.define(eq=False, kw_only=True)
class Attention(FakeAttention):
    """Metadata: the lengths, as views of a buffer of its own. `lengths`: the current ones."""

    own: Tensor
    lengths: Tensor
    batch: Batch | None = None

    @classmethod
    def of(cls, shape: Shape) -> Attention:
        """Without any metadata yet."""
        own = torch.zeros(shape.rows, dtype=torch.int64)
        return cls(own=own, lengths=own[:0], capabilities=Capabilities(**dict.fromkeys(CONVENTIONS, True)))

    def bind(self, batch: Batch) -> None:
        self.lengths = self.own[: batch.rows]
        self.lengths.copy_(batch.seq_lens)

    def refresh(self, batch: Batch, live: int) -> None:
        self.batch = batch
        self.own[: batch.rows].copy_(batch.seq_lens)

    def begin_eager(self, batch: Batch) -> None:
        self.batch, self.lengths = batch, batch.seq_lens.long().clone()


@attrs.define(eq=False, kw_only=True)
class Drafter(FakeAttention):
    """The draft's lengths: those of the target's metadata, copied. The step adds to them, as EAGLE's does."""

    target: Attention
    own: Tensor
    lengths: Tensor

    def bind(self, batch: Batch) -> None:
        self.lengths = self.own[: batch.rows]
        self.lengths.copy_(self.target.own[: batch.rows])

    def refresh(self, batch: Batch, live: int) -> None:
        self.own[: batch.rows].copy_(self.target.own[: batch.rows])

    def begin_eager(self, batch: Batch) -> None:
        self.lengths = self.target.lengths.clone()


@attrs.define(eq=False)
class Sampler:
    """One random number a token, in `coins`. `prepare` writes stubs; before a real step the engine writes a request's.

    `noted`: preparations since the last reset, as a sampler counts tokens of dummy rows.
    """

    coins: Tensor
    names: Sequence[str] = ()
    noted: int = 0
    ready: bool = False

    def variants(self, tokens_per_request: int) -> Sequence[str]:
        return self.names

    def prepare(self, batch: Batch) -> None:
        self.noted += 1
        self.ready = True
        self.coins[: batch.tokens].fill_(0.125)

    def reset(self) -> None:
        self.noted = 0

    def noise(self, batch: Batch, table: Tensor) -> Tensor | float:
        """What is added to the logits: nothing for the greedy variant."""
        if batch.variant == "greedy":
            return 0.0
        return 8 * torch.sin(97 * self.coins[: batch.tokens, None] * (1 + table[0]))


@attrs.define(eq=False)
class Grammar(FakeGrammar):
    """The fake queue, with a mask. `current` is the entry that was consumed last, until a reset."""

    mask: Tensor = attrs.field(factory=lambda: torch.zeros(0))
    current: int | None = None

    def bind(self, batch: Batch) -> Tensor:
        return self.mask[: batch.tokens]

    def consume(self) -> int:
        self.current = super().consume()
        return self.current

    def reset(self) -> None:
        self.current = None


@attrs.define(eq=False)
class Recurrent:
    """Counts accepted tokens for each recurrent slot, from the outputs. The last entry guards, as in the state."""

    attention: Attention
    accepted: Tensor

    def update(self, outputs: Any, live: int) -> None:
        assert self.attention.batch is not None
        slots = self.attention.batch.recurrent_slots[:live].long()
        self.accepted.index_add_(0, slots, outputs["accept_lengths"][:live])


@attrs.define(eq=False)
class Communication:
    """A communication buffer that every step leaves dirty, and that must be clean before the next replay."""

    dirt: Tensor
    armed: bool = False

    def arm(self) -> None:
        self.armed = True

    def restore(self) -> None:
        self.dirt.zero_()


@attrs.define(eq=False)
class Parts:
    """All of an engine's collaborators, and what each forward must find."""

    shape: Shape
    attention: Attention
    drafter: Drafter | None
    sampler: Sampler
    grammar: Grammar
    recurrent: Recurrent
    comm: Communication
    ranks: FakeRanks = attrs.field(factory=FakeRanks)
    warming: bool = False
    frozen: int = 0

    @classmethod
    def of(cls, shape: Shape) -> Parts:
        """Those of an engine of this shape."""
        attention, tokens = Attention.of(shape), shape.rows * shape.tokens
        own = torch.zeros(shape.rows, dtype=torch.int64)
        return cls(
            shape,
            attention,
            Drafter(target=attention, own=own, lengths=own[:0]) if shape.drafts else None,
            Sampler(torch.full((tokens,), NEVER), shape.variants[1:]),
            Grammar(mask=torch.ones(tokens, VOCABULARY, dtype=torch.bool)),
            Recurrent(attention, torch.zeros(shape.state_slots + 1, dtype=torch.int64)),
            Communication(torch.zeros(1)),
        )

    def collaborators(self) -> dict[str, Any]:
        """Those that are there, as a runtime is told."""
        names = ("attention", "drafter", "sampler", "grammar", "recurrent", "comm", "ranks")
        return {name: part for name in names if (part := getattr(self, name)) is not None}

    def tensors(self) -> dict[str, Tensor]:
        """Their memory, by name."""
        drafts = {} if self.drafter is None else {"draft lengths": self.drafter.own}
        return {
            "coins": self.sampler.coins,
            "mask": self.grammar.mask,
            "metadata": self.attention.own,
            "dirt": self.comm.dirt,
            **drafts,
        }

    def states(self) -> dict[str, State]:
        """What of it the step writes, as a runtime is told."""
        drafts = {} if self.drafter is None else {"draft_lengths": State(self.drafter.own, restore=True)}
        return {"dirt": State(self.comm.dirt, restore=True), **drafts}

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Around a run of captures: what warm-ups must find is checked, and the collector compared with before."""
        self.warming, self.frozen = True, gc.get_freeze_count()
        try:
            yield
        finally:
            self.warming = False

    def draft_lengths(self, batch: Batch) -> Tensor:
        """The draft's current lengths. Outside of recordings some drafters make metadata anew: this one does."""
        assert self.drafter is not None
        if not is_capturing():
            self.drafter.lengths = self.attention.lengths.clone()
        return self.drafter.lengths

    def enter(self, batch: Batch) -> None:
        """Check what a forward must find. Raises: Unready."""
        if is_capturing():
            self._require(self.sampler.noted == 1, "a sampler that was reset and prepared since (R10, R11)")
            self._require(
                not gc.isenabled() or gc.get_freeze_count() > self.frozen, "a collector that stays away (R43)"
            )
            self._require(self.comm.armed, "an armed communication library")
            self._require(len(self.grammar.queue) == 1, "one grammar entry (R22)")
        elif self.warming:
            self._require(bool((batch.seq_lens >= self.shape.tokens).all()), "lengths that hold its tokens (R7)")
            self._require(self.sampler.ready, "random numbers of its own (R8)")
            self._require(len(self.attention.lengths) == batch.rows, "metadata of its size (R8)")
            self.sampler.ready = False  # a forward uses its numbers up
            self.grammar.consume()

    def _require(self, there: bool, what: str) -> None:
        if not there:
            raise Unready(f"the step was entered without {what}")
