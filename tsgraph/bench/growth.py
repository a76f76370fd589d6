"""How cost grows: host time of a replay with slots, buffers, groups and rows; capture with sizes, variants, layers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from tsgraph.bench.host import backend_for, host_backend
from tsgraph.bench.recording import record_step
from tsgraph.bench.report import Data, Report, Sheet, add_outputs, count, mebibytes, micro, progress, publish, times
from tsgraph.bench.settings import is_emulated
from tsgraph.bench.turns import Action, time_turns
from tsgraph.buffers.contract import Rows
from tsgraph.keys import Geometry
from tsgraph.protocols.backend import Backend
from tsgraph.protocols.null import NullSampler
from tsgraph.runtime import GraphRuntime
from tsgraph.spec.load import load_spec

SAYS = "how host time grows with slots, buffers, groups and rows, and capture with sizes, variants and layers"
_TURNS, _AHEAD, _WIDTH, _COLUMNS = 100, 2, 256, 64

POINTS: Mapping[str, Sequence[int]] = {
    "slots": (1, 4, 16, 64, 256),
    "buffers": (1, 2, 4, 8, 16, 32),
    "groups": (1, 2, 4, 8),
    "rows": (1, 4, 16, 64, 256, 1024),
}
CAPTURES: Mapping[str, Sequence[int]] = {"sizes": (1, 4, 12, 23), "variants": (1, 2, 4), "layers": (1, 4, 16)}
_SMALL = {"sizes": 4, "variants": 1, "layers": 4}

Say = Callable[[str], None]


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `growth` benchmark."""
    parser = subparsers.add_parser("growth", help=SAYS, description=SAYS)
    parser.add_argument("--turns", type=count, default=_TURNS, metavar="N", help=f"times that each is run ({_TURNS})")
    ahead = f"calls in a row between two waits for the device ({_AHEAD})"
    parser.add_argument("--ahead", type=count, default=_AHEAD, metavar="N", help=ahead)
    parser.add_argument("--most", type=count, default=1 << 20, metavar="N", help="leave larger points out")
    parser.add_argument("--backend", default="auto", choices=("auto", "cuda", "emulated"), help="where to measure")
    add_outputs(parser, "turns", "ahead", "backend")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure on the CUDA device, or emulated where there is none, and print the tables."""
    say, backend = progress("growth"), host_backend(args.backend)
    points = {axis: [n for n in along if n <= args.most] for axis, along in POINTS.items()}
    captures = {axis: [n for n in along if n <= args.most] for axis, along in CAPTURES.items()}
    data = {
        "backend": backend.name,
        "host": list(measure_host(points, backend, args.turns, args.ahead, say)),
        "capture": list(measure_capture(captures, args.backend, say)),
    }
    return publish(Report.of("growth", args, data), list(sheets(data)), args)


# -- host time per replay ---------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Shape:
    """A runtime of so many slots, buffers of one number, and groups of one table, that serves so many rows."""

    slots: int = 1
    buffers: int = 2
    groups: int = 1
    rows: int = 16

    def runtime(self, backend: Backend) -> GraphRuntime:
        """The runtime, with the slot of its rows captured: the others stay as they are, and need no time here."""
        spec = load_spec("decode")
        inputs = {f"b{index}": Rows(torch.int32, pad=0).buffer(f"b{index}") for index in range(self.buffers)}
        table = attrs.evolve(Rows(torch.int32, pad=-1).buffer("table"), grouped=True, shape=("pages",))
        geometry = Geometry(rows=self._largest, extents={"pages": {f"g{i}": _COLUMNS for i in range(self.groups)}})
        runtime = GraphRuntime(
            attrs.evolve(
                spec, buffers={**inputs, "table": table}, outputs={}, sizes=attrs.evolve(spec.sizes, cap=self._largest)
            ),
            _step_on(backend),
            geometry=geometry,
            sizes=[self.rows + index for index in range(self.slots)],
            outputs="request",
            backend=backend,
        )
        runtime.capture(("default", self.rows))
        return runtime

    @property
    def _largest(self) -> int:
        return self.rows + self.slots - 1

    def sources(self, backend: Backend) -> dict[str, Any]:
        """Rows for every buffer, on the (pinned) host."""
        sources: dict[str, Any] = {f"b{index}": backend.pin((self.rows,), torch.int32) for index in range(self.buffers)}
        tables = {f"g{index}": backend.pin((self.rows, _COLUMNS), torch.int32) for index in range(self.groups)}
        return {**sources, "table": tables}


@attrs.frozen(eq=False)
class _Rows:
    """What the step reads of a batch."""

    b0: Tensor


def _step_on(backend: Backend) -> Callable[[Any], Tensor]:
    """One kernel; none on a device whose kernels are Python."""
    return (lambda batch: batch.b0) if is_emulated(backend) else (lambda batch: batch.b0 + 1)


def measure_host(
    points: Mapping[str, Sequence[int]], backend: Backend, turns: int, ahead: int, say: Say
) -> Iterator[Data]:
    """A point for each number along each axis, the other numbers as they are: of a call and of its bare replay."""
    for axis, along in points.items():
        for number in along:
            say(f"host: {number} {axis}")
            shape = Shape(**{axis: number})
            runtime = shape.runtime(backend)
            rows = _Rows(backend.allocate((shape.rows,), torch.int32, 0))
            raw = record_step(partial(_step_on(backend), rows), backend)
            ways: dict[str, Action] = {
                "raw": raw.replay,
                "tsgraph": partial(runtime, rows=shape.rows, **shape.sources(backend)),
            }
            timings = time_turns(ways, turns, calls=ahead, settle=backend.synchronize)
            yield {"axis": axis, "number": number, "ways": timings.figures(), "ratio": timings.ratio("tsgraph", "raw")}


# -- captures ---------------------------------------------------------------------------------------------------------


class _Layers(nn.Module):
    """So many layers of one product and one addition each."""

    def __init__(self, layers: int, device: torch.device) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH, device=device) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


@attrs.frozen(eq=False)
class _Variants(NullSampler):
    number: int

    def variants(self, tokens_per_request: int) -> Sequence[str]:  # noqa: ARG002 - the protocol's signature
        """The default, and others that do the same."""
        return [f"v{index}" for index in range(1, self.number)]


def measure_capture(points: Mapping[str, Sequence[int]], where: str, say: Say) -> Iterator[Data]:
    """A point for each number along each axis: seconds and bytes of the whole capture, each on a new backend."""
    _captured(backend_for(where), sizes=1, variants=1, layers=1)  # what is loaded at the first capture is there then
    for axis, along in points.items():
        for number in along:
            say(f"capture: {number} {axis}")
            numbers = {**_SMALL, axis: number}
            seconds, size = _captured(backend_for(where), **numbers)
            slots = numbers["sizes"] * numbers["variants"]
            yield {"axis": axis, "number": number, "slots": slots, "seconds": seconds, "bytes": size}


def _captured(backend: Backend, *, sizes: int, variants: int, layers: int) -> tuple[float, int]:
    model = _Layers(layers, backend.device)
    runtime = GraphRuntime.for_step(
        model.forward,
        inputs={"x": Rows(torch.float32, shape=(_WIDTH,), pad=0)},
        sizes=[4 * (index + 1) for index in range(sizes)],
        outputs="request",
        modules=[model],
        sampler=_Variants(variants),
        backend=backend,
    )
    began = perf_counter()
    runtime.capture()
    backend.synchronize()
    return perf_counter() - began, backend.memory().pooled


# -- telling ----------------------------------------------------------------------------------------------------------


def sheets(data: Data) -> Iterator[Sheet]:
    """The tables of a run."""
    host = [
        (
            f"{point['number']} {point['axis']}",
            *(micro(point["ways"][way]["median"]) for way in ("raw", "tsgraph")),
            times(point["ratio"]),
        )
        for point in data["host"]
    ]
    note = "16 rows, 2 buffers of one number and one table of 64 columns in one slot, but for the number that is named."
    yield Sheet("Host time of a replay, µs", ("", "raw", "tsgraph", "ratio"), tuple(host), (note,))
    captured = [
        (
            f"{point['number']} {point['axis']}",
            str(point["slots"]),
            f"{point['seconds']:.3f}",
            f"{point['seconds'] / point['slots'] * 1e3:.1f}",
            mebibytes(point["bytes"]),
        )
        for point in data["capture"]
    ]
    columns = ("", "slots", "s", "ms per slot", "MiB of the pool")
    note = "4 sizes, 1 variant and 4 layers of 256 × 256, but for the number that is named."
    yield Sheet("Capture", columns, tuple(captured), (note,))
