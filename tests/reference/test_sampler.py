"""The sampler's distribution, and that nothing but (logits, settings, seed, position) decides a draw."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tsgraph.reference.sampler import SamplingTensors, kept, margins, sample, uniform

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5])


def how(rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0) -> SamplingTensors:
    """The same settings for all rows, each row at a position of its own."""
    return SamplingTensors(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k, dtype=torch.int32),
        top_p=torch.full((rows,), top_p),
        seed=torch.full((rows,), seed, dtype=torch.int64),
        position=torch.arange(rows),
    )


def draws(settings: SamplingTensors) -> Tensor:
    """Tokens drawn from LOGITS at every position."""
    return sample(LOGITS.expand(len(settings.seed), -1), settings).tokens


def frequencies(settings: SamplingTensors) -> Tensor:
    """How often each token of LOGITS was drawn, as a share."""
    return draws(settings).bincount(minlength=len(LOGITS)) / len(settings.seed)


def _splitmix64(state: int) -> int:
    """One step of SplitMix64 with Python's own integers."""
    x = (state + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def test_mixing_is_splitmix64():
    """Seeded with 0, SplitMix64 starts with its published numbers, so that the check below rests on it."""
    stream = [_splitmix64(n * 0x9E3779B97F4A7C15 % 2**64) for n in range(3)]
    assert [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F] == stream


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), st.integers(1, 5))
def test_uniform_is_a_function_of_seed_position_and_token(seed: int, position: int, vocabulary: int):
    """The numbers are SplitMix64's, keyed by seed and position, one a token, whatever torch does with int64."""
    row = _splitmix64((_splitmix64(seed) + position) % 2**64)
    words = [_splitmix64((row + token * 0x9E3779B97F4A7C15) % 2**64) for token in range(vocabulary)]
    drawn = uniform(torch.tensor([seed]), torch.tensor([position]), vocabulary)
    assert [((word >> 12) + 0.5) / 2**52 for word in words] == drawn[0].tolist()


def test_uniform_is_uniform():
    """Over many positions the numbers fill (0, 1) evenly, and neighbours in position, token and seed are unrelated."""
    numbers = uniform(torch.arange(64).repeat_interleave(64), torch.arange(64).repeat(64), 16)
    assert 0 < numbers.min() < numbers.max() < 1
    shares = numbers.flatten().histc(16, 0, 1) / numbers.numel()
    assert (shares - 1 / 16).abs().max() < 3e-3
    grid = numbers.view(64, 64, 16) - 0.5
    for dim in range(3):
        assert (grid * grid.roll(1, dim)).mean().abs() * 12 < 0.02


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float):
    """Tokens come with the probability that the scaled logits say."""
    expected = (LOGITS / temperature).softmax(-1)
    assert (frequencies(how(20_000, temperature)) - expected).abs().max() < 0.015


@pytest.mark.parametrize(("settings", "cut"), [({"top_k": 2}, [0, 4]), ({"top_p": 0.7}, [0, 4]), ({"top_p": 0.1}, [0])])
def test_filters_renormalise_what_is_left(settings: dict[str, Any], cut: list[int]):
    """Under top_k or top_p only the likeliest are drawn, with their shares of what is left."""
    left = torch.full_like(LOGITS, float("-inf"))
    left[cut] = LOGITS[cut]
    assert (frequencies(how(20_000, **settings)) - left.softmax(-1)).abs().max() < 0.015


def test_temperature_zero_is_greedy():
    """At temperature 0 the largest logit wins at every position, whatever the seed."""
    assert [0] == draws(how(100, temperature=0.0, seed=9)).unique().tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_top_k_one_is_greedy(temperature: float):
    """With one token kept there is nothing to draw."""
    assert [0] == draws(how(100, temperature, top_k=1)).unique().tolist()


def test_ties_go_to_the_lowest_token():
    """Equal logits are decided alike everywhere: greedy takes the first, and top_k keeps the first."""
    flat = torch.zeros(1, 300)
    assert [0] == sample(flat, how(1, temperature=0.0)).tokens.tolist()
    assert [0, 1, 2] == kept(flat, torch.tensor([3]), torch.tensor([1.0]))[0].nonzero().flatten().tolist()


def test_top_p_keeps_the_likeliest_always():
    """However small top_p is, the likeliest token is kept."""
    assert [1] == kept(LOGITS[None], torch.tensor([0]), torch.tensor([1e-9])).sum(-1).tolist()


def test_top_p_keeps_the_token_that_reaches_it():
    """Shares of a half, a quarter and a quarter under 0.6: two are needed, and of the equal two the first is kept."""
    shares = torch.tensor([[0.25, 0.5, 0.25]], dtype=torch.float64)
    assert [[True, True, False]] == kept(shares.log(), torch.tensor([0]), torch.tensor([0.6])).tolist()


def test_top_k_is_applied_before_top_p():
    """top_p counts shares of what top_k left, so that both together keep fewer than each alone."""
    both = kept(LOGITS[None], torch.tensor([2]), torch.tensor([0.6]))
    assert [1, 2] == [int(both.sum()), int(kept(LOGITS[None], torch.tensor([0]), torch.tensor([0.6])).sum())]


def test_logprobs_are_the_models_own():
    """The logprob is that of the drawn token under the unfiltered, unscaled distribution."""
    settings = how(50, temperature=0.7, top_k=3)
    drawn = sample(LOGITS.expand(50, -1), settings)
    torch.testing.assert_close(LOGITS.log_softmax(-1)[drawn.tokens], drawn.logprobs)


def _random_batch(seed: int, rows: int) -> tuple[Tensor, SamplingTensors]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 40, generator=g), SamplingTensors(
        temperature=torch.randint(0, 3, (rows,), generator=g) / 2,
        top_k=torch.randint(0, 45, (rows,), generator=g, dtype=torch.int32),
        top_p=torch.rand(rows, generator=g) * 0.99 + 0.01,
        seed=torch.randint(2**62, (rows,), generator=g),
        position=torch.randint(2**20, (rows,), generator=g),
    )


def _rows(settings: SamplingTensors, index: Tensor) -> SamplingTensors:
    return SamplingTensors(**{name: value[index] for name, value in attrs.asdict(settings, recurse=False).items()})


@given(st.integers(0, 2**30), st.integers(1, 9), st.randoms(use_true_random=False))
def test_a_draw_ignores_its_neighbours(seed: int, rows: int, random):
    """Tokens and logprobs do not depend on who else is in the batch, in which order, or on how many pads follow."""
    logits, settings = _random_batch(seed, rows)
    whole = sample(logits, settings)
    some = torch.tensor(random.sample(range(rows), random.randint(1, rows)))
    padded = torch.cat((some, some[:1].repeat(3)))
    part = sample(logits[padded], _rows(settings, padded))
    assert torch.equal(whole.tokens[some], part.tokens[: len(some)])
    assert torch.equal(whole.logprobs[some], part.logprobs[: len(some)])


@given(st.integers(0, 2**30))
def test_seed_and_position_both_matter(seed: int):
    """Another seed or another position draws another series."""
    base = how(200, temperature=2.0, seed=seed)
    assert not torch.equal(draws(base), draws(attrs.evolve(base, seed=base.seed + 1)))
    assert not torch.equal(draws(base), draws(attrs.evolve(base, position=base.position + 1)))


@given(st.integers(0, 2**30), st.integers(1, 9))
def test_a_margin_is_how_far_logits_may_move(seed: int, rows: int):
    """While no logit moves by as much as half the margin, an unfiltered draw stays."""
    logits, settings = _random_batch(seed, rows)
    settings = attrs.evolve(settings, top_k=torch.zeros_like(settings.top_k), top_p=torch.ones_like(settings.top_p))
    room = margins(logits, settings)
    assert (room >= 0).all()
    push = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed + 1)) * 2 - 1
    moved = logits + (push * 0.499 * room[:, None]).float()
    assert torch.equal(sample(logits, settings).tokens, sample(moved, settings).tokens)


def test_a_margin_without_a_rival_is_infinite():
    """Where only one token is kept nothing can outbid it."""
    assert [float("inf")] == margins(LOGITS[None], how(1, top_k=1)).tolist()


def test_global_randomness_is_not_used():
    """Neither torch's global state decides a draw, nor does a draw move it."""
    torch.manual_seed(1)
    first = draws(how(50))
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(1)))
    torch.manual_seed(2)
    assert torch.equal(first, draws(how(50)))


def test_shapes_follow_from_shapes_alone():
    """Sampling runs on fake tensors, which have no values: nothing in it reads a value back or sizes by one."""
    with FakeTensorMode():
        drawn = sample(torch.zeros(3, 50), how(3))
    assert ((3,), (3,)) == (drawn.tokens.shape, drawn.logprobs.shape)
