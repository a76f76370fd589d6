"""`check_backend`, and what a backend promises about graphs: their bytes, where they run, what a release gives back."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

import torch

from tsgraph.protocols.backend import Backend
from tsgraph.testing.conformance import (  # noqa: F401 - their promises are the backend's, too
    branches,
    host_functions,
    stagers,
)
from tsgraph.testing.conformance.backend import BACKEND, BackendTrial, holding
from tsgraph.testing.conformance.recordings import LARGE, record


def check_backend(factory: Callable[[], Backend]) -> None:
    """Check every promise of `Backend` on what `factory` makes, anew for each.

    Raises: Nonconformance that lists all promises broken.
    """
    BACKEND.check(lambda: BackendTrial(factory))


@BACKEND.promise("Graph.bytes", "the bytes by which the recording grew its pool")
def bytes_are_the_growth(trial: BackendTrial) -> str | None:
    """And the pools' bytes are among the device's."""
    x, pool = trial.filled(1, LARGE), trial.part.pool()
    before = pool.bytes
    graph, kept = record(trial.part, pool, lambda: x * 2)
    told = pool.bytes - before, trial.part.memory().pooled
    fits = kept.nbytes <= graph.bytes == told[0] <= told[1]
    return None if fits else f"{graph.bytes}; its pool grew by {told[0]}, all pools have {told[1]}"


@BACKEND.promise("Graph.replay", "work on the caller's current stream")
def replay_runs_on_the_current_stream(trial: BackendTrial) -> str | None:
    """A replay on the capture stream is ordered as other work there is."""
    x = trial.filled(0, 1 << 16)
    graph, _ = record(trial.part, trial.part.pool(), lambda: x.mul_(2))
    for _ in range(8):
        x.add_(1)
        with trial.part.side_stream():
            graph.replay()
    return holding(510, x)


@BACKEND.promise("Graph.release", "twice to be once")
def release_repeats(trial: BackendTrial) -> str | None:
    """Also after its pool serves others."""
    x, pool = trial.filled(1), trial.part.pool()
    graph, _ = record(trial.part, pool, lambda: x * 2)
    graph.release()
    graph.release()
    kept, tripled = record(trial.part, pool, lambda: x * 3)
    graph.release()
    kept.replay()
    return holding(3, tripled)


@BACKEND.promise("Graph.release", "an error from a replay after it")
def release_ends_replays(trial: BackendTrial) -> str | None:
    """Nothing is run."""
    x = trial.filled(1)
    graph, _ = record(trial.part, trial.part.pool(), lambda: x.add_(1))
    graph.release()
    try:
        graph.replay()
    except RuntimeError:
        return holding(1, x)
    return "no error"


@BACKEND.promise("Graph.release", "the other graphs of its pool unharmed")
def release_spares_other_graphs(trial: BackendTrial) -> str | None:
    """They replay as before."""
    x, pool = trial.filled(1), trial.part.pool()
    gone, _ = record(trial.part, pool, lambda: x * 2)
    graph, tripled = record(trial.part, pool, lambda: x * 3)
    gone.release()
    graph.replay()
    return holding(3, tripled)


@BACKEND.promise("Graph.release", "all memory back with the last graph of a pool")
def release_gives_memory_back(trial: BackendTrial) -> str | None:
    """Once its outputs are dropped and unused memory is trimmed."""
    x, pool = trial.filled(1, LARGE), trial.part.pool()
    doubled, _ = record(trial.part, pool, lambda: x * 2)
    tripled, _ = record(trial.part, pool, lambda: x * 3)
    doubled.release()
    tripled.release()
    del _
    gc.collect()
    trial.part.trim()
    return f"{pool.bytes} bytes in its pool" if pool.bytes else None


@BACKEND.promise("Graph.listing", "its nodes by kind, or None where the device does not tell")
def listing_tells_kinds(trial: BackendTrial) -> str | None:
    """Of one kernel and one host function."""
    x = trial.filled(1)

    def block() -> None:
        x.mul_(2)
        trial.part.host_function(_nothing)

    graph, _ = record(trial.part, trial.part.pool(), block)
    kinds = None if graph.listing is None else sorted(node.kind for node in graph.listing)
    return None if kinds in (None, ["host", "kernel"]) else ", ".join(kinds) or "no node"


@BACKEND.promise("Graph.reach", "the memory outside of its pool that it is handed, or None where nothing tells")
def reach_tells_memory_outside(trial: BackendTrial) -> str | None:
    """What it reads, writes, copies and fills; neither an output of its own nor a tensor beside them."""
    read, copied, filled, beside = (trial.filled(at) for at in range(4))

    def block() -> torch.Tensor:
        doubled = read * 2
        copied.copy_(doubled)
        filled.zero_()
        return doubled

    graph, doubled = record(trial.part, trial.part.pool(), block)
    handed, other = (_starts(each) for each in ((read, copied, filled), (beside, doubled)))
    reach = graph.reach
    if reach is None or (handed <= reach.keys() and not other & reach.keys()):
        return None
    found, beyond = len(handed & reach.keys()), len(other & reach.keys())
    return f"{found} of {len(handed)} tensors, and {beyond} that it is not handed"


def _starts(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@BACKEND.promise("Graph.functions", "its host functions, with the lines that put them there")
def functions_are_named(trial: BackendTrial) -> str | None:
    """Each once, in order."""
    x = trial.filled(1)

    def block() -> None:
        x.mul_(2)
        trial.part.host_function(_nothing)

    graph, _ = record(trial.part, trial.part.pool(), block)
    told = [(each.name, each.line) for each in graph.functions]
    return None if [name for name, line in told if ":" in line] == ["_nothing"] else repr(told)


def _nothing() -> None:
    """What a device calls."""


@BACKEND.promise("Pool.holds", "the memory that its recordings take, and no other")
def pool_holds_what_recordings_take(trial: BackendTrial) -> str | None:
    """An output is in it, a static buffer is not."""
    x, pool = trial.filled(1), trial.part.pool()
    graph, doubled = record(trial.part, pool, lambda: x * 2)
    graph.replay()
    told = pool.holds(doubled.data_ptr()), pool.holds(x.data_ptr())
    return None if told == (True, False) else f"{told[0]} for an output, {told[1]} for a static buffer"
