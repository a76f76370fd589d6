"""A decode loop of one model, run three ways: eagerly, by a graph that feeds itself, and through tsgraph.

Every step draws one token for each row, which the next step reads; what else a step reads moves on by a fixed amount.
The graph that is tsgraph's measure does all of that itself, on the device: a step of it is one launch and nothing else.
Through tsgraph a step gets what an engine would pass: the tokens as they are on the device, the rest from the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from tsgraph.bench.recording import Recorded, record_step
from tsgraph.protocols.backend import Backend
from tsgraph.runtime import GraphRuntime

Rows = dict[str, Tensor]


@attrs.frozen(kw_only=True, eq=False)
class Model:
    """What is decoded with. `step` takes a tensor for each input and returns the next tokens, in the dtype of `tokens`.

    `tokens`: the input that the next step gets them as. `moves`: by how much other inputs grow each step; those that
    are not named stay. `start(rows)`: host tensors of the first step. `runtime(sizes)`: a runtime of the same step.
    """

    name: str
    step: Callable[[Rows], Tensor]
    tokens: str
    moves: Mapping[str, int]
    start: Callable[[int], Rows]
    runtime: Callable[[tuple[int, ...]], GraphRuntime]
    backend: Backend


def on_device(rows: Rows, backend: Backend) -> Rows:
    """A static device tensor for each of `rows`."""
    placed = {name: backend.allocate(tensor.shape, tensor.dtype, 0) for name, tensor in rows.items()}
    for name, tensor in placed.items():
        tensor.copy_(rows[name])
    return placed


@attrs.define(eq=False)
class Eager:
    """The step called from Python, on device tensors that are moved on in place."""

    model: Model
    rows: int
    _inputs: Rows = attrs.field(init=False)

    def begin(self) -> None:
        """Back to the first step."""
        self._inputs = on_device(self.model.start(self.rows), self.model.backend)

    def run(self, steps: int) -> Tensor:
        """So many steps; returns the last tokens."""
        with torch.inference_mode():
            for _ in range(steps):
                advance(self.model, self._inputs)
        return self._inputs[self.model.tokens]


@attrs.define(eq=False)
class Replayed:
    """The same as one graph, replayed with nothing around it."""

    model: Model
    rows: int
    _inputs: Rows = attrs.field(init=False)
    _first: Rows = attrs.field(init=False)
    _recorded: Recorded = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        backend = self.model.backend
        self._first = self.model.start(self.rows)
        self._inputs = on_device(self._first, backend)
        self._recorded = record_step(partial(advance, self.model, self._inputs), backend)

    def begin(self) -> None:
        """Back to the first step."""
        for name, tensor in self._inputs.items():
            tensor.copy_(self._first[name])

    def run(self, steps: int) -> Tensor:
        """So many steps; returns the last tokens."""
        replay = self._recorded.replay
        for _ in range(steps):
            replay()
        return self._inputs[self.model.tokens]


def advance(model: Model, inputs: Rows) -> None:
    """One step in place: the tokens that it draws are the next one's, and the rest moves on."""
    inputs[model.tokens].copy_(model.step(inputs))
    for name, by in model.moves.items():
        inputs[name].add_(by)


@attrs.define(eq=False)
class Served:
    """Each step through a runtime. The host tensors of all `steps` are made beforehand: making them is the engine's."""

    model: Model
    rows: int
    runtime: GraphRuntime
    steps: int
    _passed: list[dict[str, Any]] = attrs.field(init=False)
    _first: Tensor = attrs.field(init=False)
    _tokens: Tensor = attrs.field(init=False)
    _at: int = 0

    def __attrs_post_init__(self) -> None:
        first, backend = self.model.start(self.rows), self.model.backend
        self._first = on_device({"tokens": first.pop(self.model.tokens)}, backend)["tokens"]
        self._passed = [
            {name: _pinned(tensor + self.model.moves.get(name, 0) * at, backend) for name, tensor in first.items()}
            for at in range(self.steps)
        ]
        self.begin()

    def begin(self) -> None:
        """Back to the first step."""
        self._tokens, self._at = self._first, 0

    def run(self, steps: int) -> Tensor:
        """So many steps; returns the last tokens."""
        runtime, rows, tokens, name = self.runtime, self.rows, self._tokens, self.model.tokens
        for passed in self._passed[self._at : self._at + steps]:
            passed[name] = tokens
            tokens = runtime(rows=rows, **passed)
        self._tokens, self._at = tokens, self._at + steps
        return tokens


def _pinned(tensor: Tensor, backend: Backend) -> Tensor:
    pinned = backend.pin(tensor.shape, tensor.dtype)
    pinned.copy_(tensor)
    return pinned
