"""The input buffers that graphs read (§2, "Input buffers"), and how an engine fills them before each call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from torch import Tensor

from tsgraph.buffers.contract import Field
from tsgraph.protocols.backend import Backend

TOKENS = ("input_ids", "positions", "cache_locations", "shifted_ids")
"""Buffers per token: the engine pads their tails itself (§4, R35)."""

REQUESTS = ("seq_lens", "request_pool")
"""Buffers per request: the wrapper pads them."""


@attrs.frozen(eq=False)
class InputBuffers:
    """Static tensors by label, full of their pads. `sentinel` is the pool row that no request has."""

    tensors: Mapping[str, Tensor]
    pads: Mapping[str, float]
    per_request: Mapping[str, int]
    tokens_per_request: int
    sentinel: int

    @classmethod
    def of(cls, fields: Iterable[Field], rows: int, backend: Backend, tokens_per_request: int) -> InputBuffers:
        """Allocate those of `fields` for `rows` requests."""
        fields = tuple(fields)
        tensors = {
            field.label: backend.allocate((rows * field.rows_per_request, *field.shape), field.dtype, field.pad)
            for field in fields
        }
        pads = {field.label: field.pad for field in fields}
        per_request = {field.label: field.rows_per_request for field in fields}
        return cls(tensors, pads, per_request, tokens_per_request, int(pads["state_write_pool"]))

    def heads(self, rows: int) -> dict[str, Tensor]:
        """The first `rows` requests of every buffer, which the graph of that size reads."""
        return {label: tensor[: rows * self.per_request[label]] for label, tensor in self.tensors.items()}

    def __getitem__(self, label: str) -> Tensor:
        return self.tensors[label]

    def fill(self, live: int, padded: int, sources: Mapping[str, Any]) -> None:
        """The engine's part: one copy for each buffer, and a fill for each tail of tokens (§4, R35; §6, "Call order").

        The wrapper finds live lengths and pool rows here; all that is grouped or recurrent it gets as arguments.
        """
        for label in TOKENS:
            if label in self.tensors:
                buffer, tokens = self.tensors[label], live * self.tokens_per_request
                buffer[:tokens].copy_(sources[label], non_blocking=True)
                if padded > live:
                    buffer[tokens : padded * self.tokens_per_request].fill_(self.pads[label])
        for label in REQUESTS:
            self.tensors[label][:live].copy_(sources[label], non_blocking=True)
