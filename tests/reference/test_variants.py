"""Sampler variants draw alike where more than one serves; penalties and the counts behind them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tsgraph.reference.sampler import SamplingTensors
from tsgraph.reference.scheduler import Sampling
from tsgraph.reference.variants import GREEDY, PENALTIES, VariantSampler, draw_by, penalise, variant_for

COLD, WARM, PUSHED = Sampling(), Sampling(temperature=0.5), Sampling(frequency=0.1)


@pytest.mark.parametrize(
    ("samplings", "variant"),
    [
        ([COLD, COLD], GREEDY),
        ([COLD, WARM], "default"),
        ([COLD, PUSHED], PENALTIES),
        ([WARM, Sampling(repetition=1.1)], PENALTIES),
    ],
)
def test_the_least_variant_that_serves_all_is_chosen(samplings: list[Sampling], variant: str):
    """Greedy while all are, the default while none is penalised."""
    assert variant == variant_for(samplings)


@given(st.integers(0, 2**30), st.integers(1, 6), st.booleans())
def test_variants_draw_alike_for_greedy_rows(seed: int, rows: int, ties: bool):
    """The greedy variant draws what the default one draws at temperature 0, whatever the filters, ties included."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 30, generator=g)
    logits = logits.round() if ties else logits
    how = SamplingTensors(
        temperature=torch.zeros(rows),
        top_k=torch.randint(0, 9, (rows,), generator=g),
        top_p=torch.rand(rows, generator=g) * 0.99 + 0.01,
        seed=torch.randint(2**62, (rows,), generator=g),
        position=torch.arange(rows),
    )
    assert torch.equal(draw_by("default", logits, how), draw_by(GREEDY, logits, how))


# -- penalties --------------------------------------------------------------------------------------------------------


def test_penalties_push_down_what_was_seen():
    """Seen logits are divided where positive, multiplied where not, and pay for every time; others stay."""
    logits = torch.tensor([[2.0, -2.0, 3.0, 0.0]])
    seen = torch.tensor([[1, 2, 0, 3]])
    pushed = penalise(logits, seen, torch.tensor([2.0]), torch.tensor([0.5]))
    assert [[2 / 2 - 0.5, -2 * 2 - 1.0, 3.0, 0.0 - 1.5]] == pushed.tolist()


@given(st.integers(0, 2**30))
def test_neutral_penalties_change_no_bit(seed: int):
    """A row without penalties draws from the very logits it would have in another variant."""
    g = torch.Generator().manual_seed(seed)
    logits, seen = torch.randn(3, 20, generator=g) * 50, torch.randint(0, 5, (3, 20), generator=g)
    assert torch.equal(logits, penalise(logits, seen, torch.ones(3), torch.zeros(3)))


# -- counts -----------------------------------------------------------------------------------------------------------


def sampler(rows: int = 3) -> VariantSampler:
    """A sampler for few requests over ten tokens."""
    return VariantSampler.empty(rows=rows, vocabulary=10, device="cpu")


def _slowly(counts: Tensor, rows: list[int], drawn: list[list[int]], gained: list[int]) -> Tensor:
    counts = counts.clone()
    for row, tokens, most in zip(rows, drawn, gained, strict=True):
        for token in tokens[:most]:
            counts[row, token] += 1
    return counts


@given(st.data(), st.integers(1, 5), st.integers(1, 4))
def test_what_a_row_gains_is_counted(data: st.DataObject, rows: int, width: int):
    """Each row counts its accepted tokens and no others; pad rows that share the sentinel all count there."""
    it = sampler()
    pool = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=rows, max_size=rows))
    tokens = st.lists(st.integers(0, 9), min_size=width, max_size=width)
    drawn = data.draw(st.lists(tokens, min_size=rows, max_size=rows))
    gained = data.draw(st.lists(st.integers(1, width), min_size=rows, max_size=rows))
    expected = _slowly(it.counts, pool, drawn, gained)
    it.count(torch.tensor(pool), torch.tensor(drawn), torch.tensor(gained))
    assert torch.equal(expected, it.counts)


def test_a_draw_sees_the_drafts_before_it():
    """The first draw sees what was counted, each later one the drafts up to it as well; the last token is counted."""
    it = sampler()
    it.counts[2, 7] = 3
    seen = it.seen(torch.tensor([2]), torch.tensor([[7, 1, 7]]))
    expected = torch.zeros(3, 10, dtype=torch.int64)
    expected[:, 7] = torch.tensor([3, 3, 4])
    expected[1:, 1] = 1
    assert torch.equal(expected, seen)


def test_a_row_starts_anew():
    """A request that is admitted finds nothing of the one that had its row before."""
    it = sampler()
    it.counts[:] = 5
    it.begin(torch.tensor([2]))
    assert [5, 5, 0, 5, 5] == it.counts[:, 0].tolist()


def test_a_reset_forgets_what_warm_ups_counted():
    """The sentinel, where dummy and pad rows count, is emptied, and live rows keep theirs (R10)."""
    it = sampler()
    it.counts[:] = 5
    it.reset()
    assert [5, 5, 5, 5, 0] == it.counts[:, 0].tolist()
