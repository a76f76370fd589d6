"""A Llama-shaped decoder in plain PyTorch: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

One forward serves prefill and decode, and may be recorded into a CUDA graph: shapes follow from shapes alone, nothing
is read back to the host, and every new tensor is made on the device. All rows of a batch carry equally many tokens,
side by side: one in a decode step, the whole prompt in a prefill of one request.
"""

from __future__ import annotations

import attrs
import torch
import torch.nn.functional as F  # noqa: N812 -- its customary name
from attrs.validators import ge, gt, instance_of
from torch import Tensor, nn

from tsgraph.errors import BadBatch
from tsgraph.reference.cache import PagedCache, Slots
from tsgraph.reference.recurrent import Passage
from tsgraph.reference.text import VOCABULARY

_COUNT = [instance_of(int), ge(1)]


@attrs.frozen(kw_only=True)
class DecoderConfig:
    """The shape of a decoder. The default is tiny: about 0.8 million parameters over byte tokens.

    `recurrent` are the layers that keep a state per request instead of keys and values.
    """

    vocabulary: int = attrs.field(default=VOCABULARY, validator=_COUNT)
    width: int = attrs.field(default=128, validator=_COUNT)
    layers: int = attrs.field(default=4, validator=_COUNT)
    heads: int = attrs.field(default=4, validator=_COUNT)
    kv_heads: int = attrs.field(default=2, validator=_COUNT)
    head_dim: int = attrs.field(default=32, validator=_COUNT)
    hidden: int = attrs.field(default=352, validator=_COUNT)
    tied: bool = attrs.field(default=True, validator=instance_of(bool))
    recurrent: tuple[int, ...] = attrs.field(default=(), validator=instance_of(tuple))
    rope_theta: float = attrs.field(default=10_000.0, validator=gt(0.0))
    norm_eps: float = attrs.field(default=1e-5, validator=gt(0.0))

    @property
    def attending(self) -> int:
        """How many layers have keys and values in the cache."""
        return self.layers - len(self.recurrent)

    @head_dim.validator
    def _even(self, _: object, value: int) -> None:
        if value % 2:
            raise ValueError(f"head_dim is {value}; rotary positions turn pairs, so it must be even")

    @recurrent.validator
    def _are_layers(self, _: object, value: tuple[int, ...]) -> None:
        if not all(layer in range(self.layers) for layer in value):
            raise ValueError(f"recurrent layers {value}: there are only the layers 0 to {self.layers - 1}")

    @kv_heads.validator
    def _divides(self, _: object, value: int) -> None:
        if self.heads % value:
            raise ValueError(f"{self.heads} heads cannot share {value} key-value heads evenly")


class Decoder(nn.Module):
    """Tokens to logits. Weights are drawn from `seed` alone; the global random state is neither read nor moved."""

    frequencies: Tensor

    def __init__(
        self,
        config: DecoderConfig,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.config = config
        generator = torch.Generator(device).manual_seed(seed)
        self.embedding = _matrix(config.vocabulary, config.width, generator, dtype)
        kinds = (_RecurrentBlock if layer in config.recurrent else _Block for layer in range(config.layers))
        self.blocks = nn.ModuleList(kind(config, generator, dtype) for kind in kinds)
        self._numbers = _numbers(config)
        self.norm = _ones(config.width, generator, dtype)
        self.head = self.embedding if config.tied else _matrix(config.vocabulary, config.width, generator, dtype)
        pairs = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32)
        self.register_buffer("frequencies", config.rope_theta ** (-pairs / config.head_dim), persistent=False)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        lengths: Tensor,
        tables: Tensor,
        cache: PagedCache,
        *,
        passage: Passage | None = None,
        each: bool = False,
    ) -> Tensor:
        """Logits of the token after each row's last one, [rows, vocabulary] in float32.

        With `each`, of the token after every one, [rows * n, vocabulary].

        `tokens`, `positions` and `slots` (where in the cache each token's key and value go) are [rows * n] integers,
        row by row; `lengths` [rows] are the tokens of each row with these; `tables` [rows, pages] the pages of each
        row, in order. `passage` takes the recurrent layers through their states. A token sees the tokens of its row
        that are not after it. Raises: BadBatch if n is no integer.
        """
        rows = _rows(lengths, tokens)
        here = _Here(
            rotation=self._rotation(positions),
            slots=cache.locate(slots),
            tables=tables,
            hidden=hidden_keys(positions.view(rows, -1), lengths, tables.shape[1] * cache.page_size),
            cache=cache,
            passage=passage,
        )
        x = F.embedding(tokens, self.embedding)
        for number, block in zip(self._numbers, self.blocks, strict=True):
            x = block(x, number, here)
        asked = x if each else x.view(rows, -1, self.config.width)[:, -1]
        return F.linear(_norm(asked, self.norm, self.config), self.head).float()

    def shortened(self, layers: tuple[int, ...]) -> Decoder:
        """A decoder of only these `layers`, over the same weights: a smaller one that often guesses alike."""
        recurrent = tuple(place for place, layer in enumerate(layers) if layer in self.config.recurrent)
        config = attrs.evolve(self.config, layers=len(layers), recurrent=recurrent)
        short = Decoder(config, device=self.embedding.device, dtype=self.embedding.dtype)
        short.blocks = nn.ModuleList(self.blocks[layer] for layer in layers)
        for name in ("embedding", "norm", "head", "frequencies"):
            setattr(short, name, getattr(self, name))
        return short

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[:, None, None].float() * self.frequencies
        return angles.cos(), angles.sin()


@attrs.frozen(eq=False)
class _Here:
    """What all layers share in one forward. `hidden` [rows, n, keys] is true where a token must not look."""

    rotation: tuple[Tensor, Tensor]
    slots: Slots
    tables: Tensor
    hidden: Tensor
    cache: PagedCache
    passage: Passage | None

    @property
    def rows(self) -> int:
        return len(self.tables)


def _numbers(config: DecoderConfig) -> list[int]:
    """Each layer's number among those of its kind: its place in the cache, or among the states."""
    return [
        sum((other in config.recurrent) == (layer in config.recurrent) for other in range(layer))
        for layer in range(config.layers)
    ]


class _Block(nn.Module):
    def __init__(self, config: DecoderConfig, generator: torch.Generator, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.attention_norm = _ones(config.width, generator, dtype)
        self.qkv = _matrix(q + 2 * kv, config.width, generator, dtype)
        self.out = _matrix(config.width, q, generator, dtype)
        self.mlp_norm = _ones(config.width, generator, dtype)
        self.gate_up = _matrix(2 * config.hidden, config.width, generator, dtype)
        self.down = _matrix(config.width, config.hidden, generator, dtype)

    def forward(self, x: Tensor, number: int, here: _Here) -> Tensor:
        x = x + self._mix(_norm(x, self.attention_norm, self.config), number, here)
        return x + self._mlp(_norm(x, self.mlp_norm, self.config))

    def _mix(self, x: Tensor, number: int, here: _Here) -> Tensor:
        c, cache = self.config, here.cache
        heads = F.linear(x, self.qkv).view(len(x), -1, c.head_dim)
        queries, keys, values = heads.tensor_split((c.heads, c.heads + c.kv_heads), dim=1)
        cache.write(number, here.slots, _rotate(keys, here.rotation), values)
        seen = attend(_rotate(queries, here.rotation), *cache.read(number, here.tables), here.hidden)
        return F.linear(seen, self.out)

    def _mlp(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, self.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.down)


class _RecurrentBlock(_Block):
    """A block whose tokens see a decaying sum of those before them, in a state of the request's own."""

    def __init__(self, config: DecoderConfig, generator: torch.Generator, dtype: torch.dtype) -> None:
        super().__init__(config, generator, dtype)
        self.decay = _matrix(config.kv_heads, config.width, generator, dtype)

    def _mix(self, x: Tensor, number: int, here: _Here) -> Tensor:
        c, passage = self.config, here.passage
        if passage is None:
            raise BadBatch("a recurrent layer needs a passage through its states", hint="pass passage=…")
        heads = F.linear(x, self.qkv).view(here.rows, -1, c.heads + 2 * c.kv_heads, c.head_dim).float()
        queries, keys, values = heads.tensor_split((c.heads, c.heads + c.kv_heads), dim=2)
        fades = F.linear(x, self.decay).view(here.rows, -1, c.kv_heads).float().sigmoid()
        seen = passage.run(number, _unit(queries), _unit(keys), values, fades)
        return F.linear(seen.reshape(len(x), -1).to(x.dtype), self.out)


def attend(queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """Attention of every token over its row's whole table, [tokens, heads * head_dim].

    `queries` [tokens, heads, d]; `keys`, `values` [rows, keys, kv_heads, d]; `hidden` [rows, tokens of a row, keys].
    The width is static and the mask does the rest, so that one recording serves every length. Softmax is in float32.
    """
    rows, _, kv_heads, d = keys.shape
    grouped = queries.view(rows, -1, kv_heads, queries.shape[1] // kv_heads, d)
    scores = torch.einsum("rthgd,rshd->rhgts", grouped, keys).float() * d**-0.5
    weights = scores.masked_fill(hidden[:, None, None], float("-inf")).softmax(-1).to(values.dtype)
    return torch.einsum("rhgts,rshd->rthgd", weights, values).reshape(len(queries), -1)


def hidden_keys(positions: Tensor, lengths: Tensor, keys: int) -> Tensor:
    """Keys a token must not look at, [rows, tokens of a row, keys] bool: those after it or beyond its row's length.

    A pad row (position 0, length 1) sees one key, so that its softmax is a number.
    """
    key = torch.arange(keys, device=positions.device)
    return (key > positions[:, :, None]) | (key >= lengths[:, None, None])


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotation
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


def _norm(x: Tensor, weight: Tensor, config: DecoderConfig) -> Tensor:
    return F.rms_norm(x, (config.width,), weight, config.norm_eps)


def _rows(lengths: Tensor, tokens: Tensor) -> int:
    rows = len(lengths)
    if not rows or len(tokens) % rows:
        what = f"{len(tokens)} tokens cannot be shared evenly by {rows} rows"
        raise BadBatch(what, hint="give every row equally many tokens; prefill one request at a time")
    return rows


def _matrix(outputs: int, inputs: int, generator: torch.Generator, dtype: torch.dtype) -> nn.Parameter:
    """Weights that keep the scale of what goes through them, so that a deep random decoder still has sharp logits."""
    weight = torch.empty(outputs, inputs, device=generator.device, dtype=dtype)
    return nn.Parameter(weight.normal_(0.0, inputs**-0.5, generator=generator), requires_grad=False)


def _ones(width: int, generator: torch.Generator, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.ones(width, device=generator.device, dtype=dtype), requires_grad=False)
