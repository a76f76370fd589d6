"""Both executors: they keep the protocol, say what does not fit, and fail closed."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from tests.grammar.service import STOP, TOKENS, Request, Service
from tsgraph import Rows
from tsgraph.errors import BadBatch, HostFunctionFailed, RuleViolation
from tsgraph.grammar.bitmask import ALL, allowed_by, only
from tsgraph.grammar.capturable import CapturableGrammar
from tsgraph.grammar.eager import EagerGrammar
from tsgraph.grammar.executor import GrammarExecutor
from tsgraph.keys import Batch, Mode
from tsgraph.protocols.collaborators import Grammar
from tsgraph.testing.conformance import Ground, check_grammar

KINDS = pytest.mark.parametrize("kind", [CapturableGrammar, EagerGrammar])


def batch_of(rows: int) -> Batch:
    """A decode batch without buffers."""
    return Batch(rows, rows, Mode.DECODE, "default", {})


def run_step(grammar: Any, rows: int, candidates: torch.Tensor | None = None) -> torch.Tensor:
    """One eager forward, all of whose rows draw token 0; returns its masks."""
    grammar.fork(batch_of(rows), candidates)
    mask: torch.Tensor = grammar.mask(batch_of(rows))
    lengths = None if candidates is None else torch.ones(rows, dtype=torch.int64, device=mask.device)
    grammar.finish(torch.zeros(len(mask), dtype=torch.int64, device=mask.device), lengths)
    return mask


def consume(grammar: Any) -> None:
    """What one forward does to the queue, when it is done."""
    run_step(grammar, 4)
    grammar.backend.synchronize()


@KINDS
def test_the_protocol_is_kept(backend: Any, kind: Any):
    """All that `check_grammar` asks of a queue: order, cancels, masks that stay, resets that forget."""

    def make() -> GrammarExecutor:
        made: GrammarExecutor = kind(backend, rows=4, vocabulary=40)
        return made

    ground = Ground.of({"ids": Rows(torch.int64, pad=0)}, sizes=(1, 2, 4))
    assert isinstance(make(), Grammar)
    check_grammar(
        make,
        ground=ground,
        waiting=lambda grammar: grammar.queue.waiting,
        consume=consume,
        current=lambda grammar: tuple(entry.rows for entry in grammar.remembered),
    )


@KINDS
@pytest.mark.parametrize(("rows", "candidates"), [(5, None), (2, (2, 3)), (2, (1, 2))])
def test_steps_that_do_not_fit_are_refused(backend: Any, kind: Any, rows: int, candidates: Any):
    """Too many rows, too many draws, candidates of other rows: before the entry is taken (fault I2)."""
    grammar = kind(backend, rows=4, vocabulary=40, draws=3)
    grammar.push(1)
    given = None if candidates is None else backend.allocate(candidates, torch.int64, 0)
    with pytest.raises(BadBatch):
        grammar.fork(batch_of(rows), given)
    assert 1 == len(grammar.queue.waiting)


@KINDS
def test_calls_out_of_order_are_refused(backend: Any, kind: Any):
    """A mask or tokens of a step that was not forked, or tokens of other rows, or no accept lengths."""
    grammar = kind(backend, rows=4, vocabulary=40, draws=2)
    tokens = backend.allocate((2,), torch.int64, 0)
    with pytest.raises(BadBatch, match="was not forked"):
        grammar.mask(batch_of(1))
    with pytest.raises(BadBatch, match="fork the grammar first"):
        grammar.finish(tokens)
    grammar.push(1)
    grammar.fork(batch_of(1), backend.allocate((1, 1), torch.int64, 0))
    with pytest.raises(BadBatch, match="2 tokens and accept lengths of shape None"):
        grammar.finish(tokens)
    with pytest.raises(BadBatch, match="an entry of 5 rows"):
        grammar.push(5)


@KINDS
def test_a_forward_without_an_entry_is_refused_at_once(backend: Any, kind: Any):
    """An eager forward says so before anything runs (R22, R24)."""
    with pytest.raises(RuleViolation, match="runs without its entry"):
        run_step(kind(backend, rows=4, vocabulary=40), 1)


@pytest.mark.parametrize("kind", ["capturable", "eager"])
def test_more_than_128_mask_rows(backend: Any, kind: str):
    """64 rows of 4 draws: each sees its own mask, in a graph too (fault I6)."""
    service = Service(backend, draws=4, rows=64, kind=kind)
    for seed in range(1, 65):
        service.arrive(seed)
    for _ in range(3):
        service.step(0)
    assert 3 == service.runtime.counters()["replays"]
    assert [] == service.finish()


@attrs.define(eq=False)
class Broken:
    """A matcher that raises where it is told to; it ends with its first token."""

    fails: str = ""
    terminated: bool = False

    def fill(self, words: Any) -> None:
        if self.fails == "fill":
            raise ValueError("planted in fill")
        words[:] = only([0], len(TOKENS))

    def accept(self, token: int) -> bool:
        if self.fails == "accept":
            raise ValueError("planted in accept")
        self.terminated = True
        return True

    def rollback(self, count: int) -> None:
        self.terminated = False


@pytest.mark.parametrize("fails", ["fill", "accept"])
@pytest.mark.parametrize("slots", [True, False])
def test_a_failure_closes_the_step_and_surfaces_before_its_tokens(backend: Any, fails: str, slots: bool):
    """All rows of the step may draw the declared token alone; `ready` raises; other requests go on unharmed."""
    service = Service(backend)
    service.runtime.enabled = slots
    healthy, broken = Request.of(1), Request(2, None, matcher=Broken())  # type: ignore[arg-type]
    service.running = [healthy, broken]
    if fails == "accept":
        service.step(0)
        service.problems.clear()  # of the broken one, of which the service knows nothing
    broken.matcher.fails = fails  # type: ignore[union-attr]
    drawn = list(healthy.drawn)
    ticket = service.push(service.running)
    done = service.runtime.step(rows=2, **service._sources(service.running, [[], []]))
    with pytest.raises(HostFunctionFailed, match=f"ValueError: planted in {fails}"):
        done.ready.wait()
    assert [STOP, STOP] == done.outputs["tokens"].tolist()
    assert {STOP} == {int(token) for token in done.outputs["seen"].nonzero()[:, 1]}
    assert "void" == ticket.entry.outcome
    service.running = [healthy]
    service.last = None
    for _ in range(3):
        service.step(0)
    assert [] == service.finish()
    assert drawn == healthy.drawn[: len(drawn)] != healthy.drawn


def test_an_eager_executor_says_before_the_step_that_it_fails(backend: Any):
    """`prepare` raises, so that the step is not run; its masks are closed all the same."""
    grammar = EagerGrammar(backend, rows=4, vocabulary=len(TOKENS), closed=(STOP,))
    ticket = grammar.push(1, [Broken("fill")])
    with pytest.raises(ValueError, match="planted in fill"):
        grammar.prepare()
    grammar.abandon(ticket)
    assert {STOP} == {int(token) for token in allowed_by(grammar.bind(batch_of(4)), len(TOKENS)).nonzero()[:, 1]}


def test_a_prompt_has_one_draw_a_row(backend: Any):
    """A step without candidates has one mask a row, also where decode steps have several."""
    grammar = CapturableGrammar(backend, rows=4, vocabulary=len(TOKENS), draws=3)
    grammar.push(2, [Broken(), None])
    mask = run_step(grammar, 2)
    backend.synchronize()
    assert ([1, 0, 0], [ALL] * 3) == (mask[0].tolist(), mask[1].tolist())
    assert (4 * 3, 2) == (len(grammar.bind(batch_of(4))), len(mask))


def test_what_runs_again_sees_the_same(backend: Any):
    """An entry that repeats is for a forward that proves another: it moves nothing."""
    service = Service(backend)
    service.arrive(1)
    service.step(0)
    request = service.running[0]
    before = list(request.matcher.tokens)  # type: ignore[union-attr]
    mask = service.grammar.bind(batch_of(1)).clone()
    service.runtime.push(1, by=service.grammar.push_repeat)
    service.runtime.step(rows=1, **service._sources([request], [[]])).ready.wait()
    assert (before, mask.tolist()) == (request.matcher.tokens, service.grammar.bind(batch_of(1)).tolist())  # type: ignore[union-attr]


def test_the_host_may_settle_while_a_step_is_on_its_way(backend: Any):
    """Exactly one of host and next build lets the matchers accept, whichever comes first; nobody waits for nobody."""
    service = Service(backend)
    for seed in (1, 2, 5, 7):
        service.arrive(seed)
    for _ in range(20):
        service.step(0)
        ticket, ready = service.last
        batch = [request for request in service.running if not request.finished]
        service.running = batch or [Request.of(1)]
        service.grammar.settle(ticket, ready)
    assert [] == service.finish()
