"""One call at a time: threads that take turns may use a runtime, two at once, or a call in a call, are told so."""

from __future__ import annotations

import threading

import pytest
import torch

from tsgraph.backends.choice import choose_backend
from tsgraph.buffers.contract import Rows
from tsgraph.errors import BadBatch, CallerError, CaptureFailed, CaptureUnsupported, HostFunctionFailed, WrongThread
from tsgraph.keys import Reason
from tsgraph.runtime import GraphRuntime
from tsgraph.testing.fakes import FakeAttention

IDS = torch.tensor([1, 2, 3])
KEY = ("default", 4)


def build(step=lambda ids: ids + 1, *, backend="emulated", capture=True, **rest):
    """A runtime of one size. `step` may be called from the test, too."""
    words = {"inputs": {"ids": Rows(torch.int64, pad=0)}, "sizes": (4,), "outputs": "request", "observers": ()}
    words["policy"] = {"freeze_gc": False, **rest.pop("policy", {})}  # nothing here needs a collection
    runtime = GraphRuntime.for_step(step, backend=backend, **{**words, **rest})
    if capture:
        runtime.capture()
    return runtime


CALLS = {
    "a step": lambda runtime: runtime(ids=IDS),
    "a step with its decision": lambda runtime: runtime.step(ids=IDS),
    "an eager step": lambda runtime: runtime.eager(ids=IDS),
    "push": lambda runtime: runtime.push(3),
    "cancel": lambda runtime: runtime.cancel(None),
    "capture": lambda runtime: runtime.capture(),
    "fire": lambda runtime: runtime.fire(KEY, "warm"),
    "invalidate": lambda runtime: runtime.invalidate("a test", KEY),
    "release": lambda runtime: runtime.release(KEY),
    "reset": lambda runtime: runtime.reset(KEY),
    "wake": lambda runtime: runtime.wake(),
    "enabled": lambda runtime: setattr(runtime, "enabled", False),
    "close": lambda runtime: runtime.close(),
}
"""Every public entry that serves or changes."""


class Waiting:
    """A step that waits in another thread until it is let go."""

    def __init__(self):
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, ids):
        self.entered.set()
        assert self.go.wait(10)
        return ids + 1

    def served_meanwhile(self, runtime, block):
        """Run `block` while another thread is inside of a step; what that thread's step gave."""
        served = []
        thread = threading.Thread(target=lambda: served.append(runtime.eager(ids=IDS)))
        thread.start()
        try:
            assert self.entered.wait(10)
            block()
        finally:
            self.go.set()
            thread.join()
        return served[0]


# -- two threads -------------------------------------------------------------------------------------------------------


def test_no_call_comes_in_while_another_thread_is_inside():
    """Each entry says which call is inside, changes nothing, and the step of the other thread goes on undisturbed."""
    waiting = Waiting()
    runtime = build(waiting, capture=False)
    before = runtime.snapshot()["slots"]

    def call_all():
        for name, call in CALLS.items():
            with pytest.raises(WrongThread, match="in one thread while another is inside, with an eager step"):
                call(runtime)
            assert before == runtime.snapshot()["slots"], name

    assert [2, 3, 4] == waiting.served_meanwhile(runtime, call_all).tolist()
    assert runtime.enabled
    assert ("default/4",) == tuple(map(str, runtime.capture().captured))


def test_threads_may_take_turns():
    """A slot captured in a thread that is gone is replayed by others, with equal outputs (fault N2)."""
    runtime, got = build(capture=False), []
    for work in (runtime.capture, lambda: got.append(runtime(ids=IDS).clone())):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [[2, 3, 4], [2, 3, 4]] == [got[0].tolist(), runtime(ids=IDS).tolist()]
    assert 2 == runtime.slots[KEY].counts.replays


def test_a_capture_waits_for_nobody():
    """While another thread is served, a capture is refused at once (fault N1); the slots are as they were."""
    waiting = Waiting()
    runtime = build(waiting, capture=False)

    def capture():
        with pytest.raises(WrongThread) as refused:
            runtime.capture()
        assert ("capture", "an eager step") == (refused.value.context["asked"], refused.value.context["doing"])

    waiting.served_meanwhile(runtime, capture)
    assert "allocated" == runtime.slots[KEY].state


# -- a call inside a call ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_no_call_comes_in_from_inside_of_a_step(name):
    """A step that calls its own runtime is told so, and the runtime serves again when the step has raised."""
    box, inner = [], [CALLS[name]]

    def step(ids):
        while inner:
            inner.pop()(box[0])
        return ids + 1

    box.append(build(step, capture=False))
    with pytest.raises(WrongThread, match="from inside of an eager step of the same runtime"):
        box[0].eager(ids=IDS)
    assert [2, 3, 4] == box[0](ids=IDS).tolist()


class Calling(FakeAttention):
    """Metadata whose refresh may call the runtime."""

    inner = None

    def refresh(self, batch, live):
        if self.inner is not None:
            self.inner()


def test_no_call_comes_in_from_a_refresh():
    """A refresh that serves a step is refused before anything is staged for it, and the next replay is right."""
    attention = Calling()
    runtime = build(attention=attention)
    attention.inner = lambda: runtime(ids=IDS + 40)
    with pytest.raises(WrongThread, match="from inside of a step"):
        runtime(ids=IDS)
    attention.inner = None
    assert [2, 3, 4] == runtime(ids=IDS).tolist()


def test_no_call_comes_in_from_a_recording():
    """A step that serves its own runtime while it is recorded fails its slot, with the reason."""
    box = []

    def step(ids):
        if box and box[0].backend.recording:
            box[0](ids=IDS)
        return ids + 1

    box.append(build(step, capture=False, policy={"on_capture_failure": "raise"}))
    with pytest.raises(CaptureFailed, match="from inside of capture of the same runtime"):
        box[0].capture()
    assert [2, 3, 4] == box[0](ids=IDS).tolist()


def test_no_call_comes_in_from_a_host_function():
    """Python that a replay runs may not serve: its error is the host function's, told as ever."""
    backend, box = choose_backend("emulated", [], "cpu"), []

    def step(ids):
        backend.host_function(lambda: box and box[0](ids=IDS))
        return ids + 1

    runtime = build(step, backend=backend)
    box.append(runtime)
    served = runtime.step(ids=IDS)
    with pytest.raises(HostFunctionFailed, match="from inside of a step of the same runtime"):
        served.ready.wait()
    box.clear()
    assert [2, 3, 4] == runtime(ids=IDS).tolist()


def test_no_call_comes_in_from_an_observer():
    """An observer that serves is ejected with that error, and the step that it was told of goes on."""
    told, box = [], []
    runtime = build(capture=False, observers=[lambda event: box[0](ids=IDS), told.append])
    box.append(runtime)
    assert [2, 3, 4] == runtime(ids=IDS).tolist()
    ejected = next(event for event in told if event.name == "observer.ejected")
    assert "WrongThread" in ejected.fields["error"]


# -- inside of a recording ---------------------------------------------------------------------------------------------


def test_a_replay_is_refused_inside_of_another_recording():
    """Fault R1: a step that serves an inner runtime cannot be recorded around it, and is told what can."""
    inner = build()
    policy = {"on_capture_failure": "raise", "undeclared_writes": "allow"}  # warm-ups stage into the inner buffers
    outer = build(lambda ids: inner(ids=ids) + 1, capture=False, policy=policy)
    with pytest.raises(CaptureFailed, match="a step was asked for while the current stream is being recorded"):
        outer.capture()
    assert [2, 3, 4] == inner(ids=IDS).tolist()


def test_an_inner_eager_step_is_recorded_with_the_outer_one():
    """What the refusal recommends: the inner operations are recorded once, and every replay of the outer does them."""
    inner = build()
    outer = build(lambda ids: inner.eager(ids=ids) * 10, backend=inner.backend)
    assert [[20, 30, 40], [30, 40, 50]] == [outer(ids=IDS).tolist(), outer(ids=IDS + 1).tolist()]
    assert 2 == outer.slots[KEY].counts.replays


@pytest.mark.parametrize("name", ["a step", "capture", "fire", "release", "reset", "wake", "close"])
def test_work_of_the_device_is_refused_inside_of_a_recording(name):
    """Whoever records the current stream: the call is refused before any effect, and the recording ends well."""
    runtime, backend = build(), choose_backend("emulated", [], "cpu")
    with backend.record(backend.pool()) as graph, pytest.raises(CaptureUnsupported, match="is being recorded"):
        CALLS[name](runtime)
    graph.replay()
    assert ("replayable", [2, 3, 4]) == (runtime.slots[KEY].state, runtime(ids=IDS).tolist())


# -- after an error, a release, a close --------------------------------------------------------------------------------


def test_a_failed_call_leaves_the_way_free():
    """Whatever a call raises, the next one comes in: a bad batch, a step that raises, a trigger that is refused."""
    fails = []

    def step(ids):
        if fails:
            raise fails.pop()
        return ids + 1

    runtime = build(step)
    with pytest.raises(BadBatch):
        runtime(ids=IDS.float())
    with pytest.raises(CallerError):
        runtime.fire(KEY, "warm")
    fails.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        runtime.eager(ids=IDS)
    assert [2, 3, 4] == runtime(ids=IDS).tolist()


def test_a_released_slot_is_an_eager_decision():
    """A step after a release is no error: it runs eagerly, and the reason says so. Releasing twice is once (L6)."""
    runtime = build()
    runtime.release()
    runtime.release()
    done = runtime.step(ids=IDS)
    assert (Reason.SLOT_RELEASED, [2, 3, 4]) == (done.decision.reason, done.outputs.tolist())
    runtime.wake()
    assert Reason.PADDED is runtime.step(ids=IDS).decision.reason


@pytest.mark.parametrize("name", [name for name in CALLS if name != "close"])
def test_nothing_comes_in_after_closing(name):
    """A closed runtime says that it is closed, whatever is asked of it."""
    runtime = build(capture=name == "a step")
    with runtime:
        pass
    with pytest.raises(CallerError, match="asked of a runtime that is closed"):
        CALLS[name](runtime)


def test_closing_gives_everything_back():
    """Every slot is retired and the pool is empty; closing twice is once, and looking is still allowed."""
    runtime = build()
    assert 0 < runtime.backend.memory().pooled
    runtime.close()
    runtime.close()
    assert ("retired", 0) == (runtime.slots[KEY].state, runtime.snapshot()["memory"]["pooled"])
