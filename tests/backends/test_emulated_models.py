"""Parts of models, recorded once, replayed on new inputs: a decoder with a paged cache, and torch's own modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from tsgraph.backends.emulated import EmulatedBackend

ROWS, PAGES, PAGE, HEADS, WIDTH, VOCABULARY = 3, 8, 4, 2, 8, 11


class Decoder(nn.Module):
    """One attention block over a paged key-value cache, with rotary positions and an MLP."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        size = HEADS * WIDTH
        self.embedding = nn.Embedding(VOCABULARY, size)
        self.norms = nn.ModuleList([nn.RMSNorm(size), nn.LayerNorm(size)])
        self.qkv, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size)
        self.up, self.down, self.head = nn.Linear(size, 32), nn.Linear(32, size), nn.Linear(size, VOCABULARY)
        self.register_buffer("cache", torch.zeros(2, PAGES * PAGE, HEADS, WIDTH))

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, table: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and a sampled token for each row, after its key and value went to its cache slot."""
        x = self.embedding(ids)
        q, k, v = self.qkv(self.norms[0](x)).view(ROWS, 3, HEADS, WIDTH).unbind(1)
        self.cache[0].index_put_((slots,), rotate(k, positions))
        self.cache[1].index_copy_(0, slots, v)
        x = x + self.out(self.attend(rotate(q, positions), positions, table).flatten(1))
        x = x + self.down(functional.silu(self.up(self.norms[1](x))))
        logits = self.head(x)
        return logits, torch.multinomial(logits.softmax(-1), 1, replacement=True).squeeze(1)

    def attend(self, q: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Attention of each row to the tokens of its pages up to its position."""
        places = (table[:, :, None] * PAGE + torch.arange(PAGE, device=table.device)).flatten(1)
        keys, values = self.cache[0][places].transpose(1, 2), self.cache[1][places].transpose(1, 2)
        seen = torch.arange(places.shape[1], device=table.device) <= positions[:, None]
        return functional.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=seen[:, None, None])


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of heads."""
    speeds = 1.0 / (100.0 ** (torch.arange(0, WIDTH, 2, device=x.device).float() / WIDTH))
    angles = (positions[:, None] * speeds).repeat(1, 2)[:, None]
    turned = torch.cat([-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]], -1)
    return x * angles.cos() + turned * angles.sin()


def decode_inputs(step: int) -> list[torch.Tensor]:
    """Ids, positions, cache slots and block table of a decode step: each row has two pages of its own."""
    positions = torch.arange(ROWS) + step
    table = torch.arange(2 * ROWS).view(ROWS, 2)
    slots = table[torch.arange(ROWS), positions // PAGE] * PAGE + positions % PAGE
    return [(positions * 5 + step) % VOCABULARY, positions, slots, table]


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
def test_a_decoder_generates_as_eager(inference: bool) -> None:
    """Five decode steps by replay give the logits, samples and cache of five eager steps, bit for bit."""
    torch.manual_seed(0)
    backend, decoder = EmulatedBackend(), Decoder()
    static = decode_inputs(0)
    backend.adopt([*static, *decoder.parameters(), *decoder.buffers()])
    with torch.inference_mode(inference), torch.no_grad():
        eager = []
        for step in range(5):
            torch.manual_seed(step)
            eager.append([out.clone() for out in decoder(*decode_inputs(step))])
        expected = decoder.cache.clone()
        decoder.cache.zero_()
        with backend.record(backend.pool()) as graph:
            outputs = decoder(*static)
        assert not decoder.cache.any()
        for step in range(5):
            for tensor, value in zip(static, decode_inputs(step), strict=True):
                tensor.copy_(value)
            torch.manual_seed(step)
            graph.replay()
            assert [True, True] == [torch.equal(*pair) for pair in zip(eager[step], outputs, strict=True)]
        assert torch.equal(expected, decoder.cache)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 6)),
    "batch norm": (lambda: nn.BatchNorm1d(4), (6, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (6, 4, 3)),
    "lstm": (lambda: nn.LSTM(4, 8, 2, batch_first=True), (2, 5, 4)),
    "gru": (lambda: nn.GRU(4, 8, batch_first=True), (2, 5, 4)),
    "pooling": (lambda: nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2)), (1, 2, 8, 8)),
    "upsampling": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 4, 4)),
    "dropout": (lambda: nn.Sequential(nn.Dropout(0.3), nn.GELU()), (6, 4)),
    "half": (lambda: nn.Linear(4, 4).to(torch.bfloat16).float(), (6, 4)),
}


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
@pytest.mark.parametrize("name", MODULES)
def test_modules_replay_as_eager(name: str, inference: bool) -> None:
    """Torch's own modules give eager's bits, and change their buffers as eager does."""
    torch.manual_seed(0)
    make, shape = MODULES[name]
    backend, module, x = EmulatedBackend(), make(), torch.randn(shape)
    backend.adopt([x, *module.parameters(), *module.buffers()])
    with torch.inference_mode(inference), torch.no_grad():
        with backend.record(backend.pool()) as graph:
            recorded = leaves(module(x))
        graph.replay()  # the first replay takes another way, since it checks the fake kernels
        before = [buffer.clone() for buffer in module.buffers()]
        x.copy_(torch.randn(shape))
        torch.manual_seed(1)
        graph.replay()
        replayed = [tensor.clone() for tensor in (*recorded, *module.buffers())]
        for buffer, value in zip(module.buffers(), before, strict=True):
            buffer.copy_(value)
        torch.manual_seed(1)
        eager = [*leaves(module(x.clone())), *module.buffers()]
    assert [True] * len(eager) == [torch.equal(*pair) for pair in zip(eager, replayed, strict=True)]


def leaves(outputs: object) -> list[torch.Tensor]:
    """The tensors of a module's outputs."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    return [leaf for each in outputs for leaf in leaves(each)]  # type: ignore[attr-defined]
