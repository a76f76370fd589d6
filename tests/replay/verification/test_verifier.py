"""Whole verifications: right engines are found right and left as they were; time, rows and mistakes of the caller's."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch

from tests.replay.verification.accounts import Engine
from tests.runtime.planting import X, captured, floats, grammatical, ids
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.errors import BadBatch, CallerError, RuleViolation, WrongThread
from tsgraph.grammar.capturable import CapturableGrammar
from tsgraph.grammar.tickets import TicketQueue
from tsgraph.protocols.backend import Backend
from tsgraph.protocols.null import NullRecurrent
from tsgraph.runtime import GraphRuntime
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import Serving, Spec
from tsgraph.testing.fakes import FakeRanks, FakeSampler


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Everything alive is frozen once, so that the collections around each capture have little to walk."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# -- right engines ----------------------------------------------------------------------------------------------------


def everything(engine: Engine, runtime: GraphRuntime) -> dict[str, Any]:
    """All that a live engine goes on from."""
    buffers: Any = runtime.slots["default", 4].batch.buffers
    return {
        "totals": engine.totals.tolist(),
        "accepted": engine.accepted.tolist(),
        "buffers": {name: view.tolist() for name, view in buffers.items()},
        "random": torch.get_rng_state().tolist(),
        "queue": list(engine.grammar.queue),
        "snapshot": {**runtime.snapshot(), "memory": None},
        "ledger": attrs.asdict(runtime._parts.lifecycle.runtime_scope),
        "modes": (torch.is_inference_mode_enabled(), torch.is_grad_enabled()),
    }


@pytest.mark.parametrize("waits", [False, True], ids=["", "an entry waits"])
def test_a_live_engine_is_left_as_it_was(backend: Backend, waits: bool):
    """State, recurrent state, buffers, random generators, queue, counters and ledger; what waited is served next."""
    engine = Engine.on(backend)
    runtime = engine.runtime()
    runtime.push(3)
    runtime(rows=3, **engine.inputs(3))
    ticket = runtime.push(2) if waits else None
    before = everything(engine, runtime)
    report = runtime.verify(engine.inputs)
    report.raise_for_findings()
    assert before == everything(engine, runtime)
    if waits:
        assert engine.grammar.queue == [ticket]
        runtime(rows=2, **engine.inputs(2))
        assert not runtime.cancel(ticket)


def test_dummies_verify_any_engine(backend: Backend):
    """They show little, and the report says so; recurrent state is not asked about rows that have none."""
    engine = Engine.on(backend)
    report = engine.runtime().verify()
    report.raise_for_findings()
    weak, shared, no_update, unvaried, alike, free, *_ = report.evidence
    assert weak.startswith("dummy rows, each as in a warm-up")
    assert "share the pads' sinks" in shared
    assert "recurrent state was not updated" in no_update
    assert "account, amount, held: nothing shows that they are read" in unvaried
    assert "output['total'], output['account']: whatever was wrong could hardly show there" in alike
    assert "grammar entries were free ones" in free


def test_what_is_run_is_counted():
    """Every slot at 1, size - 1, size and 0 rows, after each history that there is; nothing is left out."""
    report = captured(lambda ids: ids + 1).verify(ids)
    assert (("default/4", "default/2"), True, ()) == (report.slots, report.ok, report.left_out)
    assert report.checked["eager steps"] == 7 * 2 + 7 + 5  # twice each, shuffled, and alone where there are live rows
    assert report.checked["equality"] == 7 * 6 - 2  # no larger batch than a full one
    assert report.checked["staging"] == 2 * 40 + 7  # before and after, and once by itself
    assert report.checked["replays"] == 40 + 5 + 7 + 2  # larger, others and idle ones beside
    assert 2 == report.checked["sinks"]


def test_slots_and_rows_may_be_chosen():
    """Sizes that do not have so many rows are passed over."""
    runtime = captured(lambda ids: ids + 1)
    report = runtime.verify(ids, slots=[("default", 2)])
    assert ("default/2",) == report.slots
    report = runtime.verify(ids, rows=(3,))
    assert (6, ("default/4", "default/2")) == (report.checked["equality"], report.slots)


def test_a_slot_that_cannot_be_replayed_is_left_out_or_refused():
    """It is said which, and a slot that was asked for by name is an error."""
    runtime = captured(lambda ids: ids + 1)
    runtime.invalidate("planted", ("default", 4))
    report = runtime.verify(ids)
    assert (("default/2",), ("slot default/4 [stale]: it cannot be replayed",)) == (report.slots, report.left_out)
    with pytest.raises(CallerError, match="cannot be verified"):
        runtime.verify(ids, slots=[("default", 4)])


def test_without_padding_there_are_full_slots_only():
    """No pad row is ever served, so none is tried."""
    law = load_spec("decode")
    exact = attrs.evolve(law, sizes=attrs.evolve(law.sizes, padding=False))
    runtime = captured(lambda ids: ids + ids.amin(), spec=exact)
    report = runtime.verify(ids)
    assert report.ok
    assert "sinks" not in report.checked
    assert not runtime.verify(ids, rows=(1,)).ok


def test_leased_outputs_are_verified_too():
    """Outputs that were handed out before have expired then, as after any replay."""
    runtime = captured(lambda ids: ids + 1, policy={"outputs": "leased"})
    assert runtime.verify(ids).ok


def test_several_ranks_verify_together():
    """Each runs the same; only a time would part them."""
    runtime = captured(lambda ids: ids + 1, ranks=FakeRanks(count=2))
    assert runtime.verify(ids).ok
    with pytest.raises(CallerError, match="several ranks cannot be verified for a time"):
        runtime.verify(ids, seconds=5)


def test_a_real_queue_is_balanced():
    """Entries go through host functions of the graphs, also where the spec leaves pushing to the engine."""
    law = load_spec("decode")
    for spec in (law, without_pushes(law)):
        backend = EmulatedBackend()
        grammar = CapturableGrammar(backend, rows=4, vocabulary=8)

        def step(batch: Any, grammar: CapturableGrammar = grammar) -> Any:
            grammar.fork(batch)
            drawn = batch.ids + grammar.mask(batch)[:, 0].long()
            grammar.finish(drawn)
            return drawn

        runtime = grammatical(step, backend, grammar, spec)
        assert runtime.verify(ids).ok
        queue: TicketQueue = grammar.queue
        assert (0, queue.pushed) == (len(queue), queue.consumed + queue.cancelled)
        assert () == grammar._masks.remembered


def without_pushes(law: Spec) -> Spec:
    """The law without the engine's pushes: they are its own affair."""
    of_entries = ("push_entry", "take_entry", "abandon_entry")
    return attrs.evolve(
        law,
        serving=Serving(replay=("serve_replay",), eager=("serve_eager",)),
        steps={name: step for name, step in law.steps.items() if name not in of_entries},
        rules=tuple(rule for rule in law.rules if not set(rule.guards) & set(of_entries)),
    )


def test_random_steps_are_the_same_numbers():
    """Every run begins at the same random numbers; across shapes they are others, and that is said."""
    runtime = captured(lambda x: x + torch.rand(3, len(x), device=x.device).sum(0), inputs={"x": X})
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    report = runtime.verify(floats)
    assert report.ok
    assert ("the step draws random numbers: it was not compared across shapes, which change them",) == report.left_out
    assert torch.equal(expected, torch.rand(1))


def test_memory_that_a_recording_left_to_the_step_is_nobodys_state():
    """A step that keeps what it returned holds memory of the pool, which replays may write."""
    kept: dict[str, torch.Tensor] = {}

    def step(ids: torch.Tensor) -> torch.Tensor:
        kept["last"] = ids + 1
        return kept["last"]

    assert captured(step).verify(ids).ok


def test_a_sampler_and_its_memory_are_put_back():
    """What a step counts in the sampler's own memory is part of the live state."""

    class Counting(FakeSampler):
        """Counts steps in memory of its own, which it declares as written."""

        counts = torch.zeros(2, dtype=torch.int64)

        @property
        def written(self):
            return {"counts": self.counts}

    sampler = Counting()
    sampler.counts = torch.zeros(2, dtype=torch.int64)
    backend = EmulatedBackend()
    backend.adopt([sampler.counts])

    def step(ids: torch.Tensor) -> torch.Tensor:
        sampler.counts.add_(1)
        return ids + 1

    runtime = captured(step, sampler=sampler, backend=backend)
    before = sampler.counts.tolist()
    assert runtime.verify(ids).ok
    assert before == sampler.counts.tolist()


def test_recurrent_state_without_memory_is_fine():
    """A part that holds no tensor has nothing to compare."""
    assert captured(lambda ids: ids + 1, recurrent=NullRecurrent()).verify(ids).ok


# -- time -------------------------------------------------------------------------------------------------------------


def test_no_time_verifies_nothing_and_says_so():
    """A report of nothing is not ok."""
    report = captured(lambda ids: ids + 1).verify(ids, seconds=0)
    assert (False, "not verified: no slot was replayed") == (report.ok, report.verdict)
    assert (
        "slot default/4, out of time: 3 live rows, 4 live rows, 1 live row, 0 live rows",
        "slot default/2, out of time: 1 live row, 2 live rows, 0 live rows",
    ) == report.left_out


def test_little_time_goes_a_long_way(monkeypatch: pytest.MonkeyPatch):
    """Each slot is tried at its most telling number of rows before any is at the next; what a case lacks is told."""
    runtime = captured(lambda ids: ids + 1)
    clock = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    report = runtime.verify(ids, seconds=11)
    assert report.ok
    assert (
        "slot default/2, out of time: 1 live row (dirty, larger, shuffled, others), 2 live rows, 0 live rows",
        "slot default/4, out of time: 4 live rows, 1 live row, 0 live rows",
    ) == tuple(sorted(report.left_out))


@pytest.mark.parametrize("words", [{"seconds": -1}, {"tolerance": -0.1}, {"tolerance": float("nan")}])
def test_what_cannot_be_is_refused(words: dict[str, Any]):
    """Before anything is run."""
    with pytest.raises(BadBatch, match=min(words)):
        captured(lambda ids: ids + 1).verify(ids, **words)


# -- the caller's mistakes --------------------------------------------------------------------------------------------


def test_wrong_inputs_are_refused_and_nothing_has_changed(backend: Backend):
    """A source that does not fit is the caller's, not a finding; so is a call from inside of `inputs`."""
    engine = Engine.on(backend)
    runtime = engine.runtime()
    before = everything(engine, runtime)
    with pytest.raises(BadBatch, match="amount"):
        runtime.verify(lambda rows: {**engine.inputs(rows), "amount": torch.zeros(rows, 2)})
    with pytest.raises(WrongThread):
        runtime.verify(lambda rows: runtime.eager(rows=rows, **engine.inputs(rows)))
    assert before == everything(engine, runtime)


def test_rules_may_refuse():
    """A slot that was left with an entry keeps every forward from being served."""
    engine = Engine.on(EmulatedBackend())
    runtime = engine.runtime()
    runtime.release(("default", 4))
    runtime.reset(("default", 4))
    for trigger in ("warm", "bind", "capture"):
        runtime.fire(("default", 4), trigger)
    with pytest.raises(RuleViolation, match="R22"):
        runtime.verify(engine.inputs)
