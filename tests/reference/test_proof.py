"""The proof finds what it is there to find: each fault is planted in a stand-in's replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from tsgraph.reference import Completion, DecoderConfig, EngineConfig, Parts, ReferenceEngine, Request, Sampling
from tsgraph.reference.proof import ROUNDING, Flip, MarginLog, ReplayProof

CONFIG = EngineConfig(
    decoder=DecoderConfig(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=40), rows=4, pages=9, context=32
)
REQUESTS = [Request(prompt=(256, 5 + i), max_tokens=4, sampling=Sampling(temperature=i / 2, seed=i)) for i in range(3)]
Make = Callable[..., Any]


def prove(make: Make, spoil: Callable[[Parts, dict[str, Tensor]], None] | None = None) -> ReplayProof:
    """The proof over a small run whose replays are spoiled."""
    options = {} if spoil is None else {"spoil": spoil}
    engine: ReferenceEngine[Any] = ReferenceEngine(CONFIG, lambda parts: make(parts, **options))
    proof = ReplayProof(engine.runtime, engine.parts)
    engine.generate(REQUESTS, proof)
    return proof


def test_a_right_replay_is_proved(padded_runtime: Make):
    """Steps padded as a slot would pad them equal eager, and shapes differ by rounding only."""
    proof = prove(padded_runtime)
    assert proof.holds
    assert 3 == proof.steps
    assert 0 <= proof.furthest < ROUNDING


def test_eager_steps_prove_nothing(eager_runtime: Make):
    """A run without a replay has zero proved steps, so that nobody takes it for a proof."""
    assert 0 == prove(eager_runtime).steps


def _one_bit(parts: Parts, outputs: dict[str, Tensor]) -> None:
    logits = outputs["logits"]
    logits[0, 0] = torch.nextafter(logits[0, 0], torch.tensor(9.0))


def _off(parts: Parts, outputs: dict[str, Tensor]) -> None:
    outputs["logits"] += 2 * ROUNDING


def _not_a_number(parts: Parts, outputs: dict[str, Tensor]) -> None:
    outputs["logits"][0] = math.nan


def _wrong_token(parts: Parts, outputs: dict[str, Tensor]) -> None:
    outputs["tokens"][0] ^= 1


def _wrong_logprob(parts: Parts, outputs: dict[str, Tensor]) -> None:
    outputs["logprobs"][-1] -= 1


def _lost_write(parts: Parts, outputs: dict[str, Tensor]) -> None:
    parts.cache.keys[:, :, 2] = 0


FAULTS = {
    "one bit of a logit": (_one_bit, "logits differ from eager at the padded shape"),
    "all logits off": (_off, "off eager at the live shape, beyond"),
    "not a number": (_not_a_number, "logits are nan off eager"),
    "a token": (_wrong_token, "tokens differ from eager at the padded shape"),
    "a logprob": (_wrong_logprob, "logprobs differ from eager at the padded shape"),
    "a key lost": (_lost_write, "the keys differ"),
}


@pytest.mark.parametrize(("spoil", "says"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(padded_runtime: Make, spoil: Callable[[Parts, dict[str, Tensor]], None], says: str):
    """Whatever a replay gets wrong, the proof fails and names it."""
    proof = prove(padded_runtime, spoil)
    assert not proof.holds
    assert any(says in fault for fault in proof.faults)


def test_a_wrong_token_is_no_rounding(padded_runtime: Make):
    """A token that rounding cannot explain is a flip beyond the margin."""
    assert not all(flip.excused for flip in prove(padded_runtime, _wrong_token).flips)


@pytest.mark.parametrize(
    ("margin", "excused"), [(0.0, True), (2 * ROUNDING, True), (2.1 * ROUNDING, False), (math.inf, False)]
)
def test_a_flip_is_excused_within_rounding(margin: float, excused: bool):
    """Two logits that each move by the rounding may swap; beyond that a difference is a difference, and says so."""
    flip = Flip((3, 17), 65, 66, margin)
    assert excused == flip.excused
    assert ("NOT" in str(flip)) != excused


def _run(make: Make, requests: list[Request] = REQUESTS) -> tuple[list[Completion], MarginLog]:
    log = MarginLog()
    return ReferenceEngine(CONFIG, make).generate(requests, log), log


def test_equal_runs_have_no_flips(eager_runtime: Make, padded_runtime: Make):
    """Runs that agree in every token compare clean."""
    expected, log = _run(eager_runtime)
    assert [] == log.flips(expected, _run(padded_runtime)[0])


def test_the_first_difference_of_each_text_is_reported(eager_runtime: Make):
    """Only the first differing token of a text counts, with the margin of the draw that made the expected one."""
    expected, log = _run(eager_runtime)
    tokens = list(expected[1].tokens)
    changed = attrs.evolve(expected[1], tokens=(tokens[0], tokens[1] ^ 1, tokens[2] ^ 1))
    (flip,) = log.flips(expected, [expected[0], changed, expected[2]])
    assert ((1, 2), tokens[1], tokens[1] ^ 1) == (flip.draw, flip.expected, flip.actual)
    assert log.margins[1, 2] == flip.margin > 0


def test_a_text_that_ends_early_is_a_difference(eager_runtime: Make):
    """A text that is only the beginning of the expected one is no agreement."""
    expected, log = _run(eager_runtime)
    short = attrs.evolve(expected[0], tokens=expected[0].tokens[:-1])
    assert 1 == len(log.flips(expected, [short, *expected[1:]])) == len(log.flips([short, *expected[1:]], expected))
