"""Recordings: tasks shared out to worker processes, which are watched, and put together again."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import ClassVar

import pytest

from tests.fidelity import recording, samples, tasks
from tests.fidelity.grounds import Emulated
from tests.fidelity.recording import NEIGHBOURS, _share, record
from tests.fidelity.tasks import NotRun, Task, generated, perform, task_of


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_each_task_has_one_worker(workers: int) -> None:
    """Shares are of nearly one size, in order, and neighbours stay together."""
    count = 10 * NEIGHBOURS + 5
    shares = [_share(count, turn, workers) for turn in range(workers)]
    assert list(range(count)) == sorted(number for share in shares for number in share)
    assert max(map(len, shares)) - min(map(len, shares)) <= NEIGHBOURS
    assert all(share == sorted(share) and share[1] == share[0] + 1 for share in shares)


def test_workers_observe_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, each task is run once, and the items come in the tasks' order."""
    monkeypatch.setattr(recording, "NEIGHBOURS", 3)
    wanted: list[Task] = generated(0, 9)
    alone, shared = (record(wanted, "emulated", workers=workers) for workers in (1, 2))
    assert wanted == [task_of(item) for item in shared.items]
    assert (1, 2, 0) == (alone.made["workers"], shared.made["workers"], shared.made["restarts"])
    assert [item["observed"] for item in alone.items] == [item["observed"] for item in shared.items]


class _Worker:
    """One that is done at once, and tells its environment."""

    returncode = 0

    def __init__(self, *_: object, env: dict[str, str], **__: object) -> None:
        self.seeds.append(env.get("PYTHONHASHSEED", "random"))

    seeds: ClassVar[list[str]] = []

    def poll(self) -> int:
        """Done."""
        return self.returncode


def test_workers_draw_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also what torch's database draws from a set of words, whose order depends on the seed of hashes."""
    (tmp_path / "taken").touch()
    monkeypatch.setattr(subprocess, "Popen", _Worker)
    assert recording._run_worker(tmp_path / "given", tmp_path / "taken", 0, "emulated", float("inf"), 1) is None
    assert ["0"] == _Worker.seeds


def test_a_task_that_cannot_be_set_up_is_lost_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails outside of a program is told from what the program does, and names its error."""

    def fails(*_: object) -> None:
        raise ValueError("no such input")

    monkeypatch.setattr(samples, "observe", fails)
    with pytest.raises(NotRun, match="ValueError: no such input"):
        perform({"sample": "add float32 0"}, Emulated())
    assert perform(tasks.generated(3, 1)[0], Emulated())


def test_a_lost_task_restarts_no_worker() -> None:
    """It is noted with its reason, and the tasks behind it are run by the same process."""
    wanted: list[Task] = [{"example": "none of this name"}, *generated(0, 1)]
    made = record(wanted, "emulated")
    assert [{"example": "none of this name"}] == [task_of(item) for item in made.items if "lost" in item]
    assert "none of this name" in made.items[-1]["lost"]
    assert (2, 0) == (len(made.items), made.made["restarts"])
