"""Every way in which rows reach the static buffers, side by side: host time, device time, launches."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import attrs
import torch

from tsgraph.backends.ring import TRAYS
from tsgraph.bench import costs
from tsgraph.bench.host import host_backend
from tsgraph.bench.report import Data, Report, Sheet, add_outputs, count, micro, progress, publish, times
from tsgraph.bench.settings import LIVE, MARKS, SETTINGS, SIZES, Setting, is_emulated, sources_of, step_on
from tsgraph.bench.turns import Action, time_turns
from tsgraph.buffers.stagings import Stagings
from tsgraph.capture.pipeline import Engine
from tsgraph.protocols.backend import Backend
from tsgraph.runtime import GraphRuntime

SAYS = "ways to stage a call: taken by the graph (of the ring, of a landing), launched, copied; from host and device"
RAW = "raw replay"
_TURNS, _AHEAD, _SLEEP = 300, 2, 2_000_000


@attrs.frozen
class Way:
    """One way. `policy`, `reads`: the words that choose it; `host`: where sources are."""

    name: str
    policy: Any
    reads: Any = "ring"
    host: bool = True


WAYS = (
    Way("graph takes the ring, host", "auto"),
    Way("graph takes a landing, host", "auto", "landing"),
    Way("launch, host", "launch"),
    Way("launch, device", "launch", host=False),
    Way("copies, host", "copies"),
    Way("copies, device", "copies", host=False),
)


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `staging` benchmark."""
    parser = subparsers.add_parser("staging", help=SAYS, description=SAYS)
    parser.add_argument("--turns", type=count, default=_TURNS, metavar="N", help=f"times that each is run ({_TURNS})")
    ahead = f"calls in a row between two waits for the device ({_AHEAD})"
    parser.add_argument("--ahead", type=count, default=_AHEAD, metavar="N", help=ahead)
    parser.add_argument("--backend", default="auto", choices=("auto", "cuda", "emulated"), help="where to measure")
    add_outputs(parser, "turns", "ahead", "backend")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure on the CUDA device, or the host's part alone where there is none, and print the table."""
    say, backend = progress("staging"), host_backend(args.backend)
    data = measure(backend, args.turns, args.ahead, say)
    return publish(Report.of("staging", args, data), [sheet(data)], args)


# -- measuring --------------------------------------------------------------------------------------------------------


def measure(backend: Backend, turns: int, ahead: int, say: Callable[[str], None]) -> Data:
    """All ways, exact and padded, in turns with the bare replay of a graph without a staging node."""
    say("capturing")
    setting = SETTINGS[1]
    runtimes = {way: captured(setting, backend, way) for way in WAYS}  # what calls of one are like, another's are not
    told = {way.name: engine_of(runtimes[way]).stagings.describe() for way in WAYS}
    cases = []
    for fit, live in LIVE.items():
        ways: dict[str, Action] = {RAW: _raw(runtimes[WAYS[-1]])}
        for way, runtime in runtimes.items():
            sources = sources_of(setting.fields(), live, backend, host=way.host)
            ways[way.name] = partial(runtime, rows=live, **sources)
        say(f"{fit}: timing {len(ways)} ways")
        with torch.inference_mode():
            timings = time_turns(ways, turns, calls=ahead, settle=backend.synchronize)
        cases.append({
            "fit": fit,
            "ways": timings.figures(),
            "over raw": {name: timings.ratio(name, RAW) for name in ways},
            "device": {name: device_seconds(action) for name, action in ways.items()},
            "launches": {name: costs.launches(action) for name, action in ways.items()},
            "allocations": {name: costs.device_allocations(action) for name, action in ways.items()},
        })  # fmt: skip
    return {"backend": backend.name, "setting": setting.name, "staged": told, "cases": cases}


def captured(setting: Setting, backend: Backend, way: Way) -> GraphRuntime:
    """The runtime of `setting`, of buffers that only the graph reads, its rows staged that way."""
    runtime = GraphRuntime(
        setting.spec(device_reads=False),
        step_on(backend),
        geometry=setting.geometry,
        sizes=SIZES,
        outputs=None if is_emulated(backend) else MARKS,
        backend=backend,
        **setting.parts,
    )
    engine = engine_of(runtime)
    engine.stagings = Stagings(engine.arena, way.policy, reads=way.reads)
    runtime.capture()
    return runtime


def engine_of(runtime: GraphRuntime) -> Engine:
    """What the runtime works with."""
    return runtime._parts.engine  # noqa: SLF001 - no policy has a word for what nodes read


def _raw(runtime: GraphRuntime) -> Action:
    """What replays the graph of the largest slot, as near to the device as there is something."""
    graph: Any = runtime.slots["default", SIZES[-1]].graph
    replay: Action = getattr(graph, "graph", graph).replay
    return replay


def device_seconds(action: Action, calls: int = TRAYS // 2, tries: int = 15) -> float | None:
    """What the device takes for one call, with several queued behind a sleep: the median of some tries."""
    if not torch.cuda.is_available():
        return None
    return median(_device_seconds(action, calls) for _ in range(tries))


def _device_seconds(action: Action, calls: int) -> float:
    torch.cuda.synchronize()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_SLEEP)  # noqa: SLF001 - there is no other way to make a device late
    began.record()
    for _ in range(calls):
        action()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) / 1e3 / calls


# -- telling ----------------------------------------------------------------------------------------------------------


def sheet(data: Data) -> Sheet:
    """One row for each way: exact and padded side by side."""
    exact, padded = data["cases"]
    columns = ("", "exact µs", "/ raw", "padded µs", "/ raw", "device µs", "launches", "allocations")
    rows = tuple((name, *_cells(name, exact, padded)) for name in exact["ways"])
    notes = [f"{name}: staged by {told['way']} ({told['why']})" for name, told in data["staged"].items()]
    notes.append("A landing is filled by a copy of the driver's own, a launch that the profiler does not tell.")
    counted = [(name, {each: n for each, n in (padded["launches"][name] or {}).items() if n}) for name in exact["ways"]]
    notes += [f"{name}: launches of a padded call {launches}" for name, launches in counted if launches]
    return Sheet(f"Staging of a call, {data['setting']}, on {data['backend']}", columns, rows, tuple(notes))


def _cells(name: str, exact: Data, padded: Data) -> Iterator[str]:
    for case in (exact, padded):
        yield micro(case["ways"][name]["median"])
        yield times(case["over raw"][name])
    device, launches, allocations = (padded[key][name] for key in ("device", "launches", "allocations"))
    yield "-" if device is None else micro(device)
    yield "-" if launches is None else f"{sum(launches.values()):g}"
    yield "-" if allocations is None else f"{allocations:g}"
