"""What an emulated replay costs beside the same step run eagerly, for each slot of the reference engine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import cast

import attrs
import torch
from rich.console import Console
from rich.table import Table

from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.bench.machine import describe_machine
from tsgraph.bench.report import count
from tsgraph.bench.turns import Timings, time_turns
from tsgraph.reference import EngineConfig, Parts, graph_runtime

SAYS = "emulated replay of the reference decoder's decode step against its eager step on the same inputs"
_TURNS, _ROWS = 50, 16


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `replay` benchmark."""
    parser = subparsers.add_parser("replay", help=SAYS, description=SAYS)
    parser.add_argument(
        "--turns", type=count, default=_TURNS, metavar="N", help=f"times that each is run (default: {_TURNS})"
    )
    parser.add_argument("--rows", type=count, default=_ROWS, metavar="N", help=f"rows at most (default: {_ROWS})")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it, and print a table."""
    table = Table("rows", "nodes", "eager ms", "replay ms", "replay / eager", box=None)
    for measured in measure_slots(EngineConfig(rows=args.rows), args.turns):
        table.add_row(*measured.cells())
    console = Console(highlight=False)
    console.print(f"{SAYS}\n{describe_machine()}\nmedians of {args.turns} turns", soft_wrap=True)
    console.print(table)
    return 0


@attrs.frozen
class Measured:
    """One slot: its `size` in rows, how many `nodes` its recording has, and the times of replay and eager."""

    size: int
    nodes: int
    timings: Timings

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        eager, replay = (f"{self.timings.median(way) * 1e3:.2f}" for way in ("eager", "replay"))
        return str(self.size), str(self.nodes), eager, replay, f"{self.ratio:.2f}"

    @property
    def ratio(self) -> float:
        """What a replay takes for each second of an eager step."""
        return self.timings.ratio("replay", "eager")


def measure_slots(config: EngineConfig, turns: int) -> Iterator[Measured]:
    """Each slot of an engine of `config`, smallest first. Both paths read and write the very same tensors."""
    parts = Parts.build(config)
    runtime = graph_runtime(parts, backend="emulated")
    for slot in sorted(runtime.slots.values(), key=lambda slot: slot.key.size):
        graph = cast(EmulatedGraph, slot.graph)
        with torch.inference_mode():
            timings = time_turns({"replay": graph.replay, "eager": partial(parts.step, slot.batch)}, turns)
        yield Measured(slot.key.size, len(graph.nodes), timings)
