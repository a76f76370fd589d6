"""How cost grows: the points that are measured, and what must not grow at all."""

from __future__ import annotations

from functools import partial
from itertools import count

from tsgraph.bench.growth import CAPTURES, POINTS, Shape
from tsgraph.bench.host_only import HostOnlyBackend
from tsgraph.bench.page import SHEETS
from tsgraph.bench.turns import time_turns

ALLOWED, ATTEMPTS = 1.5, 5


def test_measures_the_points_that_are_small_enough(bench):
    """A point for each number along each axis, of host time and of captures."""
    report = bench("growth", "--turns", "2", "--ahead", "1", "--most", "1", "--backend", "emulated")

    assert [(axis, 1) for axis in POINTS] == [(point["axis"], point["number"]) for point in report.data["host"]]
    captures = report.data["capture"]
    assert [(axis, 1) for axis in CAPTURES] == [(point["axis"], point["number"]) for point in captures]
    assert [1, 4, 4] == [point["slots"] for point in captures]
    host, captured = SHEETS["growth"](report.data)
    assert ["1 slots", "1 buffers", "1 groups", "1 rows"] == [row[0] for row in host.rows]
    assert ["1 sizes", "1 variants", "1 layers"] == [row[0] for row in captured.rows]


def test_a_call_costs_the_same_however_many_slots_there_are(uncollected):
    """One slot against sixty-four; a loaded machine may try again."""
    backend = HostOnlyBackend()
    shapes = {slots: Shape(slots=slots) for slots in (1, 64)}
    ways = {
        str(slots): partial(shape.runtime(backend), rows=shape.rows, **shape.sources(backend))
        for slots, shape in shapes.items()
    }
    for attempt in count(1):
        ratio = time_turns(ways, 60, calls=4).ratio("64", "1")
        if ratio <= ALLOWED:
            break
        assert attempt < ATTEMPTS, ratio
