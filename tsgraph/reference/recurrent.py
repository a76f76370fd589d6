"""Linear attention with one state per request: what layers like Mamba's or gated delta rules need of a runtime.

A state slot belongs to one request, slot 0 too. Pad rows have the slot -1: they read and write the sink, one row beyond
the live ones (rule R33). A step of several tokens, which verification may cut short, leaves the states alone and notes
the state after each token in a trail; once it is known how many tokens were accepted, the live rows take theirs (R42).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

import attrs
import torch
from torch import Tensor

NO_SLOT = -1


@attrs.frozen(eq=False)
class RecurrentMemory:
    """`states` [slots + 1, layers, heads, d, d], the last the sink; `trail` [rows, tokens, layers, heads, d, d].

    Both are float32: a state is a sum over the whole history.
    """

    states: Tensor
    trail: Tensor

    @classmethod
    def empty(
        cls, *, slots: int, rows: int, tokens: int, layers: int, heads: int, head_dim: int, device: torch.device | str
    ) -> RecurrentMemory:
        """Zeros for `slots` requests, and for steps of `rows` rows with `tokens` tokens each."""
        shape = (layers, heads, head_dim, head_dim)
        states, trail = (slots + 1, *shape), (rows, tokens, *shape)
        return cls(*(torch.zeros(each, device=device, dtype=torch.float32) for each in (states, trail)))

    @property
    def sink(self) -> int:
        """The row of `states` that pad rows share."""
        return self.states.shape[0] - 1

    def locate(self, slots: Tensor) -> Tensor:
        """The row of `states` for each slot, [rows] int64."""
        return torch.where(slots == NO_SLOT, self.sink, slots.long())

    def accept(self, slots: Tensor, lengths: Tensor) -> None:
        """Let the rows of `slots` have the states after `lengths` tokens of the last step; both [live rows]."""
        rows = torch.arange(len(slots), device=slots.device)
        self.states.index_put_((slots.long(),), self.trail[rows, lengths.long() - 1])


@attrs.frozen(eq=False)
class Passage:
    """One forward through the recurrent layers: whose states it reads, and where it leaves them.

    `places` [rows]: rows of the states. `fresh`: requests begin here, from zeros. `noted`: to the trail, not to the
    states.
    """

    memory: RecurrentMemory
    places: Tensor
    fresh: bool
    noted: bool

    def run(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor) -> Tensor:
        """What `layer` makes of its tokens, [rows, tokens, query heads, d], each seeing itself and those before it.

        `queries` [rows, tokens, query heads, d]; `keys`, `values` [rows, tokens, heads, d]; by `decay`
        [rows, tokens, heads], in (0, 1), the state fades before a token adds to it.
        """
        state = self._begin(layer, keys)
        shared = queries.unflatten(2, (keys.shape[2], -1))
        seen = []
        for token in range(queries.shape[1]):
            added = keys[:, token, :, :, None] * values[:, token, :, None, :]
            state = state * decay[:, token, :, None, None] + added
            seen.append((shared[:, token, :, :, :, None] * state[:, :, None]).sum(-2).flatten(1, 2))
            if self.noted:
                self.memory.trail[: len(state), token, layer] = state
        if not self.noted:
            self.memory.states[:, layer].index_put_((self.places,), state)
        return torch.stack(seen, dim=1)

    def _begin(self, layer: int, keys: Tensor) -> Tensor:
        rows, _, heads, d = keys.shape
        if self.fresh:
            return keys.new_zeros((rows, heads, d, d))
        return self.memory.states[:, layer][self.places]


@attrs.frozen(eq=False)
class RecurrentUpdate:
    """The collaborator: after a verification, live rows take the state after their last accepted token."""

    memory: RecurrentMemory
    honours: ClassVar[Mapping[str, Collection[float]]] = {"recurrent_slots": (NO_SLOT,)}

    def update(self, outputs: Mapping[str, Tensor], live: int) -> None:
        """Advance `live` rows by the step's `accept_lengths` [live], in its `state_slots` [live]."""
        if "accept_lengths" in outputs:
            self.memory.accept(outputs["state_slots"][:live], outputs["accept_lengths"][:live])
