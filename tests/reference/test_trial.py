"""A trial measures and compares honestly, and its requests make the comparison possible."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from tsgraph.keys import Mode
from tsgraph.reference import DecoderConfig, load_prompts
from tsgraph.reference.proof import Flip
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
        def step(self, **words: Any) -> Any:
            return attrs.make_class("Done", ["ready"])(Ready())

    meter = Meter(Runtime())
    meter.step(rows=5, mode=Mode.EXTEND, input_ids=torch.zeros(5))
    assert (0, 0.0) == (meter.tokens, meter.speed)
    meter.step(rows=3, mode=Mode.DECODE, input_ids=torch.zeros(3))
    assert 3 == meter.tokens
    assert meter.speed > 0
