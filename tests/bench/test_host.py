"""Host time of a call: what is measured and told; and what tsgraph's host work may cost beside the seed's, anywhere."""

from __future__ import annotations

import sys
from functools import partial
from itertools import count

import pytest
import torch

from tsgraph.bench import costs, host
from tsgraph.bench.__main__ import main
from tsgraph.bench.host import sheets
from tsgraph.bench.host_only import HostOnlyBackend
from tsgraph.bench.page import SHEETS
from tsgraph.bench.rivals import rivals
from tsgraph.bench.settings import LIVE, SETTINGS, read_all
from tsgraph.bench.staleness import modes
from tsgraph.bench.subject import AGAINST, FROM_DEVICE, FROM_HOST, FROM_HOST_AHEAD, OURS, RAW, THEIRS, Subject
from tsgraph.bench.turns import time_turns
from tsgraph.buffers.contract import Rows
from tsgraph.runtime import GraphRuntime
from tsgraph.testing import emulate

TWO_GROUPS, FULLEST = SETTINGS[1], SETTINGS[3]
ATTEMPTS = 5


@pytest.mark.no_cover  # it judges time
@pytest.mark.parametrize(
    ("setting", "fit", "least"), [(TWO_GROUPS, "padded", 5), (FULLEST, "exact", 3.5), (FULLEST, "padded", 6)]
)
def test_the_seed_takes_longer_by_so_much(setting, fit, least, uncollected):
    """Without a device: its Python and its copies by the CPU, against all of tsgraph's checks and packing.

    The median of interleaved runs; a loaded machine may try again.
    """
    ways = Subject.of(setting, HostOnlyBackend()).ways(LIVE[fit])
    compared = {way: ways[way] for way in AGAINST["from host"]}
    for attempt in count(1):
        ratio = time_turns(compared, 60, calls=4).ratio(*AGAINST["from host"])
        if ratio >= least:
            break
        assert attempt < ATTEMPTS, ratio


def test_a_steady_call_makes_no_tensor_and_keeps_no_memory(uncollected):
    """No view, no result, no block of Python's memory, from host and from device, exact and padded."""
    subject = Subject.of(FULLEST, HostOnlyBackend())
    for live in LIVE.values():
        for way, action in subject.ways(live).items():
            if way in OURS:
                assert 0 == costs.tensors_made(action), (live, way)
                assert costs.blocks_kept(action) < 0.1, (live, way)


FRAMES = {FROM_HOST: 15, FROM_HOST_AHEAD: 16, FROM_DEVICE: 14}
"""Calls of Python's in a steady call: that of the one collaborator included, those of what is emulated not."""


def python_calls(action):
    """The functions of the library, written in Python, that one call of `action` calls, but for its emulation's."""
    seen = []

    def note(frame, event, _):
        if event == "call" and not frame.f_code.co_filename.endswith(("host_only.py", "streams.py")):
            seen.append(frame.f_code.co_qualname)

    for _ in range(30):  # of each tray, and of both of torch's modes, something is made at first
        action()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return seen[seen.index("GraphRuntime.__call__") :]


def test_a_steady_call_is_few_calls_of_pythons(uncollected):
    """Each costs as much as the copy of a source; how many there are does not depend on how many sources."""
    for setting in (TWO_GROUPS, FULLEST):
        collaborators = 1 + setting.drafter + setting.recurrent
        for way, action in Subject.of(setting, HostOnlyBackend()).ways(LIVE["padded"]).items():
            if way in OURS:
                calls = python_calls(action)
                assert FRAMES[way] + collaborators - 1 >= len(calls), (setting.name, way, calls)


def test_a_call_with_nothing_to_stage_is_fewer(uncollected):
    """To decide, to look, to launch and to cut."""
    backend = HostOnlyBackend()
    runtime = GraphRuntime.for_step(
        lambda ids: ids,
        inputs={"ids": Rows(torch.int32, pad=1, source="engine")},
        sizes=(8,),
        outputs="request",
        backend=backend,
    )
    runtime.capture()
    calls = python_calls(lambda: runtime(rows=8))
    assert len(calls) <= 14, calls


def test_measures_settings_exact_and_padded(bench, capsys, monkeypatch):
    """Each way has its time in each case; what was kept gives the tables again."""
    monkeypatch.setattr(host, "PARAMETERS", 3)
    monkeypatch.setattr(host, "SETTINGS", SETTINGS[:1])
    report = bench("host", "--turns", "2", "--ahead", "1", "--backend", "emulated")

    cases = report.data["cases"]
    assert [("plain", "exact"), ("plain", "padded")] == [(case["setting"], case["fit"]) for case in cases]
    assert all({RAW, *OURS, *THEIRS} == case["ways"].keys() for case in cases)
    assert modes() == tuple(report.data["staleness"]["over off"])
    printed = capsys.readouterr().out
    tables = list(SHEETS["host"](report.data))
    assert 4 == len(tables)
    assert all(sheet.title in printed for sheet in tables)
    assert "nothing is launched" in printed


def test_unlike_work_is_told():
    """A case whose buffers differ says so below the table, by name."""
    figures = {"median": 1e-6, "low": 1e-6, "high": 1e-6}
    ways = (RAW, *OURS, *THEIRS)
    costs = {"launches": {"cudaGraphLaunch": 1.0}, "device allocations": 0.0, "tensors made": 0, "blocks kept": 0.0}
    case = {
        "setting": "plain",
        "fit": "padded",
        "unequal": ["seq_lens"],
        "ways": dict.fromkeys(ways, figures),
        "over raw": dict.fromkeys(ways, 1.0),
        "rivals": {"torch.compile": {"median": 1e-6, "over raw": 34.5, "over tsgraph": 6.9}},
        "seed over tsgraph": dict.fromkeys(("from host", "from device", "call alone"), 1.0),
        "costs": dict.fromkeys(ways, costs),
    }
    staleness = {"parameters": 1, "over raw": {}, "over off": {}, "decision": 1.2e-7}
    first, _, launches, *_ = sheets({"backend": "cuda", "cases": [case], "staleness": staleness})

    assert "plain, padded: NOT the same work, seq_lens differ" in first.notes
    assert "torch.compile (plain, padded): 1 µs, 34.5 × raw, and 6.90 × tsgraph, device" in first.notes
    assert ("plain, padded", *["1"] * len(ways)) == launches.rows[0]


def test_cuda_is_asked_for_where_there_is_none(monkeypatch):
    """The error says what to do; nothing is measured on another device by mistake."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Exception, match="needs a CUDA device"):
        main(["host", "--backend", "cuda"])


def test_torch_s_own_computes_the_same_step():
    """`make_graphed_callables` gives what the step gives; what does not run here is told and left out."""
    said: list[str] = []
    with emulate():
        tensors = {name: torch.arange(3, dtype=torch.int32, device="cuda") for name in ("input_ids", "seq_lens")}
        tensors |= {"positions": torch.arange(3, device="cuda")}
        found = rivals(tensors, said.append)
        ours, theirs = read_all(tensors), found["make_graphed_callables"]()
        assert [each.tolist() for each in ours.values()] == [each.tolist() for each in theirs]
    assert said[0] == "preparing make_graphed_callables"


def test_torch_s_own_are_timed_beside_the_bare_replay_and_tsgraph():
    """In a group of their own: what they leave in caches is no other way's affair."""
    calls: list[str] = []
    ways = {name: partial(calls.append, name) for name in (RAW, *OURS, *THEIRS)}
    told = host._beside(ways, {"theirs": partial(calls.append, "theirs")}, 2, 1, HostOnlyBackend())

    assert {"theirs"} == told.keys()
    assert {"median", "over raw", "over tsgraph"} == told["theirs"].keys()
    assert {RAW, host.FROM_DEVICE, "theirs"} == set(calls)
    assert {} == host._beside(ways, {}, 2, 1, HostOnlyBackend())
