"""Host time of one replay: bare, through tsgraph, through a model of a production engine's wrapper, through torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping

import torch

from tsgraph.backends.choice import choose_backend
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.bench.host_only import HostOnlyBackend
from tsgraph.bench.report import Data, Report, Sheet, add_outputs, count, micro, progress, publish, times
from tsgraph.bench.rivals import rivals
from tsgraph.bench.settings import LIVE, SETTINGS, SIZES, Setting, is_emulated
from tsgraph.bench.staleness import PARAMETERS, measure_staleness
from tsgraph.bench.subject import AGAINST, FROM_DEVICE, OURS, RAW, SEED, THEIRS, Subject, against, costs_of
from tsgraph.bench.turns import Action, time_turns
from tsgraph.protocols.backend import Backend

SAYS = "host time of a replay: bare, through tsgraph, through a model of TokenSpeed's wrapper, through torch's own"
_TURNS, _AHEAD = 300, 2

Say = Callable[[str], None]


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `host` benchmark."""
    parser = subparsers.add_parser("host", help=SAYS, description=SAYS)
    parser.add_argument("--turns", type=count, default=_TURNS, metavar="N", help=f"times that each is run ({_TURNS})")
    ahead = f"calls in a row between two waits for the device: steps that an engine runs ahead ({_AHEAD})"
    parser.add_argument("--ahead", type=count, default=_AHEAD, metavar="N", help=ahead)
    parser.add_argument("--backend", default="auto", choices=("auto", "cuda", "emulated"), help="where to measure")
    parser.add_argument("--no-rivals", action="store_true", help="leave torch's own out: compiling takes a while")
    add_outputs(parser, "turns", "ahead", "backend")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure on the CUDA device, or emulated where there is none, and print the tables."""
    say, backend = progress("host"), host_backend(args.backend)
    with_rivals = not args.no_rivals and not is_emulated(backend)
    cases = [
        case
        for setting in SETTINGS
        for case in measure_setting(setting, backend, args.turns, args.ahead, say, with_rivals=with_rivals)
    ]
    staleness = measure_staleness(backend, args.turns, args.ahead, say, PARAMETERS)
    data = {"backend": backend.name, "cases": cases, "staleness": staleness}
    return publish(Report.of("host", args, data), list(sheets(data)), args)


def backend_for(name: str) -> Backend:
    """The backend of that name; "auto" is CUDA where there is a device. Raises: BadBatch for CUDA without one."""
    cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return choose_backend("cuda", [], "cuda") if cuda else EmulatedBackend()


def host_backend(name: str) -> Backend:
    """As `backend_for`, but for timing the host alone where there is no CUDA device: nothing is emulated then."""
    backend = backend_for(name)
    host_only: Backend = HostOnlyBackend()
    return host_only if is_emulated(backend) else backend


# -- measuring --------------------------------------------------------------------------------------------------------


def measure_setting(
    setting: Setting, backend: Backend, turns: int, ahead: int, say: Say, *, with_rivals: bool
) -> Iterator[Data]:
    """One case for each of exact and padded. Calls are made in inference mode, as engines make them."""
    say(f"{setting.name}: capturing")
    subject = Subject.of(setting, backend)
    for fit, live in LIVE.items():
        ways = subject.ways(live)
        unequal = [] if isinstance(backend, HostOnlyBackend) else subject.unequal(ways)
        others = _rivals(subject, say) if with_rivals and setting is SETTINGS[0] and fit == "exact" else {}
        say(f"{setting.name}, {fit}: timing {len(ways) + len(others)} ways")
        with torch.inference_mode():
            timings = time_turns(ways, turns, calls=ahead, settle=backend.synchronize)
        yield {
            "setting": setting.name,
            "fit": fit,
            "live": live,
            "size": SIZES[-1],
            "unequal": unequal,
            "ways": timings.figures(),
            "over raw": {way: timings.ratio(way, RAW) for way in timings.seconds},
            "seed over tsgraph": against(timings.ratio),
            "rivals": _beside(ways, others, turns, ahead, backend),
            "costs": costs_of(ways),
        }


def _beside(ways: Mapping[str, Action], rivals: Mapping[str, Action], turns: int, ahead: int, backend: Backend) -> Data:
    """What torch's own take, in turns with the bare replay and with tsgraph from the same device tensors."""
    if not rivals:
        return {}
    measured = {RAW: ways[RAW], FROM_DEVICE: ways[FROM_DEVICE], **rivals}
    timings = time_turns(measured, turns, calls=ahead, settle=backend.synchronize)
    return {
        way: {
            "median": timings.median(way),
            "over raw": timings.ratio(way, RAW),
            "over tsgraph": timings.ratio(way, FROM_DEVICE),
        }
        for way in rivals
    }


def _rivals(subject: Subject, say: Say) -> dict[str, Action]:
    return rivals({label: tensor.clone() for label, tensor in subject.seed.tensors.items()}, say)


# -- telling ----------------------------------------------------------------------------------------------------------

_HOST_ONLY = (
    "Without a CUDA device: nothing is launched, and a replay is that of a graph that holds nothing. Left is what the "
    "host does, which is as on a GPU, but for the seed's copies: there each is a launch, here the CPU makes it."
)


def sheets(data: Data) -> Iterator[Sheet]:
    """The tables of a run."""
    cases, cuda = data["cases"], data["backend"] == "cuda"
    yield _times(cases, cuda=cuda)
    yield _ratios(cases, cuda=cuda)
    if cuda:
        yield _launches(cases)
    yield _rest(cases)
    yield _staleness(data["staleness"])


def _named(case: Data) -> str:
    return f"{case['setting']}, {case['fit']}"


def _times(cases: list[Data], *, cuda: bool) -> Sheet:
    ways = (*(RAW,) * cuda, *OURS, *THEIRS)
    rows = [(_named(case), *(micro(case["ways"][way]["median"]) for way in ways)) for case in cases]
    unequal = [
        f"{_named(case)}: NOT the same work, {', '.join(case['unequal'])} differ" for case in cases if case["unequal"]
    ]
    notes = (*_others(cases), *unequal, *(() if cuda else (_HOST_ONLY,)))
    return Sheet("Host time of a call, µs", ("", *ways), tuple(rows), notes)


def _others(cases: list[Data]) -> Iterator[str]:
    """What torch's own take, beside tsgraph from the same device tensors."""
    for case in cases:
        for way, figures in case["rivals"].items():
            beside = f"{times(figures['over raw'])} × raw, and {times(figures['over tsgraph'])} × {FROM_DEVICE}"
            yield f"{way} ({_named(case)}): {micro(figures['median'])} µs, {beside}"


def _ratios(cases: list[Data], *, cuda: bool) -> Sheet:
    over = (*OURS, SEED) if cuda else ()
    columns = ("", *(f"{way} / raw" for way in over), *(f"seed / tsgraph, {name}" for name in AGAINST))
    rows = [
        (
            _named(case),
            *(times(case["over raw"][way]) for way in over),
            *(times(case["seed over tsgraph"][name]) for name in AGAINST),
        )
        for case in cases
    ]
    note = "The last column holds the seed's wrapper alone, its rows filled in already, against all of tsgraph's work."
    return Sheet("Ratios, turn by turn", columns, tuple(rows), (note,))


def _launches(cases: list[Data]) -> Sheet:
    ways = (RAW, *OURS, *THEIRS)
    rows = [(_named(case), *(_launched(case["costs"][way]["launches"]) for way in ways)) for case in cases]
    note = "Counted by torch's profiler: kernels, copies, fills and graphs put on a stream. The graph is one of them."
    return Sheet("Launches of a call", ("", *ways), tuple(rows), (note,))


def _launched(launches: Mapping[str, float] | None) -> str:
    return "not counted" if launches is None else f"{sum(launches.values()):g}"


def _rest(cases: list[Data]) -> Sheet:
    ways = (*OURS, *THEIRS)
    rows = [(_named(case), *(_allocated(case["costs"][way]) for way in ways)) for case in cases]
    note = "Tensors that operators make, views included; allocations of device memory; blocks of Python's memory kept."
    return Sheet("Tensors made / device allocations / blocks kept by a call", ("", *ways), tuple(rows), (note,))


def _allocated(costs: Data) -> str:
    device = costs["device allocations"]
    return f"{costs['tensors made']} / {'-' if device is None else f'{device:g}'} / {costs['blocks kept']:.2g}"


def _staleness(found: Data) -> Sheet:
    rows = [
        (mode, *(f"{excess * 1e9:.0f}" for excess in (found["over raw"][mode], found["over off"][mode])))
        for mode in found["over raw"]
    ]
    columns = ("staleness", "of a whole call, over the bare replay", "of the look, over no look at all")
    title = f"ns beyond the graph's own, {found['parameters']} parameters, nothing to stage"
    note = f"The decision alone, with the call that times it: {found['decision'] * 1e9:.0f} ns."
    return Sheet(title, columns, tuple(rows), (note,))
