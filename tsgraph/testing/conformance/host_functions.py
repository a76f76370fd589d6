"""What a backend promises about host functions: when they run, what becomes of their errors, how long they live."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from functools import partial

import torch

from tsgraph.errors import CaptureUnsupported, HostFunctionFailed
from tsgraph.protocols.backend import Backend, Graph
from tsgraph.testing.conformance.backend import BACKEND, PLANTED, BackendTrial, holding
from tsgraph.testing.conformance.recordings import record

SECONDS = 30
"""How long a backend may take to run what was queued."""


def fails() -> None:
    """A host function that raises."""
    raise ValueError(PLANTED)


def failing(trial: BackendTrial, on_error: Callable[[], object] | None = None) -> Graph:
    """A graph of one host function that raises."""
    return record(trial.part, trial.part.pool(), partial(trial.part.host_function, fails, on_error=on_error))[0]


def adding(trial: BackendTrial) -> tuple[Graph, torch.Tensor]:
    """A graph that adds 1 to a tensor of ones, and the tensor."""
    x = trial.filled(1)
    return record(trial.part, trial.part.pool(), lambda: x.add_(1))[0], x


def told(call: Callable[[], object]) -> str:
    """What `call` raised of a host function, as it prints; nothing if it raised nothing."""
    try:
        call()
    except HostFunctionFailed as error:
        return str(error)
    return ""


def settle(backend: Backend) -> None:
    """Wait until all that was queued is done, without asking for errors."""
    mark, end = backend.ready(), time.monotonic() + SECONDS
    while not mark.done() and time.monotonic() < end:
        time.sleep(0.001)


@BACKEND.promise("host_function", "one call at each replay, and none while it is recorded")
def host_functions_run_at_replays(trial: BackendTrial) -> str | None:
    """Three replays are three calls."""
    calls: list[int] = []
    graph, _ = record(trial.part, trial.part.pool(), lambda: trial.part.host_function(lambda: calls.append(1)))
    trial.part.synchronize()
    counts = [len(calls)]
    for _ in range(3):
        graph.replay()
    trial.part.synchronize()
    return None if [*counts, len(calls)] == [0, 3] else f"{counts[0]} while recorded, {len(calls)} in all"


@BACKEND.promise("host_function", "its turn between the work before it and the work after it")
def host_functions_run_in_order(trial: BackendTrial) -> str | None:
    """It finds what was copied to it before, and what it writes is copied back after it."""
    x, host = trial.filled(1), trial.part.pin((4,), torch.float32)

    def step() -> None:
        host.copy_(x, non_blocking=True)
        trial.part.host_function(lambda: host.mul_(3))
        x.copy_(host, non_blocking=True)
        x.add_(1)

    graph, _ = record(trial.part, trial.part.pool(), step)
    for _ in range(3):
        graph.replay()
    return holding(40, x)


@BACKEND.promise("host_function", "one call in order outside a recording")
def host_functions_run_once_alone(trial: BackendTrial) -> str | None:
    """It finds what was copied before it, and runs no second time."""
    x, host, seen = trial.filled(7), trial.part.pin((4,), torch.float32), list[float]()
    host.copy_(x, non_blocking=True)
    trial.part.host_function(lambda: seen.append(float(host[0])))
    host.copy_(x.add_(1), non_blocking=True)
    trial.part.synchronize()
    trial.part.synchronize()
    return None if seen == [7] else f"{seen} seen by it"


@BACKEND.promise("host_function", "later work to run, after its error as ever")
def host_errors_stop_nothing(trial: BackendTrial) -> str | None:
    """Kernels, and other host functions; at the next replay, too."""
    x, calls = trial.filled(1), list[int]()

    def step() -> None:
        trial.part.host_function(fails)
        x.mul_(2)
        trial.part.host_function(lambda: calls.append(1))

    graph, _ = record(trial.part, trial.part.pool(), step)
    for _ in range(2):
        graph.replay()
        told(trial.part.synchronize)
    return holding(4, x) or (None if calls == [1, 1] else f"{len(calls)} calls of the function after it")


@BACKEND.promise("host_function", "`on_error` in its place when it raises, and only then")
def host_errors_fail_closed(trial: BackendTrial) -> str | None:
    """What `on_error` writes is there for the work that follows."""
    x, host, broken = trial.filled(1), trial.part.pin((4,), torch.float32), [True]

    def build() -> None:
        host.fill_(5)
        if broken[0]:
            fails()

    def step() -> None:
        trial.part.host_function(build, on_error=lambda: host.fill_(-1))
        x.copy_(host, non_blocking=True)

    graph, _ = record(trial.part, trial.part.pool(), step)
    for value in (-1, 5):
        graph.replay()
        told(trial.part.synchronize)
        if got := holding(value, x):
            return got
        broken[0] = False
    return None


@BACKEND.promise("Ready.wait", "HostFunctionFailed with the traceback, of a host function before the mark")
def wait_tells_host_errors(trial: BackendTrial) -> str | None:
    """Of a replay, and of one alone."""
    graph = failing(trial)
    for run in (graph.replay, lambda: trial.part.host_function(fails)):
        run()
        says = told(trial.part.ready().wait)
        if "ValueError" not in says or "Traceback" not in says or PLANTED not in says:
            return says or "no error"
    return None


@BACKEND.promise("Ready.wait", "the same error again, of the step that the mark ends")
def wait_tells_host_errors_again(trial: BackendTrial) -> str | None:
    """Whoever asks whether the step is done learns that it failed, also where a synchronisation has told it."""
    graph = failing(trial)
    graph.replay()
    mark = trial.part.ready()
    told(trial.part.synchronize)
    return None if told(mark.wait) and told(mark.wait) else "no error the second time"


@BACKEND.promise("Ready.wait", "no error of what comes after the mark")
def wait_spares_earlier_steps(trial: BackendTrial) -> str | None:
    """The step before one that fails is good."""
    graph = failing(trial)
    mark = trial.part.ready()
    graph.replay()
    settle(trial.part)
    return told(mark.wait) or None


@BACKEND.promise("host_function", "its error raised once")
def host_errors_are_told_once(trial: BackendTrial) -> str | None:
    """After a mark, the next replay, the next mark and a synchronisation raise nothing."""
    graph = failing(trial)
    other, _ = adding(trial)
    graph.replay()
    if not told(trial.part.ready().wait):
        return "no error"
    for call in (other.replay, lambda: trial.part.ready().wait(), trial.part.synchronize):
        if says := told(call):
            return f"again: {says}"
    return None


@BACKEND.promise("Graph.replay", "HostFunctionFailed, with nothing run, of earlier work that no mark covers")
def replay_tells_host_errors(trial: BackendTrial) -> str | None:
    """At the latest; the one after that runs."""
    graph, (other, x) = failing(trial), adding(trial)
    graph.replay()
    settle(trial.part)
    if not told(other.replay):
        return "no error"
    other.replay()
    return holding(2, x)


@BACKEND.promise("Graph.replay", "no error of a step whose mark will tell")
def replay_leaves_errors_to_marks(trial: BackendTrial) -> str | None:
    """Other steps go on."""
    graph, (other, x) = failing(trial), adding(trial)
    graph.replay()
    mark = trial.part.ready()
    settle(trial.part)
    return told(other.replay) or holding(2, x) or (None if told(mark.wait) else "no error of the mark")


@BACKEND.promise("synchronize", "HostFunctionFailed of all work that was queued, and once")
def synchronize_tells_host_errors(trial: BackendTrial) -> str | None:
    """With its traceback, also where a mark could tell."""
    graph = failing(trial)
    graph.replay()
    kept = trial.part.ready()
    says = told(trial.part.synchronize)
    if PLANTED not in says or "Traceback" not in says:
        return says or "no error"
    return told(trial.part.synchronize) or (None if kept.done() else "a mark that is not done")


@BACKEND.promise("host_function", "CaptureUnsupported for what calls the backend inside it")
def host_functions_may_not_call(trial: BackendTrial) -> str | None:
    """Another host function, a synchronisation, a replay: each would wait for itself."""
    inner, _ = adding(trial)
    calls = (lambda: trial.part.host_function(gc.isenabled), trial.part.synchronize, inner.replay, trial.part.ready)
    for call in calls:
        trial.part.host_function(call)
        says = told(trial.part.synchronize)
        if CaptureUnsupported.__name__ not in says:
            return says or "no error"
    return None


class Handle:
    """A host function that can be seen to be gone."""

    def __init__(self, calls: list[int]) -> None:
        self.calls = calls

    def __call__(self) -> None:
        """Note the call."""
        time.sleep(0.001)
        self.calls.append(1)


@BACKEND.promise("host_function", "kept as long as its graph, until queued replays have run, and no longer")
def host_functions_live_as_long(trial: BackendTrial) -> str | None:
    """A release while replays are queued harms none of them."""
    calls: list[int] = []
    handle = Handle(calls)
    alive = weakref.ref(handle)
    graph, _ = record(trial.part, trial.part.pool(), partial(trial.part.host_function, handle))
    del handle
    gc.collect()
    for _ in range(20):
        graph.replay()
    graph.release()
    trial.part.synchronize()
    gc.collect()
    return f"{len(calls)} of 20 calls" if len(calls) != 20 else None if alive() is None else "one that is never freed"
