"""The charts of each benchmark's figures, as SVG by name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from tsgraph.bench import capture, decode, subject
from tsgraph.bench.report import Data, Report
from tsgraph.bench.svg import Bars, Panel, draw_panels

Chart = tuple[str, str, str]
"""What it is called in its file's name, what it shows, and the SVG."""


def charts(report: Report) -> Iterator[Chart]:
    """Those of a report; a benchmark may have none."""
    draw = {"host": _host, "capture": _capture, "growth": _growth, "decode": _decode}.get(report.bench)
    return iter(()) if draw is None else draw(report.data)


def _host(data: Data) -> Iterator[Chart]:
    shown = (subject.FROM_HOST, subject.FROM_DEVICE, subject.SEED)
    groups = tuple(f"{case['setting']}, {case['fit']}" for case in data["cases"])
    over = {way: [case["over raw"][way] for case in data["cases"]] for way in shown}
    title = "Host time of a call over that of the bare replay"
    yield "ratio", title, Bars(title, groups, over).draw()
    times = {way: [case["ways"][way]["median"] * 1e6 for case in data["cases"]] for way in (subject.RAW, *shown)}
    title = "Host time of a call, µs"
    yield "time", title, Bars(title, groups, times).draw()


def _capture(data: Data) -> Iterator[Chart]:
    ways = (capture.SEED, *capture.WORDS, capture.BARE)
    title = f"Capturing {len(data['sizes'])} sizes, s"
    yield "time", title, Bars(title, ways, {"s": [data["ways"][way]["seconds"] for way in ways]}, digits=3).draw()
    title, held = "Memory of the pool, MiB", (*ways, capture.ALONE)
    yield "memory", title, Bars(title, held, {"MiB": [data["ways"][way]["bytes"] / 2**20 for way in held]}).draw()


def _growth(data: Data) -> Iterator[Chart]:
    host_panels = [
        Panel(axis, "µs", _numbers(points), {way: _micro(points, way) for way in ("raw", "tsgraph")})
        for axis, points in _by_axis(data["host"])
    ]
    yield "host", "Host time of a replay", draw_panels("Host time of a replay", host_panels)
    for name, title, unit, scale in (("seconds", "Time of a capture", "ms", 1e3), ("bytes", "Memory", "MiB", 2**-20)):
        panels = [
            Panel(axis, unit, _numbers(points), {name: [point[name] * scale for point in points]})
            for axis, points in _by_axis(data["capture"])
        ]
        yield name, title, draw_panels(title, panels)


def _by_axis(points: list[Data]) -> Iterator[tuple[str, list[Data]]]:
    return ((str(axis), list(along)) for axis, along in groupby(points, key=lambda point: point["axis"]))


def _numbers(points: list[Data]) -> tuple[Any, ...]:
    return tuple(point["number"] for point in points)


def _micro(points: list[Data], way: str) -> list[float]:
    return [point["ways"][way]["median"] * 1e6 for point in points]


def _decode(data: Data) -> Iterator[Chart]:
    ways, cases = (decode.EAGER, decode.RAW, decode.TSGRAPH), data["cases"]
    groups = tuple(f"{case['model']}, batch {case['rows']}" for case in cases)
    raw = [case["ways"][decode.RAW]["median"] for case in cases]
    shares = {
        way: [100 * base / case["ways"][way]["median"] for base, case in zip(raw, cases, strict=True)] for way in ways
    }
    title = "Decode throughput, % of the raw graph's"
    yield "throughput", title, Bars(title, groups, shares).draw()
