"""Two ranks in processes of their own capture and serve together over gloo; one of them fails, at every point."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("rank_worker.py")
SECONDS = 120
"""A rank that waits for ever is a failure of these tests, never a hanging run."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each rank saw of every scene."""
    meeting_place = tmp_path_factory.mktemp("ranks") / "store"
    commands = [[sys.executable, str(WORKER), str(rank), str(meeting_place)] for rank in (0, 1)]
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    try:
        told = [worker.communicate(timeout=SECONDS) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [0, 0] == [worker.returncode for worker in workers], "\n".join(errors for _, errors in told)
    return [json.loads(output) for output, _ in told]


def test_both_ranks_take_the_same_steps(seen):
    """Both walk a slot alike, through warm-ups, recording and one vote at the end."""
    steps = seen[0]["steps"]
    assert steps == seen[1]["steps"]
    assert (4, 1, 1) == tuple(steps.count(step) for step in ("forward", "record", "settle_ranks"))
    assert "settle_ranks" == steps[-1]


def failures(seen):
    """Each planted failure: the step it was planted before, and what the peer and the failing rank saw."""
    peer, failing = (rank["failures"] for rank in seen)
    return [(seen[0]["steps"][int(place)], peer[place], failing[place]) for place in peer]


def test_a_failure_at_any_step_ends_on_both_ranks(seen):
    """Wherever one rank fails, in warm-up, recording or just before the vote, that slot fails on both, and no other."""
    assert set(seen[0]["steps"]) - {"settle_ranks"} == {place for place, *_ in failures(seen)}
    for place, *ranks in failures(seen):
        assert [["failed", "replayable"]] * 2 == [rank["first"] for rank in ranks], place
        assert [["replayable", "replayable"]] * 2 == [rank["after"] for rank in ranks], place


def test_each_rank_knows_why(seen):
    """The failing rank names its own error; the other learns which rank failed, or that the vote went against it."""
    for place, peer, failing in failures(seen):
        assert f"planted before {place}" in failing["cause"]
        assert any(word in peer["cause"] for word in ("rank 1 failed at 'capture default/4'", "R6")), place


def test_both_kinds_of_learning_occur(seen):
    """A peer that waits in a meeting hears of the failure there; one that has recorded hears of it in the vote."""
    waiting = ["while this rank waited" in peer["cause"] for _, peer, _ in failures(seen)]
    assert {True, False} == set(waiting)


def test_other_work_is_found_by_the_vote(seen):
    """A rank that recorded something else fails the slot on both, which name both digests (R6, fault H7)."""
    for rank in seen:
        assert (["failed", "replayable"], ["replayable"] * 2) == (
            rank["other work"]["first"],
            rank["other work"]["after"],
        )
        assert "rank 0 settles 'capture default/4' with digest" in rank["other work"]["cause"]


def test_another_order_is_refused_before_anything(seen):
    """Ranks that plan another order are told both plans, with no slot touched; then they capture as usual (R6)."""
    for rank in seen:
        assert ["allocated"] * 2 == rank["other order"]["first"]
        assert "plan of 2 slots: default/4, default/2" in rank["other order"]["error"]
        assert "plan of 2 slots: default/2, default/4" in rank["other order"]["error"]
        assert ["replayable"] * 2 == rank["other order"]["after"]


def test_an_idle_rank_replays_the_common_size(seen):
    """The rank without rows replays the slot of the rank with three (R26, R27)."""
    assert [PADDED_OF_THREE, PADDED_OF_NONE] == [rank["idle"] for rank in seen]


PADDED_OF_THREE, PADDED_OF_NONE = ["default/4", "PADDED", "[2, 3, 4]"], ["default/4", "PADDED", "[]"]


def test_ranks_capture_a_slot_alike_when_a_step_wants_it(seen):
    """Both want it in the same step, the idle one, too; one that fails costs both, who then run eagerly, and go on."""
    lazy = [rank["lazy"] for rank in seen]
    assert ["None", "SLOT_FAILED", "[2, 3, 4]"] == lazy[0]["failing"] == lazy[0]["failed"]
    assert ["None", "SLOT_FAILED", "[]"] == lazy[1]["failing"] == lazy[1]["failed"]
    assert [PADDED_OF_THREE, PADDED_OF_NONE] == [rank["again"] for rank in lazy]
