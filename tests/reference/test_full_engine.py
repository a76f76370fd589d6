"""Drafts, recurrent layers and variants in the engine, without graphs: they change how a text comes, never which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from tsgraph.errors import BadBatch
from tsgraph.keys import Mode
from tsgraph.reference import Completion, DecoderConfig, EngineConfig, ReferenceEngine, Request, Sampling, graph_runtime
from tsgraph.reference.engine import gains_of
from tsgraph.reference.proof import Flip, MarginLog
from tsgraph.reference.recurrent import Passage, RecurrentMemory
from tsgraph.reference.scheduler import Sequence
from tsgraph.reference.sources import extras_of, sources_of
from tsgraph.reference.speculation import verify
from tsgraph.reference.variants import VariantSampler
from tsgraph.runtime import GraphRuntime
from tsgraph.spec.load import load_spec

VERIFY = "tsgraph.reference.parts.verify"
SMALL = DecoderConfig(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=40)
HYBRID = attrs.evolve(SMALL, layers=3, recurrent=(1,))
CONFIG = EngineConfig(decoder=HYBRID, rows=4, pages=40, page_size=8, context=48, tokens_per_request=4, variants=True)
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9, "repetition": 1.3},
    {"frequency": 0.5},
    {"temperature": 1.2},
]


def requests(count: int = 10) -> list[Request]:
    """Requests of unlike lengths and settings that come and go."""
    return [
        Request(
            prompt=tuple(range(60 + i, 64 + 3 * i)),
            max_tokens=6 + 5 * (i % 4),
            arrival=i,
            sampling=Sampling(seed=i, **SAMPLINGS[i % len(SAMPLINGS)]),
        )
        for i in range(count)
    ]


def engine(**changed: Any) -> ReferenceEngine[GraphRuntime]:
    """An engine that never captures."""
    make = attrs.evolve(CONFIG, **changed)
    return ReferenceEngine(make, lambda parts: graph_runtime(parts, backend="emulated", capture=False))


def tokens_of(completions: list[Completion]) -> list[tuple[int, ...]]:
    """What was generated, request by request."""
    return [completion.tokens for completion in completions]


def flips(expected: dict[str, Any], actual: dict[str, Any]) -> list[Flip]:
    """Where the texts of two engines differ beyond rounding."""
    texts = engine(**expected).generate(requests(), log := MarginLog())
    return [flip for flip in log.flips(texts, engine(**actual).generate(requests())) if not flip.excused]


@pytest.mark.parametrize("decoder", [SMALL, HYBRID], ids=["attending", "recurrent"])
@pytest.mark.parametrize("tokens", [2, 4])
def test_drafts_change_no_text(decoder: DecoderConfig, tokens: int):
    """What is verified is what decoding token by token draws: greedy, sampled and penalised."""
    plain = {"decoder": decoder, "tokens_per_request": 1}
    assert [] == flips(plain, plain | {"tokens_per_request": tokens})


def test_drafts_save_steps():
    """Some drafts are accepted, so that there are fewer decode steps than tokens."""
    gained: list[int] = []

    def hook(rows: int, mode: Mode, sources: dict[str, Any], done: Any) -> None:
        if mode is Mode.DECODE:
            gained.extend(done.outputs["accept_lengths"].tolist())

    engine().generate(requests(), hook)
    assert {1, 2, 3, 4} == set(gained)
    assert sum(gained) / len(gained) > 1.2


@pytest.mark.parametrize("wrong", ["one more", "one less"])
def test_a_wrong_verification_is_another_text(monkeypatch: pytest.MonkeyPatch, wrong: str):
    """Planted: rows gain one draft more, or one less, than is right; the comparison with plain decoding tells.

    One less is only slower: the text stays.
    """
    by = {"one more": 1, "one less": -1}[wrong]
    monkeypatch.setattr(VERIFY, lambda read, drawn: (verify(read, drawn) + by).clamp(1, read.shape[1]))
    assert (wrong == "one more") == bool(flips({"tokens_per_request": 1}, {}))


@pytest.mark.parametrize("off", [-1, 1])
def test_a_state_of_another_token_is_another_text(monkeypatch: pytest.MonkeyPatch, off: int):
    """Planted: rows get the state after one token less, or more, than they gained."""
    right = RecurrentMemory.accept

    def planted(self: RecurrentMemory, slots: Tensor, lengths: Tensor) -> None:
        right(self, slots, (lengths + off).clamp(1, 4))

    expected = engine(tokens_per_request=1).generate(requests(), log := MarginLog())
    monkeypatch.setattr(RecurrentMemory, "accept", planted)
    assert not all(flip.excused for flip in log.flips(expected, engine().generate(requests())))


def test_company_changes_nothing():
    """Alone, where the least variant serves it, a request gets the tokens it gets beside greedy and penalised ones."""
    it = engine()
    alone = [it.generate([request])[0] for request in requests()]
    assert tokens_of(alone) == tokens_of(it.generate(requests()))


def test_an_engine_may_be_used_again():
    """Neither counts, states nor drafts of earlier requests are seen by those that get their rows."""
    it = engine()
    assert tokens_of(it.generate(requests())) == tokens_of(it.generate(requests()))


@pytest.mark.parametrize("lost", ["counts", "states"])
def test_a_row_that_does_not_start_anew_is_another_text(monkeypatch: pytest.MonkeyPatch, lost: str):
    """Planted: counts of a row, or its state, outlive the request that had it."""
    it = engine()
    expected = tokens_of(it.generate(requests()))
    if lost == "counts":
        monkeypatch.setattr(VariantSampler, "begin", lambda self, rows: None)
    else:

        def stale(memory: RecurrentMemory, places: Tensor, *, fresh: bool, noted: bool) -> Passage:
            return Passage(memory, places, fresh=False, noted=noted)

        monkeypatch.setattr("tsgraph.reference.parts.Passage", stale)
    assert expected != tokens_of(it.generate(requests()))


def test_penalties_push_repeats_away():
    """Under a heavy penalty a text never repeats a token, which it does without."""
    plain = Request(prompt=(5, 5, 5), max_tokens=30)
    pushed = attrs.evolve(plain, sampling=Sampling(frequency=100.0))
    texts = tokens_of(engine().generate([plain, pushed]))
    assert [False, True] == [len(text) == len(set(text)) for text in texts]


def test_a_request_may_fill_the_context():
    """Drafts beyond the budget have room of their own, so that the last tokens come as without any drafts."""
    full = [Request(prompt=tuple(range(50 + i, 60 + i)), max_tokens=38) for i in range(4)]
    drafted, plain = (engine(eos=None, tokens_per_request=n).generate(full) for n in (4, 1))
    assert tokens_of(plain) == tokens_of(drafted)
    assert {38} == {len(each.tokens) for each in drafted}


def test_no_draft_lies_beyond_a_requests_pages(monkeypatch: pytest.MonkeyPatch):
    """Even where the last step starts one token before the end and gains all, nothing is written to the dummy page.

    A row whose place were there would see what others wrote, so that its drafts would depend on its company.
    """
    monkeypatch.setattr(VERIFY, lambda read, drawn: torch.full((len(read),), read.shape[1]))
    it = engine(eos=None, context=44)  # with the room that drafts need, one token more than six pages hold
    it.generate([Request(prompt=tuple(range(10)), max_tokens=34)])
    assert it.parts.draft is not None
    for cache in (it.parts.cache, it.parts.draft.cache):
        assert not cache.keys[0].any()
        assert cache.keys[1].any()


def test_an_end_token_ends_a_text_in_the_middle_of_a_step():
    """What was accepted after an end-of-sequence token is dropped, and so it is token by token."""
    text = engine(eos=None).generate(requests(1))[0].tokens
    ended = [engine(eos=text[3], tokens_per_request=n).generate(requests(1))[0] for n in (4, 1)]
    assert [text[: text.index(text[3]) + 1]] * 2 == tokens_of(ended)
    assert {"eos"} == {each.ended for each in ended}


def test_penalties_need_variants():
    """An engine without penalties refuses a request that asks for some, before anything runs."""
    with pytest.raises(BadBatch, match="asks for penalties"):
        engine(variants=False).generate(requests())


def test_a_draft_model_needs_layers_that_attend():
    """Where all layers are recurrent there is nothing to draft with."""
    with pytest.raises(ValueError, match="tokens_per_request"):
        attrs.evolve(CONFIG, decoder=attrs.evolve(SMALL, recurrent=(0, 1)))


# -- what a runtime is handed -----------------------------------------------------------------------------------------


def drafting_sequence() -> Sequence:
    """A sequence of three tokens, two of them read, with three drafts, in pool row 1."""
    request = Request(prompt=(5, 6), max_tokens=9, sampling=Sampling(repetition=1.5, frequency=0.25))
    return Sequence(request, [5, 6, 7], cached=2, row=1, pages=(4, 3), drafts=(20, 21, 22))


def test_sources_of_a_step_with_drafts():
    """A row reads its last token and its drafts, at the places after what is cached; its length has them in it."""
    sources = sources_of((drafting_sequence(),), 4)
    assert [7, 20, 21, 22] == sources["input_ids"].tolist()
    assert [2, 3, 4, 5] == sources["positions"].tolist()
    assert [4 * 4 + 2, 4 * 4 + 3, 3 * 4, 3 * 4 + 1] == sources["cache_locations"].tolist()
    assert [6] == sources["seq_lens"].tolist()


def test_state_slots_begin_at_0():
    """The first pool row has state slot 0, which is live; who holds no row has none."""
    sequence = drafting_sequence()
    assert [0] == extras_of((sequence,), CONFIG)["recurrent_slots"].tolist()
    assert -1 == attrs.evolve(sequence, row=0).state_slot


def parts_there(config: EngineConfig) -> Iterator[str]:
    """The collaborators that an engine of `config` has."""
    yield from ["drafter"] if config.drafts else []
    yield from ["recurrent"] if config.decoder.recurrent else []
    yield from ["sampler"] if config.variants else []


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("decoder", [SMALL, HYBRID])
@pytest.mark.parametrize("variants", [False, True])
def test_sources_fit_the_spec(tokens: int, decoder: DecoderConfig, variants: bool):
    """Whatever parts an engine has, its sources are what its spec asks the caller for, and no others."""
    config = attrs.evolve(CONFIG, tokens_per_request=tokens, decoder=decoder, variants=variants)
    spec = load_spec(config.spec).restricted_to(frozenset(parts_there(config)))
    asked = {b.name: getattr(torch, b.dtype) for b in spec.buffers.values() if b.source == "call" and not b.mirrors}
    sources = sources_of((drafting_sequence(),), 4) | extras_of((drafting_sequence(),), config)
    assert asked == {name: source.dtype for name, source in sources.items()}


def test_a_step_without_drafts_gives_a_row_all_it_drew():
    """Where nothing was drafted, each row gains its one token."""
    outputs = {"tokens": torch.tensor([3, 4]), "logprobs": torch.tensor([-1.0, -2.0])}
    assert [([(3, -1.0)], []), ([(4, -2.0)], [])] == gains_of(outputs, 2)


def test_a_row_gains_what_was_accepted_of_its_draws():
    """The first of a row's tokens are its gain, the rest is nobody's; drafts are for the next step."""
    outputs = {
        "tokens": torch.tensor([3, 4, 5, 6]),
        "logprobs": torch.tensor([-1.0, -2.0, -3.0, -4.0]),
        "accept_lengths": torch.tensor([2, 1]),
        "drafts": torch.tensor([[8], [9]]),
    }
    assert [([(3, -1.0), (4, -2.0)], [8]), ([(5, -3.0)], [9])] == gains_of(outputs, 2)
