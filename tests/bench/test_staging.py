"""The benchmark of ways to stage, and what packing may cost the host beside the copies that it replaces."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from tsgraph.bench import staging
from tsgraph.bench.host_only import HostOnlyBackend
from tsgraph.bench.settings import LIVE, SETTINGS, sources_of
from tsgraph.bench.staging import RAW, WAYS, sheet
from tsgraph.bench.turns import time_turns
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import Field
from tsgraph.buffers.stagings import Stagings

ATTEMPTS = 5


@pytest.mark.no_cover  # it judges time
@pytest.mark.parametrize("live", LIVE.values(), ids=LIVE)
def test_packing_costs_the_host_less_than_copies(live, uncollected):
    """Checks included, without a device: in the median of turns, exact and padded; a loaded machine may try again."""
    fields, backend = SETTINGS[1].fields(), HostOnlyBackend()
    sources = sources_of(fields, live, backend, host=True)
    ways = {way: Stagings(Arena(fields, 16, backend), way).of(16) for way in ("launch", "copies")}
    actions = {way: lambda each=each: each.stage(live, sources) for way, each in ways.items()}
    for attempt in count(1):
        ratio = time_turns(actions, 100, calls=4).ratio("launch", "copies")
        if ratio < 0.75:
            break
        assert attempt < ATTEMPTS, ratio


@pytest.mark.no_cover  # it judges time
def test_the_cost_of_a_source_does_not_grow_with_the_others(uncollected):
    """Thirty buffers cost at most four times what ten do."""
    backend, calls = HostOnlyBackend(), {}
    for buffers in (10, 30):
        fields = [Field(name=f"b{i}", dtype=torch.int32, per="request", pad=0) for i in range(buffers)]
        packing = Stagings(Arena(fields, 16, backend), "launch").of(16)
        sources = {field.name: torch.zeros(13, dtype=torch.int32) for field in fields}
        calls[str(buffers)] = lambda packing=packing, sources=sources: packing.stage(13, sources)
    for attempt in count(1):
        ratio = time_turns(calls, 60, calls=4).ratio("30", "10")
        if ratio < 4:
            break
        assert attempt < ATTEMPTS, ratio


def test_measures_every_way_beside_the_bare_replay(bench, capsys):
    """Each has a row with its times; how it was really staged is told; what was kept gives the table again."""
    report = bench("staging", "--turns", "2", "--ahead", "1", "--backend", "emulated")
    table = sheet(report.data)
    assert [RAW, *(way.name for way in WAYS)] == [row[0] for row in table.rows]
    told = [f"{way.name}: staged by {'graph' if way.policy == 'auto' else way.policy}" for way in WAYS]
    assert all(note.startswith(begins) for note, begins in zip(table.notes, told, strict=False))
    assert table.title in capsys.readouterr().out


@pytest.mark.gpu
def test_on_a_gpu_ways_differ_by_their_launches(bench):
    """None beside the graph's where it takes the ring, nor told for a landing; one for a launch; many for copies."""
    data = bench("staging", "--turns", "5").data
    launches = {name: sum(counts.values()) for name, counts in data["cases"][1]["launches"].items()}
    assert {RAW: 1, WAYS[0].name: 1, WAYS[1].name: 1, WAYS[2].name: 2, WAYS[3].name: 2} == {
        name: launches[name] for name in (RAW, *(way.name for way in WAYS[:4]))
    }
    assert launches[WAYS[4].name] > 10
    assert all(seconds > 0 for seconds in data["cases"][1]["device"].values())
    assert "cuda" == data["backend"] == staging.host_backend("auto").name
