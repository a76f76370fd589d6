"""The models of the decode benchmark: tsgraph's reference engine, and Llamas of transformers with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from tsgraph.bench.decoding import Model
from tsgraph.bench.decoding import Rows as Inputs
from tsgraph.bench.rows import random_rows
from tsgraph.buffers.contract import Rows, State
from tsgraph.errors import CallerError
from tsgraph.keys import Batch, Mode
from tsgraph.protocols.backend import Backend
from tsgraph.reference import EngineConfig, Parts
from tsgraph.runtime import GraphRuntime

PROMPT = 32
"""Where requests stand when decoding begins."""


# -- the reference engine ---------------------------------------------------------------------------------------------


def reference(backend: Backend, rows: int, context: int, config: EngineConfig | None = None) -> Model:
    """The reference engine's decode step, by its shipped spec. Rows draw at random, each from its own seed."""
    config = attrs.evolve(
        config or EngineConfig(),
        rows=rows,
        context=context,
        pages=rows * -(-context // 16) + 1,
        device=str(backend.device),
    )
    parts = Parts.build(config)
    backend.adopt([*parts.model.parameters(), *parts.model.buffers(), parts.cache.keys, parts.cache.values])

    def draw(batch: Batch) -> Tensor:
        return parts.step(batch)["tokens"].to(torch.int32)

    def runtime(sizes: tuple[int, ...]) -> GraphRuntime:
        made = GraphRuntime(
            _capped(config, sizes),
            draw,
            geometry=parts.geometry,
            sizes=sizes,
            outputs="request",
            modules=[parts.model],
            state=parts.states,
            backend=backend,
            observers=(),
        )
        made.capture()
        return made

    return Model(
        name="reference",
        step=lambda inputs: draw(_batch(inputs)),
        tokens="input_ids",
        moves={"positions": 1, "cache_locations": 1, "seq_lens": 1},
        start=lambda rows: random_rows(config, rows, position=PROMPT, temperature=1.0),
        runtime=runtime,
        backend=backend,
    )


def _batch(inputs: Inputs) -> Batch:
    rows = len(inputs["seq_lens"])
    return Batch(rows, rows, Mode.DECODE, "default", inputs)


def _capped(config: EngineConfig, sizes: tuple[int, ...]) -> Any:
    from tsgraph.spec.load import load_spec

    spec = load_spec(config.spec)
    return attrs.evolve(spec, sizes=attrs.evolve(spec.sizes, cap=max(spec.sizes.cap, *sizes)))


# -- Llamas -----------------------------------------------------------------------------------------------------------

SHAPES: Mapping[str, Mapping[str, int]] = {
    "llama-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128_256,
    },
    "llama-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128_256,
    },
}
"""Those of Llama 3.2 1B and Llama 3.1 8B."""


class RowCache(nn.Module):
    """Keys and values of every layer, each [rows, heads, context, head_dim], a row for each request.

    A graph of fewer rows reads and writes the first ones.
    """

    numbers: Tensor
    columns: Tensor

    def __init__(self, layers: int, rows: int, heads: int, context: int, head_dim: int, like: Tensor) -> None:
        super().__init__()
        shape = (rows, heads, context, head_dim)
        self.keys = [torch.zeros(shape, device=like.device, dtype=like.dtype) for _ in range(layers)]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.register_buffer("numbers", torch.arange(rows, device=like.device), persistent=False)
        self.register_buffer("columns", torch.arange(context, device=like.device), persistent=False)

    def visible(self, positions: Tensor) -> Tensor:
        """Which columns each row may look at, [rows, 1, 1, context] bool."""
        return (self.columns <= positions[:, None])[:, None, None]

    def tensors(self) -> list[Tensor]:
        """All of its memory."""
        return [*self.keys, *self.values, self.numbers, self.columns]

    def states(self) -> dict[str, State]:
        """What steps write, to be restored after warm-ups: every row may be a request's."""
        held = {"keys": self.keys, "values": self.values}
        return {
            f"{name} {layer}": State(tensor, restore=True)
            for name, tensors in held.items()
            for layer, tensor in enumerate(tensors)
        }


@attrs.frozen(eq=False)
class _AtPositions:
    """The cache in one step, whose rows are at `positions`. Attention layers of transformers ask it for `update`."""

    cache: RowCache
    positions: Tensor

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Put this step's keys and values [rows, heads, 1, d] in place; returns all of these rows."""
        rows = len(keys)
        places = (self.cache.numbers[:rows], slice(None), self.positions)
        held, kept = self.cache.keys[layer][:rows], self.cache.values[layer][:rows]
        held[places] = keys[:, :, 0]
        kept[places] = values[:, :, 0]
        return held, kept


def llama(
    name: str, backend: Backend, rows: int, context: int, make: Callable[[str, Backend], nn.Module] | None = None
) -> Model:
    """A Llama of `SHAPES` with random weights, in bfloat16 on a GPU. `make` builds the module (None: transformers).

    Raises: CallerError where transformers is not installed.
    """
    module = (make or transformers_llama)(name, backend)
    config: Any = module.config
    layers, heads, width = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
    cache = RowCache(layers, rows, heads, context, width, next(module.parameters()))
    backend.adopt([*module.parameters(), *module.buffers(), *cache.tensors()])

    def draw(ids: Tensor, positions: Tensor) -> Tensor:
        returned = module(
            input_ids=ids[:, None],
            position_ids=positions[:, None],
            attention_mask=cache.visible(positions),
            past_key_values=_AtPositions(cache, positions),
            use_cache=True,
        )
        logits: Tensor = returned.logits[:, -1]
        return logits.argmax(-1)

    def runtime(sizes: tuple[int, ...]) -> GraphRuntime:
        made = GraphRuntime.for_step(
            draw,
            inputs={"ids": Rows(torch.int64, pad=0), "positions": Rows(torch.int64, pad=0)},
            sizes=sizes,
            outputs="request",
            modules=[module, cache],
            state=cache.states(),
            backend=backend,
            observers=(),
        )
        made.capture()
        return made

    return Model(
        name=name,
        step=lambda inputs: draw(**inputs),
        tokens="ids",
        moves={"positions": 1},
        start=lambda rows: _first_rows(rows, config.vocab_size),
        runtime=runtime,
        backend=backend,
    )


def _first_rows(rows: int, vocabulary: int) -> Inputs:
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(vocabulary, (rows,), generator=generator)
    return {"ids": ids, "positions": torch.full((rows,), PROMPT)}


def transformers_llama(name: str, backend: Backend, **changes: int) -> nn.Module:
    """The module of transformers, its weights drawn anew. `changes` to its shape make it smaller, say.

    Raises: CallerError where transformers is not installed.
    """
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        hint = "pip install transformers, or leave the Llamas out: --models reference"
        raise CallerError(f"{name} is a model of transformers, which is not installed", hint=hint) from error
    cuda = backend.device.type == "cuda"
    config = transformers.LlamaConfig(**{**SHAPES[name], **changes}, tie_word_embeddings=False)
    dtype = torch.bfloat16 if cuda else torch.float32
    with torch.random.fork_rng(devices=[backend.device.index] if cuda else []), torch.device(backend.device):
        torch.manual_seed(0)
        module: nn.Module = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
    return module.eval().requires_grad_(False)
