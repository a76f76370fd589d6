"""Decode throughput: all three ways draw the same tokens, with the reference engine and with a stand-in for a Llama."""

from __future__ import annotations

import argparse
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.bench import decode
from tsgraph.bench.__main__ import main
from tsgraph.bench.decoding import Eager, Model, Replayed, Served
from tsgraph.bench.models import PROMPT, RowCache, llama, reference, transformers_llama
from tsgraph.bench.page import SHEETS
from tsgraph.errors import CallerError
from tsgraph.reference import DecoderConfig, EngineConfig

CONTEXT = PROMPT + 9


class SmallLlama(nn.Module):
    """One layer of attention with the signature of transformers' Llama: what the benchmark asks of such a model."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.config = SimpleNamespace(num_hidden_layers=1, num_key_value_heads=2, head_dim=4, vocab_size=17)
        self.embedding = nn.Parameter(torch.randn(17, 8, generator=generator), requires_grad=False)
        self.head = nn.Parameter(torch.randn(8, 17, generator=generator), requires_grad=False)
        self.turns = nn.Parameter(torch.randn(CONTEXT, 8, generator=generator), requires_grad=False)

    def forward(self, *, input_ids, position_ids, attention_mask, past_key_values, use_cache):
        x = self.embedding[input_ids] + self.turns[position_ids]
        heads = x.view(len(x), 1, 2, 4).transpose(1, 2)
        keys, values = past_key_values.update(heads, heads + 1, 0)
        seen = nn.functional.scaled_dot_product_attention(heads, keys, values, attn_mask=attention_mask)
        logits = seen.transpose(1, 2).reshape(len(x), 1, 8) @ self.head
        return SimpleNamespace(logits=logits)


def _reference(backend: EmulatedBackend) -> Model:
    shape = DecoderConfig(layers=1, width=16, heads=2, kv_heads=1, head_dim=8, hidden=16)
    return reference(backend, 3, CONTEXT, EngineConfig(decoder=shape))


def _llama(backend: EmulatedBackend) -> Model:
    return llama("llama-1b", backend, 3, CONTEXT, lambda *_: SmallLlama())


@pytest.mark.parametrize("make", [_reference, _llama], ids=["reference", "llama"])
def test_all_ways_draw_the_same_tokens(make, uncollected):
    """Eager, a graph that feeds itself and a runtime give the same tokens step by step, and again from the start."""
    model = make(EmulatedBackend())
    runtime = model.runtime((1, 3))
    for rows in (1, 3):
        ways = [Eager(model, rows), Replayed(model, rows), Served(model, rows, runtime, 8)]
        for _ in range(2):
            drawn = []
            for way in ways:
                way.begin()
                drawn.append([way.run(steps).tolist() for steps in (1, 1, 5)])
            assert drawn[0] == drawn[1] == drawn[2]
        assert len({tuple(tokens) for tokens in drawn[0]}) > 1


def test_a_runtime_serves_each_step_from_its_slot(uncollected):
    """No step of the loop is served eagerly."""
    model = _llama(EmulatedBackend())
    runtime = model.runtime((3,))
    Served(model, 3, runtime, 4).run(4)

    assert (4, {}) == (runtime.counters()["replays"], runtime.counters()["eager"])


def test_a_row_sees_its_own_positions_alone():
    """What lies beyond a row's position is hidden from it, whatever other rows have."""
    cache = RowCache(1, 2, 1, 4, 1, torch.zeros(1))

    assert [[1, 1, 0, 0], [1, 1, 1, 1]] == cache.visible(torch.tensor([1, 3]))[:, 0, 0].int().tolist()


def test_measures_throughput_of_each_model_and_batch(bench, capsys, monkeypatch):
    """A case for each, with what all three ways take; a model that cannot be made is told and left out."""
    monkeypatch.setattr(decode, "reference", lambda backend, rows, context: _reference(backend))
    words = ["--models", "reference,llama-1b", "--batches", "1,3", "--steps", "4", "--turns", "2"]
    report = bench("decode", *words, "--backend", "emulated")

    assert [("reference", 1), ("reference", 3)] == [(case["model"], case["rows"]) for case in report.data["cases"]]
    assert all(case["same tokens"] == 1 for case in report.data["cases"])
    assert "llama-1b is too large for this machine's CPU" in capsys.readouterr().err
    (sheet,) = SHEETS["decode"](report.data)
    assert [("reference", "1", "100%"), ("reference", "3", "100%")] == [(*row[:2], row[-1]) for row in sheet.rows]


def test_a_model_that_is_not_captured_is_an_error(uncollected):
    """Figures of eager steps must not pass for those of replays."""
    model = _llama(EmulatedBackend())
    runtime = model.runtime((1,))
    runtime.invalidate("for the test")
    args = argparse.Namespace(batches=(1,), steps=2, turns=1)
    unready = Model(
        **{name: getattr(model, name) for name in ("name", "step", "tokens", "moves", "start", "backend")},
        runtime=lambda sizes: runtime,
    )

    with pytest.raises(RuntimeError, match=r"llama-1b was not captured: .*for the test"):
        list(decode._measure_model(unready, args, lambda _: None))


def test_says_what_is_missing_without_transformers(monkeypatch):
    """The error names the package, and the option that does without."""
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(CallerError, match=r"(?s)not installed.*--models reference"):
        transformers_llama("llama-1b", EmulatedBackend())


def test_an_unknown_model_is_told(capsys):
    """It says which there are."""
    with pytest.raises(SystemExit):
        main(["decode", "--models", "llama-9b"])

    assert "there are reference, llama-1b, llama-8b" in capsys.readouterr().err
