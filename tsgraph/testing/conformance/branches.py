"""What a backend promises about branches, and about telling whether work is being recorded."""

from __future__ import annotations

from tsgraph.testing.conformance.backend import BACKEND, PLANTED, BackendTrial, holding
from tsgraph.testing.conformance.recordings import failure, record

ROUNDS = 8


@BACKEND.promise("branch", "the block's work ordered after the caller's, and the caller's after it once joined")
def branch_is_ordered(trial: BackendTrial) -> str | None:
    """Outside of a recording."""
    x, branch = trial.filled(0, 1 << 16), trial.part.branch()
    for _ in range(ROUNDS):
        x.add_(1)
        with branch.fork():
            x.mul_(2)
        branch.join()
    return holding(510, x)


@BACKEND.promise("branch", "its work recorded where it was forked in a recording, in the same order")
def branch_is_recorded(trial: BackendTrial) -> str | None:
    """Two replays do it twice, and recording does nothing."""
    x, branch = trial.filled(0, 1 << 16), trial.part.branch()

    def step() -> None:
        for _ in range(ROUNDS // 2):
            x.add_(1)
            with branch.fork():
                x.mul_(2)
            branch.join()

    graph, _ = record(trial.part, trial.part.pool(), step)
    for _ in range(2):
        graph.replay()
    return holding(510, x)


@BACKEND.promise("branch", "work beside that of the caller, which goes on meanwhile")
def branch_works_beside(trial: BackendTrial) -> str | None:
    """Of two tensors each stream writes its own."""
    x, y, branch = trial.filled(1), trial.filled(1), trial.part.branch()

    def step() -> None:
        with branch.fork():
            x.add_(1)
        y.add_(2)
        branch.join()
        x.add_(y)

    graph, _ = record(trial.part, trial.part.pool(), step)
    graph.replay()
    return holding(5, x)


@BACKEND.promise("branch", "an exception of the block to go on, and the next block to run")
def branch_raises(trial: BackendTrial) -> str | None:
    """Work before it is done all the same."""
    x, branch = trial.filled(1), trial.part.branch()

    def fails() -> None:
        x.add_(1)
        raise ValueError(PLANTED)

    try:
        with branch.fork():
            fails()
    except ValueError:
        with branch.fork():
            x.mul_(2)
        branch.join()
        return holding(4, x)
    return "none"


@BACKEND.promise("recording", "true exactly inside a recording, on its branches, too")
def recording_is_told(trial: BackendTrial) -> str | None:
    """False before, after, and after one that failed."""
    branch, seen = trial.part.branch(), [trial.part.recording]

    def step() -> None:
        seen.append(trial.part.recording)
        with branch.fork():
            seen.append(trial.part.recording)
        branch.join()

    def fails() -> None:
        raise ValueError(PLANTED)

    record(trial.part, trial.part.pool(), step)
    seen.append(trial.part.recording)
    failure(trial.part, trial.part.pool(), fails)
    seen.append(trial.part.recording)
    return None if seen == [False, True, True, False, False] else f"{seen}"
