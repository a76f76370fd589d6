"""The engine end to end on runtimes without graphs, and what a runtime is handed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from tsgraph.errors import BadBatch
from tsgraph.keys import Mode, Step
from tsgraph.reference import Completion, DecoderConfig, EngineConfig, Parts, ReferenceEngine, Request, Sampling, encode
from tsgraph.reference.parts import sampling_of
from tsgraph.reference.scheduler import Sequence
from tsgraph.reference.sources import sources_of

SMALL = DecoderConfig(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=40)
CONFIG = EngineConfig(decoder=SMALL, rows=4, pages=33, page_size=8, context=64)
Make = Callable[[Parts], Any]


def requests(count: int = 8) -> list[Request]:
    """Requests of unlike lengths and settings that come and go."""
    return [
        Request(
            prompt=encode("prompt " * (1 + i % 4)),
            max_tokens=3 + 4 * (i % 3),
            arrival=2 * i,
            sampling=Sampling(temperature=i % 3 / 2, top_k=[0, 20][i % 2], top_p=[1.0, 0.9][i % 2], seed=i),
        )
        for i in range(count)
    ]


def tokens_of(completions: list[Completion]) -> list[tuple[int, ...]]:
    """What was generated, request by request."""
    return [completion.tokens for completion in completions]


def test_completions_come_in_the_order_of_requests(eager_runtime: Make):
    """Every request is completed, in order, within its budget, with a logprob a token and the reason of its end."""
    asked = requests()
    done = ReferenceEngine(CONFIG, eager_runtime).generate(asked)
    assert asked == [completion.request for completion in done]
    for completion in done:
        assert len(completion.tokens) == len(completion.logprobs) <= completion.request.max_tokens
        assert (completion.ended == "eos") == (completion.tokens[-1] == CONFIG.eos)
        assert completion.ended == "eos" or len(completion.tokens) == completion.request.max_tokens
        assert all(logprob <= 0 for logprob in completion.logprobs)


def test_requests_join_and_leave_a_running_batch(eager_runtime: Make):
    """Decode steps of several sizes run, prompts one at a time between them."""
    engine = ReferenceEngine(CONFIG, eager_runtime)
    engine.generate(requests())
    steps = engine.runtime.steps
    assert 8 == steps[Mode.EXTEND, 1] == sum(n for (mode, _), n in steps.items() if mode is Mode.EXTEND)
    assert len({rows for mode, rows in steps if mode is Mode.DECODE}) >= 3


def test_tokens_do_not_depend_on_company(eager_runtime: Make):
    """A request gets the same tokens alone as in a full batch."""
    engine = ReferenceEngine(CONFIG, eager_runtime)
    together = engine.generate(requests())
    alone = [engine.generate([request])[0] for request in requests()]
    assert tokens_of(together) == tokens_of(alone)


def test_tokens_do_not_depend_on_padding(eager_runtime: Make, padded_runtime: Make):
    """Decoding in steps padded to 16 rows gives the same tokens as at the live shape."""
    plain = ReferenceEngine(CONFIG, eager_runtime).generate(requests())
    assert tokens_of(plain) == tokens_of(ReferenceEngine(CONFIG, padded_runtime).generate(requests()))


def test_an_engine_may_be_used_again(eager_runtime: Make):
    """What earlier requests left in the cache changes nothing."""
    engine = ReferenceEngine(CONFIG, eager_runtime)
    assert tokens_of(engine.generate(requests())) == tokens_of(engine.generate(requests()))


def test_greedy_tokens_are_the_dense_argmax(eager_runtime: Make):
    """Greedy tokens are those that prefilling the text so far would give, token by token."""
    engine = ReferenceEngine(CONFIG, eager_runtime)
    request = Request(prompt=encode("the sea"), max_tokens=6)
    done = engine.generate([request])[0]
    for place in range(len(done.tokens)):
        longer = attrs.evolve(request, prompt=(*request.prompt, *done.tokens[:place]), max_tokens=1)
        assert done.tokens[place : place + 1] == engine.generate([longer])[0].tokens


def test_pages_that_are_short_only_delay(eager_runtime: Make):
    """With pages for little more than one request the same tokens come, only later."""
    short = ReferenceEngine(attrs.evolve(CONFIG, pages=8), eager_runtime)
    plain = ReferenceEngine(CONFIG, eager_runtime)
    assert tokens_of(plain.generate(requests())) == tokens_of(short.generate(requests()))
    assert sum(short.runtime.steps.values()) > sum(plain.runtime.steps.values())


def test_the_hook_sees_every_step(eager_runtime: Make):
    """The hook is told rows, mode, sources and outcome of each step, before the tokens are taken."""
    seen: list[tuple[int, Mode, int]] = []

    def hook(rows: int, mode: Mode, sources: dict[str, Tensor], done: Step) -> None:
        assert rows == len(sources["seq_lens"]) == len(done.outputs["tokens"])
        seen.append((rows, mode, len(sources["input_ids"])))

    ReferenceEngine(CONFIG, eager_runtime).generate(requests(1), hook)
    assert [(1, Mode.EXTEND, 8), (1, Mode.DECODE, 1), (1, Mode.DECODE, 1)] == seen


def test_a_request_that_cannot_fit_stops_all_before_anything_runs(eager_runtime: Make):
    """One request over the context refuses the call, and no step has run."""
    engine = ReferenceEngine(CONFIG, eager_runtime)
    with pytest.raises(BadBatch, match="65 tokens needs 9 pages"):
        engine.generate([*requests(2), Request(prompt=(1,) * 60, max_tokens=5)])
    assert not engine.runtime.steps


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"pages": 1}, {"page_size": 0}, {"context": 0}, {"rows": 1.5}])
def test_an_engine_without_room_is_refused(wrong: dict[str, Any]):
    """Numbers that leave no room for one request are refused by name."""
    with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
        attrs.evolve(CONFIG, **wrong)


def _sequence(prompt: tuple[int, ...], cached: int, row: int, pages: tuple[int, ...]) -> Sequence:
    sampling = Sampling(temperature=0.5, top_k=3, top_p=0.75, seed=2**40)
    request = Request(prompt=prompt, max_tokens=4, sampling=sampling)
    return Sequence(request, list(prompt), cached=cached, row=row, pages=pages)


def test_sources_of_a_decode_step():
    """Each row gives its newest token, its place in the row's pages, its length and settings; tables end in 0."""
    sequences = (_sequence((5, 6, 7), 2, 1, (4,)), _sequence((9,) * 9, 8, 3, (2, 6)))
    sources = sources_of(sequences, 8)
    assert [7, 9] == sources["input_ids"].tolist()
    assert [2, 8] == sources["positions"].tolist()
    assert [4 * 8 + 2, 6 * 8 + 0] == sources["cache_locations"].tolist()
    assert [3, 9] == sources["seq_lens"].tolist()
    assert [1, 3] == sources["request_pool"].tolist()
    assert [[4, 0], [2, 6]] == sources["page_table"].tolist()
    assert [[0.5] * 2, [3] * 2, [0.75] * 2, [2**40] * 2] == [
        sources[name].tolist() for name in ("temperature", "top_k", "top_p", "seed")
    ]


def test_sources_of_a_prompt():
    """A prompt gives all its tokens, through its pages in order, and one row of everything else."""
    sources = sources_of((_sequence(tuple(range(10)), 0, 2, (3, 1)),), 8)
    assert list(range(10)) == sources["input_ids"].tolist() == sources["positions"].tolist()
    assert [*range(24, 32), 8, 9] == sources["cache_locations"].tolist()
    assert [10] == sources["seq_lens"].tolist()


def test_draws_are_keyed_by_the_last_position():
    """A row's draw is keyed by the position of its last token, in prompts and decode steps alike."""
    sources = sources_of((_sequence((5, 6, 7), 0, 1, (4,)),), 8)
    assert [2] == sampling_of(sources).position.tolist()


def test_sources_fit_the_spec():
    """The sources are exactly what specs/reference.toml asks the caller for, with its dtypes and no others."""
    from tsgraph.spec.load import load_spec

    spec = load_spec("reference").restricted_to(frozenset())
    asked = {b.name: getattr(torch, b.dtype) for b in spec.buffers.values() if b.source == "call" and not b.mirrors}
    given = {name: source.dtype for name, source in sources_of((_sequence((5,), 0, 1, (4,)),), 8).items()}
    assert asked == given
