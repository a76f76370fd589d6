"""Two ranks in processes of their own make their wrappers; where one of them fails, both know, and nobody waits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("rank_worker.py")
SECONDS = 120


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """How each scene ended on each rank."""
    place = tmp_path_factory.mktemp("wrappers") / "store"
    commands = [[sys.executable, str(WORKER), str(rank), str(place)] for rank in (0, 1)]
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


def test_both_capture_the_same(ended):
    """Where all is well, both have every graph."""
    assert ["default/1, default/2"] * 2 == [rank["never"] for rank in ended]


@pytest.mark.parametrize("when", ["warm-up", "recording"])
def test_failure_of_one_ends_on_both(ended, when):
    """The failing rank names its error; its peer, which waited for it, names the rank."""
    peer, failing = (rank[when] for rank in ended)

    assert "a forward at fault" in failing
    assert "rank 1 failed at 'capture default/1' while this rank waited" in peer
