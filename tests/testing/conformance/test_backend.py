"""`check_backend`: the shipped backends pass, and each planted fault is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

import attrs
import pytest
import torch

from tests.testing.conformance.branch_faults import BRANCH_FAULTS, MORE_BRANCH_FAULTS
from tests.testing.conformance.host_faults import HOST_FAULTS, MORE_HOST_FAULTS
from tests.testing.conformance.planting import assert_all_planted, assert_found, named
from tests.testing.conformance.stager_faults import MORE_STAGER_FAULTS, STAGER_FAULTS
from tsgraph.backends.choice import choose_backend
from tsgraph.backends.emulated import EmulatedBackend, memory
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.backends.emulated.memory import EmulatedPool
from tsgraph.backends.emulated.streams import current_stream, default_stream
from tsgraph.errors import BadBatch, CaptureUnsupported, ReplayFailed
from tsgraph.protocols.backend import Memory, Reached
from tsgraph.testing.conformance import BACKEND, Promises, check_backend
from tsgraph.testing.conformance.backend import BackendTrial


@pytest.mark.parametrize("kind", ["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_shipped_backends_pass(kind: str):
    """Every promise of the protocol, on every backend there is."""
    check_backend(lambda: choose_backend(kind, [], "cpu" if kind == "emulated" else "cuda"))


def test_an_unchecked_emulation_passes():
    """What it does not find is not of the protocol."""
    check_backend(lambda: EmulatedBackend(checked=False))


@attrs.define(eq=False)
class Wrapped:
    """A graph around an emulated one."""

    graph: EmulatedGraph
    backend: Any

    @property
    def bytes(self) -> int:
        return self.graph.bytes

    def replay(self) -> None:
        self.graph.replay()

    def release(self) -> None:
        self.graph.release()


class Wrapping(EmulatedBackend):
    """A right backend whose graphs are `wrapper`s."""

    wrapper: Any = Wrapped

    def record(self, pool: Any, **words: Any) -> AbstractContextManager[Any]:
        return self.wrapping(super().record(pool, **words))

    @contextmanager
    def wrapping(self, recording: AbstractContextManager[Any]) -> Iterator[Any]:
        with recording as graph:
            yield self.wrapper(graph, self)


class Nameless(EmulatedBackend):
    name = ""


class IsElsewhere(EmulatedBackend):
    device = torch.device("meta")

    def _make(self, *words: Any) -> torch.Tensor:
        self.device = torch.device("cpu")
        made = super()._make(*words)
        self.device = torch.device("meta")
        return made


class FillsWithZeros(EmulatedBackend):
    def allocate(self, shape: Sequence[int], dtype: torch.dtype, fill: float) -> torch.Tensor:
        return super().allocate(shape, dtype, 0)


class Shares(EmulatedBackend):
    made: Any = None

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, fill: float) -> Any:
        if self.made is None or self.made.shape != torch.Size(shape):
            self.made = super().allocate(shape, dtype, fill)
        return self.made


class MakesInferenceTensors(EmulatedBackend):
    def pin(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)


class PinsOnTheDevice(EmulatedBackend):
    def pin(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self.allocate(shape, dtype, 0)


class AdoptsOnce(EmulatedBackend):
    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        listed = list(tensors)
        if any(map(self.holds, listed)):
            raise BadBatch("adopted before")
        super().adopt(listed)


class AdoptsAll(EmulatedBackend):
    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            with suppress(BadBatch):
                super().adopt([tensor])


class HoldsAll(EmulatedBackend):
    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_contiguous()


class HasOnePool(EmulatedBackend):
    made: Any = None

    def pool(self) -> Any:
        self.made = self.made or super().pool()
        return self.made


class LosesWork(EmulatedBackend):
    """What a block does on the side stream is not there afterwards, as if nothing had waited for it."""

    kept: Any = None

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, fill: float) -> Any:
        self.kept = super().allocate(shape, dtype, fill)
        return self.kept

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        before = self.kept.clone()
        with super().side_stream():
            yield
        self.kept.copy_(before)


class Swallows(EmulatedBackend):
    @contextmanager
    def side_stream(self) -> Iterator[None]:
        with suppress(ValueError), super().side_stream():
            yield


@attrs.define
class LateMark:
    """Done once something has waited for it."""

    finished: bool = False
    late: bool = False

    def wait(self) -> None:
        self.finished = not self.late

    def done(self) -> bool:
        return self.finished


class SynchronizesNothing(EmulatedBackend):
    def ready(self) -> Any:
        return LateMark()


class IsNeverReady(EmulatedBackend):
    def ready(self) -> Any:
        return LateMark(late=True)


class TrimsTooMuch(LosesWork):
    def trim(self) -> None:
        self.kept.fill_(float("nan"))


class CountsBadly(EmulatedBackend):
    changes: Any = {}  # noqa: RUF012 - set by the faults

    def memory(self) -> Memory:
        return attrs.evolve(super().memory(), **self.changes)


class HasMoreFreeThanAll(CountsBadly):
    changes = {"total": 1}  # noqa: RUF012 - a fault


class CountsNoBytes(CountsBadly):
    changes = {"allocated": 0}  # noqa: RUF012 - a fault


class CountsNoPools(CountsBadly):
    changes = {"pooled": 0}  # noqa: RUF012 - a fault


class RunsWhileItRecords(Wrapping):
    @contextmanager
    def wrapping(self, recording: AbstractContextManager[Any]) -> Iterator[Any]:
        yield Wrapped(EmulatedGraph(EmulatedPool()), self)


class ReplaysOnce(Wrapped):
    ran = False

    def replay(self) -> None:
        if not self.ran:
            super().replay()
        self.ran = True


class ReplaysOnceOnly(Wrapping):
    wrapper = ReplaysOnce


class TurnsErrors(Wrapping):
    @contextmanager
    def wrapping(self, recording: AbstractContextManager[Any]) -> Iterator[Any]:
        try:
            with recording as graph:
                yield graph
        except Exception as error:
            raise TypeError("the recording failed") from error


class SwallowsErrors(Wrapping):
    @contextmanager
    def wrapping(self, recording: AbstractContextManager[Any]) -> Iterator[Any]:
        with suppress(ValueError), recording as graph:
            yield graph


class BreaksForGood(Wrapping):
    """One failure, and something is left behind."""

    broken = False

    @contextmanager
    def wrapping(self, recording: AbstractContextManager[Any]) -> Iterator[Any]:
        if self.broken:
            self.recordings_are_refused()
        try:
            with recording as graph:
                self.latest = graph
                yield graph
        except Exception:
            self.broken = True
            self.leave_something()
            raise

    def recordings_are_refused(self) -> None:
        raise CaptureUnsupported("the stream is still capturing")

    def leave_something(self) -> None:
        """The stream capturing."""


class SpoilsEagerWork(BreaksForGood):
    kept: Any = None

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, fill: float) -> Any:
        self.kept = super().allocate(shape, dtype, fill)
        return self.kept

    def recordings_are_refused(self) -> None:
        """It goes on."""

    def leave_something(self) -> None:
        self.kept.fill_(9)


class RecordsNothingAfterwards(BreaksForGood):
    def recordings_are_refused(self) -> None:
        """It goes on, in vain."""

    @contextmanager
    def wrapping(self, recording: AbstractContextManager[Any]) -> Iterator[Any]:
        with super().wrapping(recording) as graph:
            yield graph
            graph.replay = (lambda: None) if self.broken else graph.replay


class KeepsFailedMemory(BreaksForGood):
    def recordings_are_refused(self) -> None:
        """It goes on."""

    def leave_something(self) -> None:
        self.latest._pool._allocator.take(1 << 20)
        self.latest._pool._graphs.add(self)


class FailsAll(BreaksForGood):
    first: Any = None

    @contextmanager
    def wrapping(self, recording: AbstractContextManager[Any]) -> Iterator[Any]:
        with super().wrapping(recording) as graph:
            self.first = self.first or graph
            yield graph

    def leave_something(self) -> None:
        self.first.release()


class TellsNothingOfSyncs(Wrapping):
    @contextmanager
    def wrapping(self, recording: AbstractContextManager[Any]) -> Iterator[Any]:
        try:
            with recording as graph:
                yield graph
        except CaptureUnsupported as error:
            raise RuntimeError("operation not permitted when stream is capturing") from error


class HasPoolsOfItsOwn(EmulatedBackend):
    def record(self, pool: Any, **words: Any) -> AbstractContextManager[Any]:
        return super().record(self.pool(), **words)


class UsesAPoolOnce(EmulatedBackend):
    used: Any = None

    def record(self, pool: Any, **words: Any) -> AbstractContextManager[Any]:
        if self.used is pool and not pool._graphs:
            raise ReplayFailed("use count of the pool is 0")
        self.used = pool
        return super().record(pool, **words)


class Replays(Wrapped):
    """A graph with one fault, by the class attributes of its backend."""

    def replay(self) -> None:
        if self.backend.own_stream and current_stream() is not default_stream():
            raise ReplayFailed("not on the default stream")
        super().replay()

    def release(self) -> None:
        if self.backend.once and self.graph._state == "released":
            raise ReplayFailed("released twice")
        if not self.backend.keeps:
            super().release()
        if self.backend.all:
            graphs: list[Any] = list(self.graph._pool._graphs)
            for graph in graphs:
                graph.release()


class OneFault(Wrapping):
    wrapper = Replays
    own_stream = once = keeps = all = False


class ReplaysOnTheDefaultStream(OneFault):
    own_stream = True


class ReleasesOnce(OneFault):
    once = True


class NeverReleases(OneFault):
    keeps = True


class ReleasesAll(OneFault):
    all = True


@attrs.define(eq=False)
class Silent(Wrapped):
    """A graph that lists nothing of what is in it."""

    listing = functions = ()


class ListsNothing(Wrapping):
    wrapper = Silent


@attrs.define(eq=False)
class ReachesNothing(Wrapped):
    """A graph that says it is handed nothing."""

    @property
    def reach(self) -> Any:
        return {}


@attrs.define(eq=False)
class ReachesItsPool(Wrapped):
    """A graph that says it is handed all that any operation of its recording wrote."""

    @property
    def reach(self) -> Any:
        made = {lease.alias.data_ptr(): Reached("", 0) for lease in list(memory._LEASES.values())}
        return {**self.graph.reach, **made}


class TellsNoReach(Wrapping):
    wrapper = ReachesNothing


class TellsTooMuchReach(Wrapping):
    wrapper = ReachesItsPool


class PoolsHoldAll(EmulatedBackend):
    def pool(self) -> Any:
        pool: Any = super().pool()
        pool.holds = lambda _: True
        return pool


PLANTED: dict[str, Any] = {
    "has_a_name": Nameless,
    "device_is_where_buffers_live": IsElsewhere,
    "allocate_fills": FillsWithZeros,
    "allocate_shares_nothing": Shares,
    "allocate_is_no_inference": MakesInferenceTensors,
    "pin_gives_host_memory": PinsOnTheDevice,
    "adopt_repeats": AdoptsOnce,
    "adopt_refuses": AdoptsAll,
    "holds_tells_place": HoldsAll,
    "pool_is_new": HasOnePool,
    "side_stream_is_ordered": LosesWork,
    "side_stream_raises": Swallows,
    "synchronize_waits": SynchronizesNothing,
    "ready_can_be_waited_for": IsNeverReady,
    "trim_spares_what_is_used": TrimsTooMuch,
    "memory_adds_up": HasMoreFreeThanAll,
    "memory_counts_allocations": CountsNoBytes,
    "record_runs_nothing": RunsWhileItRecords,
    "replay_reads_inputs": ReplaysOnceOnly,
    "replay_copies_pinned_memory": ReplaysOnceOnly,
    "record_raises_the_blocks_error": TurnsErrors,
    "record_cleans_up": BreaksForGood,
    "record_gives_memory_back": KeepsFailedMemory,
    "record_spares_other_graphs": FailsAll,
    "record_refuses_syncs": TellsNothingOfSyncs,
    "record_refuses_nesting": TellsNothingOfSyncs,
    "record_shares_its_pool": HasPoolsOfItsOwn,
    "record_reuses_a_pool": UsesAPoolOnce,
    **BRANCH_FAULTS,
    **HOST_FAULTS,
    **STAGER_FAULTS,
    "bytes_are_the_growth": CountsNoPools,
    "replay_runs_on_the_current_stream": ReplaysOnTheDefaultStream,
    "release_repeats": ReleasesOnce,
    "release_ends_replays": NeverReleases,
    "release_spares_other_graphs": ReleasesAll,
    "release_gives_memory_back": NeverReleases,
    "listing_tells_kinds": ListsNothing,
    "reach_tells_memory_outside": TellsNoReach,
    "functions_are_named": ListsNothing,
    "pool_holds_what_recordings_take": PoolsHoldAll,
}


def test_every_promise_has_a_planted_fault():
    """None of the checks is idle."""
    assert_all_planted(BACKEND, PLANTED)


FURTHER: list[tuple[str, Any]] = [
    ("record_raises_the_blocks_error", SwallowsErrors),
    ("record_cleans_up", SpoilsEagerWork),
    ("record_cleans_up", RecordsNothingAfterwards),
    ("reach_tells_memory_outside", TellsTooMuchReach),
    *MORE_BRANCH_FAULTS,
    *MORE_HOST_FAULTS,
    *MORE_STAGER_FAULTS,
]


@pytest.mark.parametrize(("name", "faulty"), [*PLANTED.items(), *FURTHER])
def test_a_fault_is_found(name: str, faulty: Any):
    """Planted, and named by protocol and member."""
    alone = Promises(BACKEND.protocol, [named(BACKEND, name)])
    make: Callable[[], BackendTrial] = partial(BackendTrial, faulty)
    assert_found(BACKEND, name, lambda: alone.check(make))
