"""The engine's entries through a whole runtime: each forward takes its own, and what goes wrong is an error at once."""

from __future__ import annotations

import attrs
import pytest
import torch
from hypothesis import given, settings

from tests.faults.queue_checks import DEEDS, Burst, Engine, check_queue, histories
from tsgraph.buffers.contract import Rows
from tsgraph.errors import CallerError, RuleViolation
from tsgraph.keys import Geometry, Mode
from tsgraph.runtime import GraphRuntime
from tsgraph.spec.load import load_spec
from tsgraph.testing.fakes import FakeGrammar


@pytest.mark.no_cover
@settings(max_examples=25)
@given(histories)
def test_pushes_are_pops_drained_and_cancelled_entries(history):
    """Over arrivals, aborts, refused and failing steps, idle ones, and captures at any time, with entries waiting."""
    check_queue(history)


@pytest.mark.parametrize("deed", DEEDS)
def test_each_deed_balances(deed):
    """Each by itself, and before a step, of no rows, of a slot's and of more than the largest has."""
    for rows in (0, 3, 6):
        check_queue(((deed, rows), ("serve", 2)))


def test_a_push_names_the_line_that_made_it():
    """Unless the engine says who it is."""
    engine = Engine()
    engine.runtime.push(1)
    with pytest.raises(RuleViolation, match=r"an entry waits that was pushed by .*test_grammar_queue.py:\d+") as caught:
        engine.runtime.push(1)
    assert "R22b" == caught.value.rule


def test_a_forward_without_an_entry_says_who_pushed_the_last_one():
    """R24: the forgotten push is somewhere after it."""
    engine = Engine()
    engine.serve(2, engine.push(2))
    with pytest.raises(RuleViolation, match="the engine has pushed no entry, since the last, pushed by the engine"):
        engine.call(2)


def test_a_slots_leftover_is_named():
    """R22c names the slot that holds the entry, and who pushed the engine's."""
    engine = Engine()
    for trigger in ("warm", "bind", "capture"):
        engine.runtime.fire(("default", 2), trigger)
    engine.push(1)
    with pytest.raises(RuleViolation, match=r"slot default/2 \[captured\] holds an entry") as caught:
        engine.call(1)
    assert "R22c" == caught.value.rule


def test_a_step_that_takes_no_entry_fails_its_slot():
    """R25 at the first warm-up: nothing is recorded that would leave every entry to the next forward."""
    engine = Engine()
    engine.grammar.fork = lambda backend: None
    engine.runtime.capture()
    causes = [slot.cause.summary for slot in engine.runtime.slots.values()]
    assert ["a forward has run and left entry"] * 3 == [cause[:32] for cause in causes]
    assert () == engine.grammar.queue.waiting


def test_an_eager_step_that_takes_no_entry_is_told_at_once():
    """The next forward would take it."""
    engine = Engine()
    engine.grammar.fork = lambda backend: None
    engine.push(3)
    with pytest.raises(RuleViolation, match="left entry 1, pushed by the engine"):
        engine.call(3, Mode.EXTEND)


def test_another_push_of_the_grammar_may_be_used():
    """An executor has several ways to push: `by` is one of them, and gets all that `push` gets."""
    engine, seen = Engine(), []

    def by(rows, *entry, who, **words):
        seen.append((rows, entry, who, words))
        return engine.grammar.push(rows, who=who)

    ticket = engine.runtime.push(2, "matchers", who="me", by=by, advances=True)
    assert ([(2, ("matchers",), "me", {"advances": True})], True) == (seen, engine.runtime.cancel(ticket))


def test_what_a_push_refuses_waits_for_nobody():
    """An entry that the grammar does not take is not counted."""
    engine = Engine()

    def by(rows, *, who):
        raise Burst

    with pytest.raises(Burst):
        engine.runtime.push(2, by=by)
    engine.serve(2, engine.push(2))


def test_without_a_grammar_there_is_nothing_to_push():
    """The runtime says so."""
    inputs = {"ids": Rows(torch.int64, pad=0)}
    runtime = GraphRuntime.for_step(lambda ids: ids, inputs=inputs, sizes=(2,), backend="emulated")
    for call in (lambda: runtime.push(1), lambda: runtime.cancel(None)):
        with pytest.raises(CallerError, match="there is no grammar"):
            call()


class Masked(FakeGrammar):
    """The fake queue, with a mask that allows the even tokens."""

    words = torch.tensor([[True, False]]).repeat(8, 1)

    def bind(self, batch):
        return self.words[: batch.rows]


def masked(seen, sizes):
    """A runtime of slots of these sizes, whose step notes the mask that it reads."""

    def step(batch):
        seen.append(batch.mask)
        return batch.ids

    law = load_spec("decode")
    ids = attrs.evolve(law.buffers["positions"], name="ids", per="request", rules=())
    words = {"sizes": sizes, "outputs": "request", "grammar": Masked(), "backend": "emulated", "observers": ()}
    law = attrs.evolve(law, buffers={"ids": ids}, outputs={})
    return GraphRuntime(law, step, geometry=Geometry(rows=max(sizes)), **words)


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("words", [{}, {"mode": Mode.EXTEND}, {"padded_to": 4}, {"padded_to": 3}])
@pytest.mark.parametrize("rows", [1, 3, 5])
def test_eager_steps_read_the_mask_of_their_size(captured, words, rows):
    """Whether a slot has that size or not, is captured or not, in any mode, and padded to any size (R18)."""
    seen, size = [], words.get("padded_to", rows)
    runtime = masked(seen, (2, 4))
    if captured:
        runtime.capture()
    if rows <= size:
        runtime.push(rows)
        runtime.eager(rows=rows, ids=torch.zeros(rows, dtype=torch.int64), **words)
        assert torch.equal(Masked.words[:size], seen[-1])


def test_an_eager_step_leaves_a_slots_batch_alone():
    """A slot that has bound no mask yet has none afterwards: its own step binds it."""
    runtime = masked([], (2, 4))
    runtime.push(2)
    runtime.eager(rows=2, padded_to=4, ids=torch.zeros(2, dtype=torch.int64))
    assert runtime.slots["default", 4].batch.mask is None
