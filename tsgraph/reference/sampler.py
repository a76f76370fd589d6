"""Sampling inside the step, by the Gumbel-max trick on numbers that depend on (seed, position, token) alone.

There is no random state: nothing to prepare before a recording or to reset after a warm-up, nothing frozen into a
graph, and a request draws the same tokens whoever shares its batch, however it is padded, replayed or eager.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


@attrs.frozen(eq=False)
class Sampled:
    """`tokens` [rows] int64, and `logprobs` [rows] float32: theirs under the model's own, unfiltered distribution."""

    tokens: Tensor
    logprobs: Tensor


@attrs.frozen(eq=False, kw_only=True)
class SamplingTensors:
    """How each row samples, all [rows].

    `temperature` (0: greedy), `top_k` (0: off), `top_p` (1: off), `seed`, and the `position` of the row's last token.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    position: Tensor


def sample(logits: Tensor, how: SamplingTensors) -> Sampled:
    """One token a row from `logits` [rows, vocabulary], and its logprob."""
    tokens = draw(logits, how)
    return Sampled(tokens, logprobs_of(logits, tokens))


def draw(logits: Tensor, how: SamplingTensors) -> Tensor:
    """One token a row from `logits` [rows, vocabulary], [rows] int64. Of equal scores the lowest token wins."""
    return scores(logits, how).argmax(-1)


def logprobs_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """The logprob of each row's token under the model's own, unfiltered distribution, [rows] float32."""
    return logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]


def margins(logits: Tensor, how: SamplingTensors) -> Tensor:
    """By how much each row's token won, in units of logits, [rows] float64; infinite if no other token was kept.

    While every logit moves by less than half of it, and `top_k` and `top_p` keep the same tokens, the draw stays.
    """
    best = scores(logits, how).topk(2, dim=-1).values
    return (best[:, 0] - best[:, 1]) * _divisor(how)


def scores(logits: Tensor, how: SamplingTensors) -> Tensor:
    """What the argmax is taken of, [rows, vocabulary] float64: scaled logits, plus noise if not greedy; -inf if cut."""
    scaled = logits.double() / _divisor(how)[:, None]
    noise = gumbel(how.seed, how.position, logits.shape[-1])
    drawn = torch.where(how.temperature[:, None] > 0, scaled + noise, scaled)
    return drawn.masked_fill(~kept(scaled, how.top_k, how.top_p), float("-inf"))


def kept(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Which tokens may be drawn, [rows, vocabulary] bool: of the `top_k` likeliest the fewest that reach `top_p`.

    The likeliest always may (`top_p` is above 0). Equal logits rank by token, so ties are decided alike everywhere.
    """
    ranked, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[-1], device=scaled.device)
    inside = (rank < top_k[:, None]) | (top_k[:, None] <= 0)
    weights = ranked.masked_fill(~inside, float("-inf")).softmax(-1)
    inside &= (weights.cumsum(-1) - weights < top_p[:, None]) | (top_p[:, None] >= 1)
    return torch.empty_like(inside).scatter_(1, order, inside)


def gumbel(seed: Tensor, position: Tensor, vocabulary: int) -> Tensor:
    """Standard Gumbel noise for every token, [rows, vocabulary] float64."""
    return -(-uniform(seed, position, vocabulary).log()).log()


def uniform(seed: Tensor, position: Tensor, vocabulary: int) -> Tensor:
    """A number in the open interval (0, 1) for each (seed, position, token), [rows, vocabulary] float64.

    Seeds and positions [rows] are integers. Half a step beyond 52 random bits is exact in float64 and never 0 or 1.
    """
    row = _mix(_mix(seed.long()) + position.long())
    token = torch.arange(vocabulary, device=seed.device)
    bits = _shift(_mix(row[:, None] + token * _GOLDEN), 12)
    return (bits.double() + 0.5) * 2.0**-52


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's step (Steele, Lea and Flood, 2014) on int64, whose products wrap."""
    x = x + _GOLDEN
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A right shift that brings in zeros; torch's own on int64 brings in the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _divisor(how: SamplingTensors) -> Tensor:
    return torch.where(how.temperature > 0, how.temperature, 1.0).double()
