"""What a host function costs in a CUDA graph, and how much of its time a forward hides."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

import attrs
import torch
from rich.console import Console
from rich.table import Table

from tsgraph.backends.choice import choose_backend
from tsgraph.bench.machine import describe_machine
from tsgraph.protocols.backend import Backend, Graph

SAYS = "host functions in a graph: time of a launch, latency, and what kernels beside them hide"
_TURNS, _WIDTH, _LAYERS, _MICROSECONDS = 200, 2048, 40, 500


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `host-functions` benchmark."""
    parser = subparsers.add_parser("host-functions", help=SAYS, description=SAYS)
    for option, default, told in (
        ("--turns", _TURNS, "times that each is run"),
        ("--width", _WIDTH, "rows and columns of the matrices that are multiplied beside it"),
        ("--layers", _LAYERS, "products beside it"),
        ("--microseconds", _MICROSECONDS, "Python that it does"),
    ):
        parser.add_argument(option, type=int, default=default, metavar="N", help=f"{told} (default: {default})")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it on the CUDA device, and print a table. Raises: BadBatch without one."""
    backend = choose_backend("cuda", [], "cuda")
    table = Table("graph", "launch µs", "whole µs", box=None)
    measured = list(measure(backend, args.turns, args.width, args.layers, args.microseconds))
    for each in measured:
        table.add_row(each.name, f"{each.launch * 1e6:.1f}", f"{each.whole * 1e6:.1f}")
    console = Console(highlight=False)
    console.print(f"{SAYS}\n{describe_machine()}\nmedians of {args.turns} turns", soft_wrap=True)
    console.print(table)
    console.print(f"of the shorter of kernels and function, {hidden(measured):.0%} is hidden by the other")
    return 0


@attrs.frozen
class Measured:
    """Medians in seconds for the graph called `name`: of its `launch`, and of the `whole` until all is done."""

    name: str
    launch: float
    whole: float


def hidden(measured: list[Measured]) -> float:
    """How much of the shorter of kernels and function ran beside the other: 0 none, 1 all."""
    whole = {each.name: each.whole for each in measured}
    kernels, function = whole["kernels"], whole["function"]
    return (kernels + function - whole["both"]) / min(kernels, function)


def measure(backend: Backend, turns: int, width: int, layers: int, microseconds: int) -> Iterator[Measured]:
    """Four graphs: an empty function, kernels alone, a function alone, and both side by side."""
    x = backend.allocate((width, width), torch.float32, 1 / width)
    side = torch.cuda.Stream()

    def kernels() -> None:
        for _ in range(layers):
            torch.mm(x, x)

    def function() -> None:
        backend.host_function(lambda: _work(microseconds / 1e6))

    def both() -> None:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            function()
        kernels()
        main.wait_stream(side)

    steps: dict[str, Callable[[], None]] = {
        "nothing": lambda: backend.host_function(_nothing),
        "kernels": kernels,
        "function": function,
        "both": both,
    }
    for name, step in steps.items():
        _warm_up(backend, step)
        with backend.record(backend.pool()) as graph:
            step()
        yield _timed(name, backend, graph, turns)
        graph.release()


def _nothing() -> None:
    """A host function that costs what any does."""


def _work(seconds: float) -> None:
    """Python that keeps the interpreter busy."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


def _warm_up(backend: Backend, step: Callable[[], None]) -> None:
    with backend.side_stream():
        step()
    backend.synchronize()


def _timed(name: str, backend: Backend, graph: Graph, turns: int) -> Measured:
    launches: list[float] = []
    wholes: list[float] = []
    for _ in range(turns):
        began = perf_counter()
        graph.replay()
        launches.append(perf_counter() - began)
        backend.synchronize()
        wholes.append(perf_counter() - began)
    return Measured(name, median(launches), median(wholes))
