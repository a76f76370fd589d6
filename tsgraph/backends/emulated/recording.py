"""A recording under way: the two layers, the memory it takes, and everything put back as it was on every exit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.functions import FunctionMode
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.backends.emulated.memory import EmulatedPool
from tsgraph.backends.emulated.operations import OperationMode
from tsgraph.backends.emulated.residence import Residence


class Recording:
    """Takes memory from `pool` for what a step makes, and makes a graph of what the step does."""

    def __init__(self, residence: Residence, pool: EmulatedPool) -> None:
        self._residence = residence
        self._pool = pool
        self._taken: list[torch.UntypedStorage] = []
        self._functions = FunctionMode(residence)
        self._operations = OperationMode(self._functions, self._allocate)

    @contextmanager
    def run(self) -> Iterator[EmulatedGraph]:
        """Record the block."""
        graph, before = EmulatedGraph(self._pool), self._pool.bytes
        try:
            with current.recording(), _torch_as_it_was(), self._operations, self._functions:
                yield graph
        except BaseException:
            self._discard(graph, self._pool.bytes - before)
            raise
        else:
            graph.finish(self._operations.launches, self._pool.bytes - before)
        finally:  # this object is in a reference cycle: what it held would outlive the graph
            self._taken.clear()
            self._operations.launches.clear()

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        tensor = self._pool.allocate(like.shape, like.stride(), like.dtype)
        self._residence.add(tensor)
        self._taken.append(tensor.untyped_storage())  # not the tensor: torch would copy what somebody else holds
        return tensor

    def _discard(self, graph: EmulatedGraph, count: int) -> None:
        graph.fail()
        self._residence.forget(self._taken)
        self._pool.give_back(count)


@contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Run the block with compilation off, and without a trace in the random numbers or in autocast's cache.

    A compiled callable would run its kernels unseen; forced to be eager, it is recorded like any other function. A cast
    that autocast kept from before would be a host tensor here; one kept from here would be read before any replay.
    """
    numbers = torch.get_rng_state()
    torch.clear_autocast_cache()
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.clear_autocast_cache()
        torch.set_rng_state(numbers)
