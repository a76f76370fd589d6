"""End-to-end decode throughput: eager, one self-feeding graph, and through tsgraph, on the same steps."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, Protocol

import torch

from tsgraph.bench.decoding import Eager, Model, Replayed, Served
from tsgraph.bench.host import backend_for
from tsgraph.bench.models import PROMPT, SHAPES, llama, reference
from tsgraph.bench.report import Data, Report, Sheet, add_outputs, count, counts, progress, publish
from tsgraph.bench.settings import is_emulated
from tsgraph.bench.turns import Timings
from tsgraph.errors import CallerError
from tsgraph.protocols.backend import Backend

SAYS = "decode throughput of the reference engine and of Llamas: eager, a graph that feeds itself, and tsgraph"
EAGER, RAW, TSGRAPH = "eager", "raw graph", "tsgraph"
_BATCHES, _STEPS, _TURNS, _EAGER_STEPS = (1, 8, 32, 128), 64, 5, 8

Say = Callable[[str], None]
Make = Callable[[str, Backend, int, int], Model]


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `decode` benchmark."""
    parser = subparsers.add_parser("decode", help=SAYS, description=SAYS)
    names = ("reference", *SHAPES)
    parser.add_argument(
        "--models", type=_models, default=names, metavar="NAMES", help=f"which, with commas between: {', '.join(names)}"
    )
    parser.add_argument("--batches", type=counts, default=_BATCHES, metavar="NS", help=f"rows of a step ({_BATCHES})")
    parser.add_argument("--steps", type=count, default=_STEPS, metavar="N", help=f"steps between two waits ({_STEPS})")
    parser.add_argument("--turns", type=count, default=_TURNS, metavar="N", help=f"times that each is run ({_TURNS})")
    parser.add_argument("--backend", default="auto", choices=("auto", "cuda", "emulated"), help="where to measure")
    add_outputs(parser, "models", "batches", "steps", "turns", "backend")
    parser.set_defaults(run=run)


def _models(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in ("reference", *SHAPES):
            raise argparse.ArgumentTypeError(f"there is no model {name!r}; there are reference, {', '.join(SHAPES)}")
    return names


def run(args: argparse.Namespace) -> int:
    """Measure on the CUDA device, or emulated where there is none, and print the table."""
    data = {"steps": args.steps, "cases": list(measure(args, make_model, progress("decode")))}
    return publish(Report.of("decode", args, data), list(sheets(data)), args)


def make_model(name: str, backend: Backend, rows: int, context: int) -> Model:
    """The model called `name`. Raises: CallerError for a Llama without transformers, or without a GPU to hold it."""
    if name == "reference":
        return reference(backend, rows, context)
    if is_emulated(backend):
        raise CallerError(f"{name} is too large for this machine's CPU", hint="run it on a GPU")
    return llama(name, backend, rows, context)


# -- measuring --------------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace, make: Make, say: Say) -> Iterator[Data]:
    """A case for each model and batch. A model that cannot be made is told, and left out."""
    for name in args.models:
        say(f"{name}: making it")
        backend = backend_for(args.backend)
        try:
            model = make(name, backend, max(args.batches), PROMPT + args.steps + 1)
        except CallerError as error:
            say(str(error))
            continue
        yield from _measure_model(model, args, say)
        del model
        backend.trim()


def _measure_model(model: Model, args: argparse.Namespace, say: Say) -> Iterator[Data]:
    say(f"{model.name}: capturing {args.batches}")
    began = perf_counter()
    runtime = model.runtime(tuple(sorted(args.batches)))
    captured = perf_counter() - began
    if len(runtime.slots.in_state(*runtime.spec.lifecycle.replays_in)) < len(runtime.slots):
        causes = [f"{slot}: {slot.cause}" for slot in runtime.slots.values() if slot.cause]
        raise RuntimeError(f"{model.name} was not captured: {'; '.join(causes)}")
    for rows in args.batches:
        say(f"{model.name}: {rows} rows")
        ways: dict[str, Way] = {
            EAGER: Eager(model, rows),
            RAW: Replayed(model, rows),
            TSGRAPH: Served(model, rows, runtime, args.steps),
        }
        yield {"model": model.name, "rows": rows, "capture": captured, **measure_ways(ways, model.backend, args)}
    runtime.release()


class Way(Protocol):
    """One way to decode."""

    def begin(self) -> None:
        """Back to the first step."""

    def run(self, steps: int) -> torch.Tensor:
        """So many steps; returns the last tokens."""


def measure_ways(ways: Mapping[str, Way], backend: Backend, args: argparse.Namespace) -> Data:
    """Seconds of one step of each way, waiting for the device once at the end of a run of steps, in turns.

    Eager steps are slow and steady, so a run of them is shorter. All ways must draw the same tokens.
    """
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    steps = {way: min(args.steps, _EAGER_STEPS) if way == EAGER else args.steps for way in ways}
    same = _same_tokens(ways, min(args.steps, _EAGER_STEPS))
    for turn in range(args.turns):
        order = list(ways)[:: 1 if turn % 2 else -1]
        for way in order:
            seconds[way].append(_timed(ways[way], steps[way], backend))
    timings = Timings(seconds)
    return {"ways": timings.figures(), "tsgraph over raw": timings.ratio(RAW, TSGRAPH), "same tokens": same}


def _same_tokens(ways: Mapping[str, Way], steps: int) -> float:
    """The share of rows whose last token all ways agree on, after the same steps; this also warms them up."""
    drawn = []
    for way in ways.values():
        way.begin()
        drawn.append(way.run(steps).clone())
    equal = torch.stack([each == drawn[0] for each in drawn]).all(0)
    return float(equal.float().mean())


def _timed(way: Way, steps: int, backend: Backend) -> float:
    way.begin()
    backend.synchronize()
    began = perf_counter()
    way.run(steps)
    backend.synchronize()
    return (perf_counter() - began) / steps


# -- telling ----------------------------------------------------------------------------------------------------------


def sheets(data: Data) -> Iterator[Sheet]:
    """The table of a run."""
    rows = tuple(_row(case) for case in data["cases"])
    columns = ("", "batch", "eager", "raw graph", "tsgraph", "tsgraph / raw graph", "ms of a step, raw", "same tokens")
    runs = f"Medians of runs of {data['steps']} steps with one wait at the end."
    fed = "The raw graph feeds itself on the device: a step of it is one launch and nothing else."
    yield Sheet("Decode throughput, tokens/s", columns, rows, (f"{runs} {fed}",))


def _row(case: Data) -> tuple[str, ...]:
    ways: Mapping[str, Any] = case["ways"]
    speeds = (f"{case['rows'] / ways[way]['median']:,.0f}" for way in (EAGER, RAW, TSGRAPH))
    step = f"{ways[RAW]['median'] * 1e3:.3f}"
    ratio, same = f"{case['tsgraph over raw']:.3f}", f"{case['same tokens']:.0%}"
    return (case["model"], str(case["rows"]), *speeds, ratio, step, same)
