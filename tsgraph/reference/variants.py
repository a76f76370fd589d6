"""Sampler variants: what a recording samples with, and the counts of drawn tokens that penalties need.

"greedy" takes the largest logit and nothing else, "default" draws under top-k, top-p and temperature, "penalties" does
so after pushing down what the request has drawn before. A step is served by the least of them that serves all its
rows; what a row draws is the same under each that serves it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs
import torch
from torch import Tensor

from tsgraph.keys import DEFAULT_VARIANT
from tsgraph.protocols.null import NullSampler
from tsgraph.reference.sampler import SamplingTensors, draw
from tsgraph.reference.scheduler import Sampling

GREEDY = "greedy"
PENALTIES = "penalties"


def variant_for(samplings: Iterable[Sampling]) -> str:
    """The least variant that serves them all."""
    samplings = list(samplings)
    if any(sampling.penalised for sampling in samplings):
        return PENALTIES
    return GREEDY if all(sampling.temperature == 0 for sampling in samplings) else DEFAULT_VARIANT


def draw_by(variant: str, logits: Tensor, how: SamplingTensors) -> Tensor:
    """One token for each row of `logits` [rows, vocabulary], as `variant` draws it. Penalties come before."""
    return logits.argmax(-1) if variant == GREEDY else draw(logits, how)


def penalise(logits: Tensor, seen: Tensor, repetition: Tensor, frequency: Tensor) -> Tensor:
    """`logits` [rows, vocabulary] less what `seen` [rows, vocabulary], counts of tokens, costs; penalties are [rows].

    A token seen has its logit divided by `repetition` where positive, multiplied where not (Keskar et al., 2019), and
    `frequency` is taken off for each time. A repetition of 1 and a frequency of 0 change no bit.
    """
    pushed = torch.where(logits > 0, logits / repetition[:, None], logits * repetition[:, None])
    return torch.where(seen > 0, pushed, logits) - frequency[:, None] * seen


@attrs.frozen(eq=False)
class VariantSampler(NullSampler):
    """The sampler as the runtime knows it: three variants, and `counts` [rows + 2, vocabulary] int32 by pool row.

    Row 0 is nobody's and stays empty: pad rows read it. They count into the last one, the sentinel, which none reads.
    There is nothing to prepare: random numbers are made in the step, from (seed, position, token) alone.
    """

    counts: Tensor

    @classmethod
    def empty(cls, *, rows: int, vocabulary: int, device: torch.device | str) -> VariantSampler:
        """Nothing counted yet, for requests in the pool rows 1 to `rows`."""
        return cls(torch.zeros(rows + 2, vocabulary, dtype=torch.int32, device=device))

    @property
    def sentinel(self) -> int:
        """The pool row that pad rows write to."""
        return len(self.counts) - 1

    @property
    def honours(self) -> Mapping[str, Collection[float]]:
        """The pool rows of pad rows: they read the empty row, and write to the sentinel."""
        return {"request_pool": (0,), "state_write_pool": (self.sentinel,)}

    def variants(self, tokens_per_request: int) -> Sequence[str]:  # noqa: ARG002 -- a protocol's words
        """The recorded variants."""
        return DEFAULT_VARIANT, GREEDY, PENALTIES

    def reset(self) -> None:
        """Forget what warm-ups counted (R10): their rows are pad rows, which count into the sentinel."""
        self.counts[self.sentinel].zero_()

    def begin(self, rows: Tensor) -> None:
        """Start the pool rows `rows` anew: their requests have just been admitted."""
        self.counts.index_fill_(0, rows, 0)

    def seen(self, rows: Tensor, read: Tensor) -> Tensor:
        """What each draw is penalised by, [rows * n, vocabulary]: the count of its pool row, and drafts before it.

        `read` [rows, n]: the last token, which is counted already, and the drafts. A draft that is not accepted spoils
        only draws that are not accepted either.
        """
        drafts = torch.cat((torch.zeros_like(read[:, :1]) - 1, read[:, 1:]), dim=1)
        return (self.counts[rows][:, None] + self._ones(drafts).cumsum(1)).flatten(0, 1)

    def count(self, rows: Tensor, drawn: Tensor, gained: Tensor) -> None:
        """Count the first `gained` [rows] of the tokens `drawn` [rows, n] into the pool rows `rows`."""
        kept = torch.arange(drawn.shape[1], device=drawn.device) < gained[:, None]
        ones = self._ones(drawn.masked_fill(~kept, -1))
        self.counts.index_add_(0, rows, ones.sum(1, dtype=torch.int32))

    def _ones(self, tokens: Tensor) -> Tensor:
        """A one in the place of each token, [.., vocabulary] int32; none for a token of -1."""
        every = torch.arange(self.counts.shape[1], device=tokens.device)
        return (tokens[..., None] == every).to(torch.int32)
