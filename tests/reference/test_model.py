"""The decoder against a slow dense one in float64 without pages, batches or masks, and what padding may not change."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tsgraph.errors import BadBatch
from tsgraph.reference.cache import PagedCache
from tsgraph.reference.model import Decoder, DecoderConfig, hidden_keys

PAGE = 4
SMALL = DecoderConfig(vocabulary=50, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=40)
CONFIGS = {
    "grouped": SMALL,
    "untied": attrs.evolve(SMALL, tied=False),
    "one key-value head": attrs.evolve(SMALL, kv_heads=1),
    "full heads": attrs.evolve(SMALL, kv_heads=4, width=48),
}


def dense_logits(model: Decoder, tokens: list[int]) -> Tensor:
    """Logits after each token, [tokens, vocabulary], computed token by token and head by head in float64."""
    c, w = model.config, {name: value.double() for name, value in model.named_parameters()}
    head = w["embedding"] if c.tied else w["head"]
    x = [w["embedding"][token] for token in tokens]
    for layer in range(c.layers):
        block = {name: w[f"blocks.{layer}.{name}"] for name, _ in model.blocks[layer].named_parameters()}
        x = _dense_attention(x, block, c)
        x = [each + _dense_mlp(_rms(each, block["mlp_norm"], c), block, c) for each in x]
    return torch.stack([head @ _rms(each, w["norm"], c) for each in x])


def _dense_attention(x: list[Tensor], block: dict[str, Tensor], c: DecoderConfig) -> list[Tensor]:
    heads = [(block["qkv"] @ _rms(each, block["attention_norm"], c)).view(-1, c.head_dim) for each in x]
    out = []
    for t, each in enumerate(x):
        seen = [_dense_head(heads, t, head, c) for head in range(c.heads)]
        out.append(each + block["out"] @ torch.cat(seen))
    return out


def _dense_head(heads: list[Tensor], t: int, head: int, c: DecoderConfig) -> Tensor:
    shared = head // (c.heads // c.kv_heads)
    query = _turn(heads[t][head], t, c)
    keys = torch.stack([_turn(heads[s][c.heads + shared], s, c) for s in range(t + 1)])
    values = torch.stack([heads[s][c.heads + c.kv_heads + shared] for s in range(t + 1)])
    return (keys @ query / math.sqrt(c.head_dim)).softmax(0) @ values


def _turn(x: Tensor, position: int, c: DecoderConfig) -> Tensor:
    """Rotary position: number i and number i + d/2 are one complex number, turned by position * theta^(-2i/d)."""
    half = c.head_dim // 2
    angle = position * c.rope_theta ** (-torch.arange(half).double() * 2 / c.head_dim)
    turned = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag))


def _rms(x: Tensor, weight: Tensor, c: DecoderConfig) -> Tensor:
    return x / (x.pow(2).mean() + c.norm_eps).sqrt() * weight


def _dense_mlp(x: Tensor, block: dict[str, Tensor], c: DecoderConfig) -> Tensor:
    gate, up = (block["gate_up"] @ x).tensor_split(2)
    return block["down"] @ (gate / (1.0 + torch.exp(-gate)) * up)


@attrs.define(slots=False)
class Rows:
    """Sequences in a cache, each on pages of its own that are scattered on purpose; page 0 is the dummy."""

    model: Decoder
    width: int = 6
    most: int = 8

    def __attrs_post_init__(self) -> None:
        c = self.model.config
        self.cache = PagedCache.empty(
            pages=1 + self.width * self.most, layers=c.layers, page_size=PAGE, kv_heads=c.kv_heads, head_dim=c.head_dim
        )
        pages = torch.randperm(self.width * self.most, generator=torch.Generator().manual_seed(1)) + 1
        self.tables = pages.view(self.most, self.width).int()

    def slot(self, row: int, position: int) -> int:
        """Where the token at `position` of `row` lies."""
        return int(self.tables[row, position // PAGE]) * PAGE + position % PAGE

    def run(self, rows: list[int], tokens: list[list[int]], start: list[int], pads: int = 0) -> Tensor:
        """Logits of `rows` reading `tokens` from position `start` on, with so many pad rows behind them."""
        spans = [range(s, s + len(each)) for s, each in zip(start, tokens, strict=True)]
        positions = [p for span in spans for p in span]
        slots = [self.slot(row, p) for row, span in zip(rows, spans, strict=True) for p in span]
        tail = [0] * pads
        dummy = torch.zeros(pads, self.width, dtype=torch.int32)
        with torch.inference_mode():
            logits: Tensor = self.model(
                torch.tensor([t for each in tokens for t in each] + [1] * pads, dtype=torch.int32),
                torch.tensor(positions + tail),
                torch.tensor(slots + tail, dtype=torch.int32),
                torch.tensor([span.stop for span in spans] + [1] * pads, dtype=torch.int32),
                torch.cat((self.tables[rows], dummy)),
                self.cache,
            )
        return logits


def _assert_close(expected: Tensor, actual: Tensor) -> None:
    """Logits are of the order of 1; float32 rounds them at about 1e-6, and anything wrong moves them by far more."""
    torch.testing.assert_close(expected.float(), actual, atol=2e-5, rtol=0)


def _tokens(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SMALL.vocabulary, (count,), generator=generator).tolist()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_prefill_equals_the_dense_decoder(config: DecoderConfig):
    """A prompt in one step gives the dense decoder's logits after its last token."""
    model, tokens = Decoder(config, seed=3), _tokens(0, 11)
    _assert_close(dense_logits(model, tokens)[-1:], Rows(model).run([2], [tokens], [0]))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_decode_equals_the_dense_decoder(config: DecoderConfig):
    """Token by token over a growing cache, every step gives the dense decoder's logits at that place."""
    model, tokens = Decoder(config, seed=4), _tokens(1, 9)
    rows = Rows(model)
    stepwise = torch.cat([rows.run([0], [[token]], [place]) for place, token in enumerate(tokens)])
    _assert_close(dense_logits(model, tokens), stepwise)


@given(st.lists(st.integers(1, 15), min_size=1, max_size=6), st.integers(0, 2**20))
@settings(max_examples=20)
def test_prefill_then_batched_decode_equals_prefill(lengths: list[int], seed: int):
    """Rows of unlike lengths decoding side by side get the logits that prefilling each alone would give."""
    model = Decoder(SMALL, seed=5)
    together, alone = Rows(model), Rows(model)
    texts = [_tokens(seed + row, length + 3) for row, length in enumerate(lengths)]
    for row, length in enumerate(lengths):
        together.run([row], [texts[row][:length]], [0])
    for more in range(3):
        at = [length + more for length in lengths]
        decoded = together.run(list(range(len(lengths))), [[text[p]] for text, p in zip(texts, at, strict=True)], at)
        prefilled = [alone.run([row], [texts[row][: p + 1]], [0])[0] for row, p in enumerate(at)]
        _assert_close(torch.stack(prefilled), decoded)


def _decode_16(live: int, dirt: float) -> Tensor:
    """Logits of `live` rows in a step of 16, with `dirt` in every slot that no live row may see."""
    rows = Rows(Decoder(SMALL, seed=6), most=16)
    rows.cache.keys.fill_(dirt)
    rows.cache.values.fill_(dirt)
    for row in range(live):
        rows.run([row], [_tokens(row, 3 + row)], [0])
    at = [3 + row for row in range(live)]
    return rows.run(list(range(live)), [[7 + row] for row in range(live)], at, pads=16 - live)


def test_pad_rows_are_finite():
    """Pad rows (length 1, position 0, dummy page) give numbers, not NaN."""
    assert torch.isfinite(_decode_16(5, dirt=0.0)).all()


def test_pad_rows_never_change_live_rows():
    """At one shape, live rows' logits are bitwise the same whether the rows behind them are pads or live."""
    assert torch.equal(_decode_16(8, dirt=0.0)[:5], _decode_16(5, dirt=0.0)[:5])


def test_what_is_masked_never_matters():
    """Stale keys and values, of the dummy page and beyond a row's length, change no bit of a live row."""
    assert torch.equal(_decode_16(5, dirt=0.0)[:5], _decode_16(5, dirt=1e4)[:5])


def test_a_token_sees_its_row_up_to_itself():
    """Hidden are the keys after a token, and those beyond its row's length, whichever is less."""
    hidden = hidden_keys(torch.tensor([[1, 2], [3, 4]]), torch.tensor([3, 2]), 5)
    visible = [[token.logical_not().nonzero().flatten().tolist() for token in row] for row in hidden]
    assert [[[0, 1], [0, 1, 2]], [[0, 1], [0, 1]]] == visible


def test_rerunning_a_decode_step_changes_nothing():
    """A step reads tokens before its own and rewrites its own keys and values alike: a second run changes no bit."""
    rows = Rows(Decoder(SMALL, seed=7))
    rows.run([0], [_tokens(0, 6)], [0])
    first, cache = rows.run([0], [[9]], [6]), rows.cache.keys.clone()
    assert torch.equal(first, rows.run([0], [[9]], [6]))
    assert torch.equal(cache, rows.cache.keys)


def test_several_tokens_a_row():
    """Rows may carry two tokens each, side by side: the logits are those after each row's second."""
    model = Decoder(SMALL, seed=8)
    both, single = Rows(model), Rows(model)
    texts = [_tokens(1, 6), _tokens(2, 4)]
    for row, text in enumerate(texts):
        both.run([row], [text[:-2]], [0])
    logits = both.run([0, 1], [text[-2:] for text in texts], [len(text) - 2 for text in texts])
    expected = torch.cat([single.run([row], [text], [0]) for row, text in enumerate(texts)])
    _assert_close(expected, logits)


def test_uneven_rows_are_refused():
    """Tokens that rows cannot share evenly are refused before anything is written."""
    rows = Rows(Decoder(SMALL))
    with pytest.raises(BadBatch, match="3 tokens cannot be shared evenly by 2 rows"):
        rows.run([0, 1], [[1, 2], [3]], [0, 0])
    assert not rows.cache.keys.any()


def test_shapes_follow_from_shapes_alone():
    """The forward runs on fake tensors, which have no values: nothing in it reads a value back or sizes by one."""
    with FakeTensorMode():
        rows = PagedCache.empty(pages=5, layers=2, page_size=PAGE, kv_heads=2, head_dim=8)
        model = Decoder(SMALL)
        model.forward(
            *(torch.zeros(3, dtype=torch.int32) for _ in range(4)), torch.zeros(3, 2, dtype=torch.int32), rows
        )


def test_weights_come_from_the_seed_alone():
    """The same seed gives the same weights, another seed others, and the global random state is not moved."""
    torch.manual_seed(0)
    first = Decoder(SMALL, seed=1).state_dict()
    drawn = torch.rand(3)
    again, other = Decoder(SMALL, seed=1).state_dict(), Decoder(SMALL, seed=2).state_dict()
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), drawn)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["blocks.0.qkv"], other["blocks.0.qkv"])


def test_tied_embeddings_are_one_tensor():
    """Tied, the head is the embedding itself; untied, it has weights of its own."""
    tied, untied = Decoder(SMALL), Decoder(CONFIGS["untied"])
    assert tied.head is tied.embedding
    assert not torch.equal(untied.head, untied.embedding)


def test_bfloat16_stays_close():
    """The same weights in bfloat16 give about the same logits, in float32."""
    model, tokens = Decoder(SMALL, seed=3), _tokens(0, 11)
    exact = Rows(model).run([0], [tokens], [0])
    rows = Rows(model.to(torch.bfloat16))
    rows.cache = PagedCache(rows.cache.keys.bfloat16(), rows.cache.values.bfloat16())
    coarse = rows.run([0], [tokens], [0])
    assert torch.float32 == coarse.dtype
    torch.testing.assert_close(exact, coarse, atol=0.2, rtol=0.1)


@pytest.mark.parametrize(
    ("wrong", "says"), [({"kv_heads": 3}, "cannot share 3"), ({"head_dim": 7}, "even"), ({"layers": 0}, "layers")]
)
def test_impossible_shapes_are_refused(wrong: dict[str, Any], says: str):
    """A shape that no decoder can have is refused where it is written down."""
    with pytest.raises(ValueError, match=says):
        attrs.evolve(SMALL, **wrong)
