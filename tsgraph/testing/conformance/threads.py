"""Threads that play ranks, so that a world of them fits into one test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import attrs

from tsgraph.errors import RankDisagreement
from tsgraph.protocols.collaborators import Ranks

AGREED, REFUSED, DISAGREED, WAITS = "agreed", "refused", "RankDisagreement", "still waiting"
Act = Callable[[int, Ranks], str]


@attrs.frozen(eq=False)
class RanksTrial:
    """As many ranks as `world`, each in a thread of its own while it acts."""

    fresh: Callable[[int], Sequence[Ranks]]
    world: int
    deadline: float
    grace: float
    ranks: Sequence[Ranks] = attrs.field(init=False)

    @ranks.default
    def _make(self) -> Sequence[Ranks]:
        return self.fresh(self.world)

    @property
    def part(self) -> Ranks:
        """The first rank."""
        return self.ranks[0]

    @property
    def patience(self) -> float:
        """Seconds after which a rank that acts is said to wait for ever."""
        return self.deadline + self.grace

    def together(self, act: Act, absent: int | None = None) -> list[str]:
        """What `act` gives at every rank but `absent`, in order: a word, an error's name, or that it still waits."""
        told = [WAITS] * self.world
        threads = [
            threading.Thread(target=_tell, args=(told, index, act, rank), daemon=True)
            for index, rank in enumerate(self.ranks)
            if index != absent
        ]
        end = time.monotonic() + self.patience
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        return [word for index, word in enumerate(told) if index != absent]

    def vote(
        self,
        point: Callable[[int], str] = lambda _: "point",
        ok: Callable[[int], bool] = lambda _: True,
        digest: Callable[[int], int] = lambda _: 7,
        absent: int | None = None,
    ) -> list[str]:
        """The outcome at every rank of one vote."""
        return self.together(lambda i, r: r.settle(point(i), ok(i), digest(i), self.deadline), absent)


def _tell(told: list[str], index: int, act: Act, rank: Ranks) -> None:
    try:
        told[index] = act(index, rank)
    except Exception as error:  # noqa: BLE001 - an error is an outcome, and a thread's would be lost
        told[index] = (
            type(error).__name__ if isinstance(error, RankDisagreement) else f"{type(error).__name__}: {error}"
        )
