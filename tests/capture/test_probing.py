"""A probe records a step twice, and leaves everything as it was."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from tsgraph import GraphRuntime, Rows, State, is_capturing
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.capture.probing import probe_constants
from tsgraph.errors import CaptureFailed
from tsgraph.testing.fakes import all_fakes

IDS = torch.tensor([1, 2])


@pytest.fixture
def engine():
    """A runtime with every collaborator and a state, sampling with a temperature that is a Python number."""
    calls, sampling = [], SimpleNamespace(temperature=1.0, raises=False)
    fakes, backend = all_fakes(calls), EmulatedBackend()
    state, undeclared = torch.zeros(4, dtype=torch.int64), torch.ones(1)
    backend.adopt([undeclared])

    def step(ids):
        if not is_capturing():  # a recording runs no host function: its entry stays queued
            fakes["grammar"].consume()
        elif sampling.raises:
            raise ValueError("planted")
        state.index_copy_(0, ids % 4, ids)
        large = torch.rand(1 << 20 if sampling.temperature > 2 else 1, device=ids.device)
        return ids / sampling.temperature * undeclared + large[:1] * 0

    runtime = GraphRuntime.for_step(
        step,
        inputs={"ids": Rows(torch.int64, pad=0, source="call")},
        sizes=(2, 4),
        outputs="request",
        state={"state": State(state, sink=0)},
        backend=backend,
        observers=[lambda event: calls.append(("event", event.name))],
        policy={"freeze_gc": False},
        **fakes,
    )
    return SimpleNamespace(runtime=runtime, backend=backend, state=state, calls=calls, sampling=sampling, fakes=fakes)


def at(sampling, temperature):
    """A context with that temperature."""

    @contextmanager
    def sampled():
        before, sampling.temperature = sampling.temperature, temperature
        yield
        sampling.temperature = before

    return sampled


def probe(engine, *temperatures, size=4):
    """A probe of the slot of that size."""
    parts = engine.runtime._parts
    contexts = tuple(at(engine.sampling, each) for each in temperatures)
    return probe_constants(parts.capturer, engine.runtime.slots["default", size].batch, contexts)


def everything(engine):
    """What a probe must leave as it is."""
    runtime = engine.runtime
    snapshot = runtime.snapshot()
    return {
        "slots": [(slot.state, slot.history, slot.graph, slot.receipt) for slot in runtime.slots.values()],
        "memory": {key: snapshot["memory"][key] for key in ("allocated", "pooled")},
        "counters": snapshot["counters"],
        "rng": torch.get_rng_state().tolist(),
        "state": engine.state.tolist(),
        "rows": {name: tensor.tolist() for name, tensor in runtime._parts.engine.arena.tensors().items()},
        "queue": list(engine.fakes["grammar"].queue),
        "runtime scope": repr(runtime._parts.lifecycle.runtime_scope.copy()),
        "capturing": is_capturing(),
    }


@pytest.mark.parametrize("captured", [False, True])
def test_a_probe_disturbs_nothing(engine, captured):
    """Slots, memory, counters, random numbers, state, rows, and an entry that waits; before a capture and after one."""
    if captured:
        engine.runtime.capture()
        engine.runtime.push(2)
        expected = engine.runtime(ids=IDS).tolist()
    engine.runtime._parts.engine.arena.tensors()["ids"].fill_(7)
    ticket = engine.runtime.push(2)
    before = everything(engine)
    told = [call for call in engine.calls if call[0] == "event"]
    found = probe(engine, 1.0, 3.0)
    assert before == everything(engine)
    assert told == [call for call in engine.calls if call[0] == "event"]
    assert {"size": ("[1]", "[1048576]"), "other": ("1.0", "3.0")} == {
        each.argument: (each.first, each.second) for each in found.constants
    }
    assert () == found.first.kept == found.second.kept
    if captured:
        assert expected == engine.runtime(ids=IDS).tolist()
    else:
        engine.runtime.cancel(ticket)
        engine.runtime.capture()
        assert ("event", "slot.undeclared_read") in engine.calls


def test_equal_circumstances_differ_in_nothing(engine):
    """Two recordings of one step are the same recording."""
    found = probe(engine, 1.0, 1.0)
    assert (True, (), ()) == (found.clean, found.constants, found.others)


def test_a_probe_that_cannot_be_captured_leaves_nothing(engine):
    """The error is raised whatever the policy says of captures, and all is as before."""
    before = everything(engine)
    engine.sampling.raises = True
    with pytest.raises(CaptureFailed, match="planted"):
        probe(engine, 1.0, 2.0)
    assert before == everything(engine)


def test_rows_hold_what_is_declared_for_probes_the_second_time_alone():
    """A buffer's `probe` word is in its rows when metadata are bound; without one they are as in a warm-up."""
    seen = []

    class Attention:
        honours: dict[str, set[float]] = {}  # noqa: RUF012 - what it honours
        kv_indices = None

        def __init__(self):
            from tsgraph.protocols.collaborators import Capabilities

            self.capabilities = Capabilities()

        def init_state(self, setup):
            """Nothing to make."""

        def bind(self, batch):
            seen.append((batch.lengths.tolist(), batch.ids.tolist()))

        def refresh(self, batch, live):
            """Nothing."""

        begin_eager = bind

    inputs = {"ids": Rows(torch.int64, pad=5), "lengths": Rows(torch.int32, pad=1, warm=2, probe=64)}
    runtime = GraphRuntime.for_step(
        lambda ids, lengths: ids + lengths,
        inputs=inputs,
        sizes=(2,),
        outputs="request",
        backend=EmulatedBackend(),
        attention=Attention(),
        policy={"freeze_gc": False},
    )
    probe_constants(runtime._parts.capturer, runtime.slots["default", 2].batch)
    half = len(seen) // 2
    assert {((2, 2), (5, 5))} == {tuple(map(tuple, each)) for each in seen[:half]}
    assert {((64, 64), (5, 5))} == {tuple(map(tuple, each)) for each in seen[half:]}
    assert [[1, 1], [5, 5]] == [
        tensor.tolist() for _, tensor in sorted(runtime._parts.engine.arena.tensors().items(), reverse=True)
    ]
