"""A trial measures and compares honestly, and its requests make the comparison possible."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import pytest
import torch

from tsgraph.keys import Mode
from tsgraph.reference import DecoderConfig, load_prompts
from tsgraph.reference.proof import Flip
from tsgraph.reference.speculation import verify
from tsgraph.reference.trial import Meter, Trial, config_for, requests_for, run_trial

REQUESTS = requests_for(("one", "another prompt", "three"), 4)
SMALL = DecoderConfig(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=40)
CONFIG = attrs.evolve(config_for(REQUESTS, "cpu"), rows=2, decoder=SMALL)


@pytest.fixture(scope="module")
def trial() -> Trial:
    """A small trial on the emulated backend."""
    return run_trial(REQUESTS, CONFIG, backend="emulated")


def test_a_trial_of_a_right_runtime_holds(trial: Trial):
    """Every replayed step is proved, every text agrees, and every request is completed."""
    assert trial.holds
    assert trial.snapshot["counters"]["replays"] == trial.proof.steps > 20
    assert REQUESTS == [each.request for each in trial.completions]


def test_counters_are_those_of_the_plain_run(trial: Trial):
    """Slots, counters and table tell of the unobserved run alone: one prompt step a request, and no asked-for step."""
    assert {"not_decode": len(REQUESTS)} == trial.snapshot["counters"]["eager"]
    assert sum(slot["replays"] for slot in trial.snapshot["slots"]) == trial.snapshot["counters"]["replays"]
    assert "default/2" in trial.table


def test_speeds_are_measured(trial: Trial):
    """Both paths have a speed."""
    assert min(trial.replayed_speed, trial.eager_speed) > 0


def test_without_drafts_a_row_gains_one_token_a_step(trial: Trial):
    """Both paths gain one token for each row and decode step."""
    assert (1.0, 1.0) == (trial.replayed_gain, trial.eager_gain)


def test_a_trial_with_drafts_compares_with_decoding_token_by_token(monkeypatch: pytest.MonkeyPatch):
    """Drafts and recurrent layers hold like all else; rows gain more than one token a step, as many as eagerly.

    Planted: a verification that lets one draft more pass changes replays and eager steps alike. Only the comparison
    with an engine that decodes token by token can tell, and does.
    """
    requests = requests_for(("one", "another prompt"), 3)
    whole = config_for(requests, "cpu", speculative=True, recurrent=True)
    config = attrs.evolve(whole, rows=1, decoder=attrs.evolve(SMALL, recurrent=(1,)), variants=False)
    right = run_trial(requests, config, backend="emulated")
    assert right.holds
    assert 1 < right.replayed_gain == right.eager_gain
    assert right.replayed_gain == right.as_json()["accepted_tokens_per_step"]["replayed"]
    monkeypatch.setattr(
        "tsgraph.reference.parts.verify", lambda read, drawn: (verify(read, drawn) + 1).clamp(max=read.shape[1])
    )
    wrong = run_trial(requests, config, backend="emulated")
    assert wrong.proof.holds
    assert not wrong.holds


def test_one_unexplained_difference_breaks_a_trial(trial: Trial):
    """A text that differs beyond rounding, a fault of a step, or no replay at all: each alone is a failure."""
    assert not attrs.evolve(trial, flips=[Flip((0, 1), 2, 3, 0.5)]).holds
    assert attrs.evolve(trial, flips=[Flip((0, 1), 2, 3, 1e-7)]).holds
    assert not attrs.evolve(trial, proof=attrs.evolve(trial.proof, faults=["broken"])).holds
    assert not attrs.evolve(trial, proof=attrs.evolve(trial.proof, steps=0)).holds


def test_seeds_are_unique():
    """No two requests share a seed, whatever they share otherwise: a draw is known by its seed and position."""
    requests = requests_for(load_prompts(), 60)
    assert 60 == len({request.sampling.seed for request in requests})
    assert {0.0, 0.8, 1.0, 1.2} == {request.sampling.temperature for request in requests}


def test_penalties_come_last():
    """Requests for an engine with variants come in three phases, so that steps of each variant are served."""
    samplings = [request.sampling for request in requests_for(load_prompts(), 9, penalties=True)]
    assert [True] * 3 + [False] * 3 == [each.temperature == 0 for each in samplings[:6]]
    assert [False] * 6 + [True] * 3 == [each.penalised for each in samplings]


@pytest.mark.parametrize("speculative", [False, True])
@pytest.mark.parametrize("recurrent", [False, True])
def test_each_part_alone_makes_a_full_engine(speculative: bool, recurrent: bool):
    """Without a part it is the plain engine; with one or both it has variants and the full spec."""
    config = config_for(REQUESTS, "cpu", speculative=speculative, recurrent=recurrent)
    assert (speculative, recurrent) == (config.drafts > 0, bool(config.decoder.recurrent))
    assert config.variants == (config.spec == "reference_full") == (speculative or recurrent)


def test_long_prompts_widen_the_tables():
    """Whatever the prompts' lengths, the engine is made so that all fit at once."""
    config = config_for(requests_for(("x" * 1000,), 1), "cpu")
    assert config.pages_per_request * config.page_size >= 1013
    assert config.rows * config.pages_per_request + 1 == config.pages


def test_a_meter_counts_decode_steps_only(eager_runtime: Any):
    """Prompts are not decoding; without any decoding the speed is 0."""

    class Ready:
        def wait(self) -> None:
            """Nothing to wait for."""

    class Runtime:
        outputs: ClassVar[dict[str, Any]] = {}

        def step(self, **words: Any) -> Any:
            return attrs.make_class("Done", ["ready", "outputs"])(Ready(), self.outputs)

    meter = Meter(Runtime())
    meter.step(rows=5, mode=Mode.EXTEND, input_ids=torch.zeros(5))
    assert (0, 0.0, 0.0) == (meter.tokens, meter.speed, meter.gain)
    meter.step(rows=3, mode=Mode.DECODE, input_ids=torch.zeros(3))
    assert 3 == meter.tokens
    assert meter.speed > 0
    Runtime.outputs["accept_lengths"] = torch.tensor([1, 4, 2])
    meter.step(rows=3, mode=Mode.DECODE, input_ids=torch.zeros(12))
    assert (10, 10 / 6) == (meter.tokens, meter.gain)
