"""One rank, as a process of its own: `rank_worker.py RANK FILE` plays every scene with rank 1 - RANK; prints JSON.

A scene is played by both ranks in step and gives what this rank saw of it. `FILE` is where the two find each other.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

import attrs
import torch
import torch.distributed as dist

from tsgraph.adapters.torch_ranks import TorchRanks
from tsgraph.buffers.contract import Rows
from tsgraph.capture import session
from tsgraph.capture.pipeline import Pipeline
from tsgraph.errors import RankDisagreement
from tsgraph.keys import Mode, RankCounts
from tsgraph.runtime import GraphRuntime
from tsgraph.spec.model import Step
from tsgraph.testing.fakes import all_fakes

LARGE, SMALL = ("default", 4), ("default", 2)
FAILING = 1
"""The rank in which something goes wrong."""


@attrs.define(eq=False)
class Fault:
    """Fails the `at`-th step that one slot takes on this rank; None: nothing. `taken` are the names of its steps."""

    at: int | None = None
    taken: list[str] = attrs.field(factory=list)

    def before(self, slot: str, step: str) -> None:
        if slot == "default/4":
            self.taken.append(step)
            if self.at == len(self.taken) - 1:
                self.at = None
                raise ValueError(f"planted before {step}")


class Faulty(Pipeline):
    """Does the steps of one slot, with a fault planted."""

    fault = Fault()

    def perform(self, step: Step) -> str | None:
        self.fault.before(str(self.slot.key), step.name)
        return super().perform(step)


class Scenes:
    """What both ranks play. Each scene leaves the runtime with nothing captured."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.fault = Faulty.fault
        self.ranks = TorchRanks(deadline=30)
        self.runtime = self.build()

    def build(self, **policy: Any) -> GraphRuntime:
        return GraphRuntime.for_step(
            lambda ids: ids + 1,
            inputs={"ids": Rows(torch.int64, pad=0)},
            sizes=(2, 4),
            outputs="request",
            policy={"freeze_gc": False, **policy},  # collections take long
            backend="emulated",
            observers=(),
            **all_fakes([]) | {"ranks": self.ranks},
        )

    def states(self) -> list[str]:
        return [slot.state for slot in self.runtime.slots.values()]

    def clean(self) -> None:
        self.runtime.release()
        self.runtime.reset()
        self.fault.at = None
        self.fault.taken.clear()

    def steps(self) -> list[str]:
        """A capture in which all is well: the steps that a slot takes."""
        self.runtime.capture()
        taken = list(self.fault.taken)
        self.clean()
        return taken

    def failure(self, at: int) -> dict[str, Any]:
        """One rank fails at a step of the larger slot; then both capture what failed again."""
        if self.rank == FAILING:
            self.fault.at = at
        self.runtime.capture()
        return self.seen_and_cleaned()

    def other_work(self) -> dict[str, Any]:
        """One rank has recorded other tokens."""
        batch = self.runtime.slots[LARGE].batch
        batch.tokens += self.rank
        self.runtime.capture()
        batch.tokens -= self.rank
        return self.seen_and_cleaned()

    def seen_and_cleaned(self) -> dict[str, Any]:
        first, cause = self.states(), self.runtime.slots[LARGE].cause
        self.runtime.wake()
        seen = {"first": first, "cause": str(cause), "after": self.states()}
        self.clean()
        return seen

    def other_order(self) -> dict[str, Any]:
        """The ranks plan the same slots in another order."""
        keys = (LARGE, SMALL) if self.rank == 0 else (SMALL, LARGE)
        try:
            self.runtime.capture(*keys)
        except RankDisagreement as error:
            seen = {"error": str(error), "first": self.states()}
            self.runtime.capture(LARGE, SMALL)
            seen["after"] = self.states()
            self.clean()
            return seen
        raise AssertionError("the ranks agreed on different plans")

    def idle(self) -> list[str]:
        """One rank has three rows, the other none."""
        self.runtime.capture()
        served = self.served(self.runtime)
        self.clean()
        return served

    def lazy(self) -> dict[str, list[str]]:
        """The same with slots that are captured when a step wants them; one rank fails when it captures the first."""
        runtime = self.build(capture="lazy")
        self.fault.taken.clear()
        self.fault.at = 6 if self.rank == FAILING else None
        seen = {"failing": self.served(runtime), "failed": self.served(runtime)}
        runtime.reset()
        return seen | {"again": self.served(runtime)}

    def served(self, runtime: GraphRuntime) -> list[str]:
        """A step in which one rank has three rows, the other none: why it went where, and its outputs."""
        counts = RankCounts([3, 0], all_decode_or_idle=True)
        rows = 3 if self.rank == 0 else 0
        runtime.push(rows)
        sources: dict[str, Any] = {"ids": torch.tensor([1, 2, 3])} if rows else {}
        step = runtime.step(rows=rows, mode=Mode.DECODE if rows else Mode.IDLE, counts=counts, **sources)
        return [str(step.decision.key), step.decision.reason.name, str(step.outputs.tolist())]


def failing_places(taken: list[str]) -> list[int]:
    """Where a failure is planted: each step of the first warm-up, the second forward, each later one up to the vote."""
    first, second, *_, last = (place for place, step in enumerate(taken) if step == "forward")
    return [*range(first + 1), second, *range(last + 1, len(taken) - 1)]


def main(rank: int, file: str) -> None:
    """Play all scenes."""
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=timedelta(seconds=30)
    )
    session.Pipeline = Faulty  # type: ignore[attr-defined]
    scenes = Scenes(rank)
    taken = scenes.steps()
    seen = {
        "steps": taken,
        "failures": {at: scenes.failure(at) for at in failing_places(taken)},
        "other work": scenes.other_work(),
        "other order": scenes.other_order(),
        "idle": scenes.idle(),
        "lazy": scenes.lazy(),
    }
    dist.destroy_process_group()
    print(json.dumps(seen))  # noqa: T201 — the test reads it


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
