"""Rows of running requests, as many as are asked for: what a verification serves instead of dummies."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from tsgraph.reference.parts import Parts
from tsgraph.reference.scheduler import Request, Sampling, Sequence
from tsgraph.reference.sources import Sources, extras_of, sources_of

SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.8, top_k=20),
    Sampling(temperature=1.0, top_p=0.9, repetition=1.2),
    Sampling(temperature=1.1, frequency=0.3),
)
"""One row after the other; a variant makes of them what it can."""

SPREAD = 0.618
"""Multiples of it, modulo 1, spread lengths evenly over however many rows there are."""


@attrs.frozen
class RunningRows:
    """Callable with a number of rows: the sources of as many requests in the middle of their texts.

    Row i is the same request in every batch: it has pages of its own, a length and a sampling of its own, and whatever
    its step reads of cache and recurrent state is filled with noise.
    """

    parts: Parts

    def __call__(self, rows: int) -> Sources:
        """Host tensors of `rows` rows."""
        config, sequences = self.parts.config, [self._sequence(row) for row in range(rows)]
        with torch.inference_mode():
            for sequence in sequences:
                self._fill(sequence)
        return sources_of(sequences, config.page_size) | extras_of(sequences, config)

    def _sequence(self, row: int) -> Sequence:
        config = self.parts.config
        each = min((config.pages - 1) // config.rows, config.pages_per_request)
        room = min(each * config.page_size - config.lookahead, config.context) - config.drafts
        cached = 1 + int(row * SPREAD % 1 * (room - 1))
        tokens = [(31 * row + 11 * at) % 256 for at in range(cached + 1)]
        how = attrs.evolve(SAMPLINGS[row % len(SAMPLINGS)], seed=row)
        request = Request(prompt=tuple(tokens[:1]), max_tokens=room, sampling=how)
        return Sequence(
            request,
            tokens,
            cached=cached,
            row=row + 1,
            pages=tuple(range(1 + row * each, 1 + (row + 1) * each)),
            drafts=tuple((5 * row + at) % 256 for at in range(config.drafts)),
            status="running",
        )

    def _fill(self, sequence: Sequence) -> None:
        noise = torch.Generator().manual_seed(sequence.row)
        caches = [self.parts.cache, *([self.parts.draft.cache] if self.parts.draft is not None else [])]
        for cache in caches:
            for tensor in (cache.keys, cache.values):
                _put(tensor, sequence.pages, noise)
        if self.parts.memory is not None:
            _put(self.parts.memory.states, (sequence.state_slot,), noise)


def _put(tensor: Tensor, rows: tuple[int, ...], noise: torch.Generator) -> None:
    values = torch.randn((len(rows), *tensor.shape[1:]), generator=noise)
    tensor[list(rows)] = values.to(tensor)
