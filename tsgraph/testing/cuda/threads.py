"""The layers of each thread: torch's modes belong to one thread, the emulation to the whole process.

They lie at the bottom of a thread's stacks, so that they can be put there, and taken away, inside other modes: those
find on top what they put there. A thread that another emulation has left behind keeps layers that do nothing.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tsgraph.backends.emulated import streams
from tsgraph.backends.emulated.residence import Residence
from tsgraph.testing.cuda import stacks
from tsgraph.testing.cuda.functions import EmulatedFunctions, Switch
from tsgraph.testing.cuda.operators import EagerOperators

_START = threading.Thread.start


class Layers(threading.local):
    """The two layers of the thread that asks, and how many hold them; made for each thread on its first use."""

    def __init__(self, residence: Residence, generator: torch.Generator, switch: Switch) -> None:
        self.functions = EmulatedFunctions(residence, generator, switch)
        self.operators = EagerOperators(self.functions)
        self.on = False

    def put(self) -> None:
        """Put them on this thread; twice is once."""
        if not self.on:
            stacks.sink_functions(self.functions)
            stacks.sink_operators(self.operators)
            self.on = True

    def take(self) -> None:
        """Take them off this thread."""
        if self.on:
            stacks.drop_functions(self.functions)
            stacks.drop_operators(self.operators)
            self.on = False


@contextmanager
def on_this_thread(layers: Layers) -> Iterator[None]:
    """The block runs under `layers`, on the default stream."""
    layers.put()
    try:
        with streams.using(streams.default_stream()):
            yield
    finally:
        layers.take()


def starting_with(layers: Layers) -> Callable[[threading.Thread], None]:
    """What to put in the place of `threading.Thread.start`: what the thread runs, it runs under `layers`."""

    def start(thread: threading.Thread) -> None:
        thread.run = _under(layers, thread.run)  # type: ignore[method-assign]  # this thread's alone
        _START(thread)

    return start


def _under(layers: Layers, run: Callable[[], object]) -> Callable[[], None]:
    @functools.wraps(run)
    def run_under() -> None:
        with on_this_thread(layers):
            run()

    return run_under
