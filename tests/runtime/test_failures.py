"""A capture that fails anywhere leaves everything else as it was, and the next one works."""

import contextlib
import gc

import pytest
import torch

from tsgraph.buffers.contract import Rows
from tsgraph.capture.mode import is_capturing
from tsgraph.capture.pipeline import Pipeline
from tsgraph.errors import CaptureFailed, IllegalTransition
from tsgraph.keys import Reason
from tsgraph.runtime import GraphRuntime
from tsgraph.spec.load import load_spec
from tsgraph.testing.fakes import all_fakes

LAW = load_spec("decode")
ROUTE = ("warm", "bind", "capture", "drain")
STEPS = [(trigger, step) for trigger in ROUTE for step in LAW.lifecycle.transition(trigger).steps]
IDS = torch.tensor([1, 2, 3])


class Broken(RuntimeError):
    """A planted failure."""


@pytest.fixture
def state(backend):
    """State that a step writes: only row 0 may be written by pads."""
    return torch.zeros(4, dtype=torch.int64, device=backend.device)


def build(backend, state, **rest):
    """A runtime with every collaborator, a state, and two sizes."""
    from tsgraph.buffers.contract import State

    fakes = all_fakes([]) | rest

    def step(ids):
        if not is_capturing():  # a recording runs no host function: its entry stays queued
            fakes["grammar"].consume()
        state.index_copy_(0, ids % 4, ids)
        return ids + 1

    return GraphRuntime.for_step(
        step,
        inputs={"ids": Rows(torch.int64, pad=0)},
        sizes=(2, 4),
        outputs="request",
        state={"state": State(state, sink=0)},
        backend=backend,
        **fakes,
    )


def globals_now(backend):
    """Everything process-wide that a capture touches."""
    return {
        "capturing": is_capturing(),
        "gc enabled": gc.isenabled(),
        "gc frozen": gc.get_freeze_count() > 0,
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "cpu rng": torch.get_rng_state().tolist(),
        "stream": torch.cuda.current_stream() if backend.name == "cuda" else None,
        "cuda capturing": backend.name == "cuda" and torch.cuda.is_current_stream_capturing(),
        "cuda rng": torch.cuda.get_rng_state().tolist() if backend.name == "cuda" else None,
    }


def plant(monkeypatch, trigger, step, size, error):
    """Make `step` of `trigger` fail for the slot of `size`, after its work is done."""
    work = getattr(Pipeline, step)
    firing = []

    def failing(self):
        outcome = work(self)
        if self.slot.key.size == size and self.slot.state == LAW.lifecycle.transition(trigger).source[0] and not firing:
            firing.append(step)
            raise error
        return outcome

    monkeypatch.setattr(Pipeline, step, failing)
    return firing


@pytest.mark.parametrize(("trigger", "step"), STEPS)
def test_a_failure_at_any_step_costs_that_slot_only(monkeypatch, backend, state, trigger, step):
    """Flags, collector, random and state rows, memory are as before; the other slot serves; the next capture works."""
    grammar = all_fakes([])["grammar"]
    runtime = build(backend, state, grammar=grammar)
    before = globals_now(backend)
    with monkeypatch.context() as patch:
        fired = plant(patch, trigger, step, 4, Broken("planted"))
        summary = runtime.capture()
    slot = runtime.slots["default", 4]
    assert ([step], "failed", [("default", 4)]) == (fired, slot.state, [tuple(key) for key in summary.failed])
    assert before == globals_now(backend)
    assert ([0, 0, 0], []) == (state[1:].tolist(), grammar.queue)
    assert (None, None, 0) == (slot.graph, slot.outputs, slot.bytes)
    if backend.name == "emulated":  # CUDA's allocator may keep the segment for the pool's next recording
        assert runtime.slots["default", 2].bytes == backend.memory().pooled
    assert "Broken: planted" in str(slot.cause)
    assert (Reason.SLOT_FAILED, Reason.EXACT) == (runtime.explain(3).reason, runtime.explain(2).reason)
    runtime.push(3)
    expected = runtime(ids=IDS).tolist()
    runtime.reset()
    runtime.capture()
    assert ("replayable", Reason.PADDED) == (slot.state, runtime.explain(3).reason)
    runtime.push(3)
    assert expected == runtime(ids=IDS).tolist()
    assert globals_now(backend)["gc frozen"] == before["gc frozen"]


def test_an_interrupt_cleans_up_and_goes_on(monkeypatch, backend, state):
    """Ctrl-C inside a recording is not swallowed, and leaves nothing switched on."""
    runtime = build(backend, state)
    before = globals_now(backend)
    with monkeypatch.context() as patch:
        plant(patch, "capture", "record", 4, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            runtime.capture()
    assert (before, "failed") == (globals_now(backend), runtime.slots["default", 4].state)
    runtime.reset()
    assert (("default", 4), ("default", 2)) == runtime.capture().captured


@pytest.mark.parametrize("where", ["python", "sync"])
def test_a_step_that_fails_inside_its_recording_names_the_cause(backend, where):
    """An exception, or a host sync that no recording may contain, fails the slot with the operation in its message."""

    def step(ids):
        if is_capturing() and where == "python":
            raise Broken("inside the recording")
        if is_capturing():
            ids.sum().item()
        return ids + 1

    runtime = GraphRuntime.for_step(
        step, inputs={"ids": Rows(torch.int64, pad=0)}, sizes=(2,), outputs="request", backend=backend
    )
    before = globals_now(backend)
    runtime.capture()
    slot = runtime.slots["default", 2]
    assert ("failed", before) == (slot.state, globals_now(backend))
    assert ("inside the recording" if where == "python" else "item") in slot.cause.detail
    assert [2] == runtime(ids=torch.tensor([1])).tolist()


def test_a_spoilt_recording_serves_nothing_though_its_error_was_swallowed(backend):
    """Fault L5: what made the recording invalid is an error at its end; the slot serves eagerly until it is mended."""
    spoils = [True]

    def step(ids):
        if is_capturing() and spoils:
            with contextlib.suppress(RuntimeError):
                torch.ones(2, device=ids.device).sum().item()
        return ids + 1

    runtime = GraphRuntime.for_step(
        step, inputs={"ids": Rows(torch.int64, pad=0)}, sizes=(2,), outputs="request", backend=backend
    )
    runtime.capture()
    slot, done = runtime.slots["default", 2], runtime.step(ids=IDS[:2])
    assert ("failed", None) == (slot.state, slot.graph)
    assert (Reason.SLOT_FAILED, [2, 3]) == (done.decision.reason, done.outputs.tolist())
    spoils.clear()
    runtime.wake()
    assert ("replayable", [2, 3]) == (slot.state, runtime(ids=IDS[:2]).tolist())


def test_memory_comes_back_after_failures(backend):
    """Ten failed recordings of a megabyte each leave no pool bytes behind (fault L3)."""

    def step(ids):
        grown = torch.zeros(1 << 18, device=ids.device)
        if is_capturing():
            raise Broken("after allocating")
        return ids + grown[0].to(ids.dtype)

    runtime = GraphRuntime.for_step(
        step, inputs={"ids": Rows(torch.int64, pad=0)}, sizes=(2,), outputs="request", backend=backend
    )
    runtime.capture()
    backend.trim()
    before = backend.memory()
    for _ in range(10):
        runtime.reset()
        runtime.capture()
    backend.trim()
    after = backend.memory()
    assert (before.pooled, before.allocated) == (after.pooled, after.allocated)


def test_an_error_says_slot_step_cause_and_what_to_do(backend, state):
    """The error of a hand-fired trigger names slot, trigger, step and cause, and says how to go on."""

    def broken(ids):
        raise Broken("planted")

    runtime = GraphRuntime.for_step(
        broken, inputs={"ids": Rows(torch.int64, pad=0)}, sizes=(2,), outputs="request", backend=backend
    )
    with pytest.raises(CaptureFailed) as caught:
        runtime.fire(("default", 2), "warm")
    expected = "slot default/2 could not be captured: warm failed at step forward: planted"
    assert expected in str(caught.value)
    assert {"slot": "default/2", "state": "failed", "trigger": "warm", "step": "forward"} == caught.value.context
    assert "reset" in caught.value.hint


def test_a_trigger_out_of_order_changes_nothing(backend, state):
    """Capture before warm-up is refused before any effect, and says what is legal and what leads there."""
    runtime = build(backend, state)
    slot = runtime.slots["default", 4]
    history = slot.history
    with pytest.raises(IllegalTransition) as caught:
        runtime.fire(("default", 4), "capture")
    assert (history, "allocated") == (slot.history, slot.state)
    assert "warm" in str(caught.value)
    assert (False, "state") == (slot.can("capture"), slot.explain("capture").refusal.kind)


def test_slots_can_be_walked_by_hand(backend, state):
    """Firing the route's triggers one by one ends where capture does."""
    runtime = build(backend, state)
    for trigger in ROUTE:
        assert runtime.slots["default", 4].can(trigger)
        runtime.fire(("default", 4), trigger)
    assert ("replayable", Reason.PADDED) == (runtime.slots["default", 4].state, runtime.explain(3).reason)


def test_stale_released_and_reset_slots_say_why(backend, state):
    """Invalidated and released slots keep their cause, their steps turn eager and say why; wake serves again."""
    runtime = build(backend, state)
    runtime.capture()
    runtime.push(3)
    expected = runtime(ids=IDS).clone()
    runtime.invalidate("weights were loaded", ("default", 4))
    assert (Reason.SLOT_STALE, True) == (
        runtime.explain(3).reason,
        "weights were loaded" in str(runtime.slots["default", 4].cause),
    )
    runtime.release()
    assert (Reason.SLOT_RELEASED, 0) == (runtime.explain(2).reason, sum(slot.bytes for slot in runtime.slots.values()))
    assert 0 == backend.memory().pooled
    runtime.wake()
    assert (None, Reason.PADDED) == (runtime.slots["default", 4].cause, runtime.explain(3).reason)
    runtime.push(3)
    assert torch.equal(expected, runtime(ids=IDS))


def test_memory_goes_back_to_the_system_with_the_last_graph(monkeypatch, backend, state):
    """Releasing one slot keeps the pool for the others; with the last one it is dropped, and the device is trimmed."""
    runtime = build(backend, state)
    runtime.capture()
    trimmed = []
    monkeypatch.setattr(backend, "trim", lambda: trimmed.append(backend))
    runtime.release(("default", 4))
    before = list(trimmed)
    runtime.release()
    assert ([], [backend]) == (before, trimmed)
