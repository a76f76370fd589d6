"""`check_ranks`: ranks that agree by shared memory pass, and each planted fault is named."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import attrs
import pytest
import torch.distributed as dist

from tests.testing.conformance.planting import assert_all_planted, assert_found, named
from tsgraph.adapters.local_ranks import LocalRanks
from tsgraph.adapters.torch_ranks import TorchRanks
from tsgraph.errors import RankDisagreement
from tsgraph.protocols.collaborators import Ranks, Verdict
from tsgraph.testing.conformance import RANKS, Promises, check_ranks
from tsgraph.testing.conformance.threads import RanksTrial
from tsgraph.testing.fakes import FakeRanks

Vote = tuple[str | None, bool, int]
"""A point (None: a rank waits in a meeting), whether it went well, and a digest."""


@attrs.define(eq=False)
class Table:
    """What the ranks of one world share: the votes of each round."""

    world: int
    votes: dict[int, dict[int, Vote]] = attrs.field(factory=lambda: defaultdict(dict))
    changed: threading.Condition = attrs.field(factory=threading.Condition)


@attrs.define(eq=False, slots=False)
class ThreadRank:
    """A right rank: its n-th meeting or vote meets the others' n-th."""

    table: Table
    index: int
    round: int = 0
    refused: bool = False

    @property
    def count(self) -> int:
        return self.table.world

    def meet(self) -> None:
        if any(point is not None for point, _, _ in self.gather((None, True, 0), 2)):
            self.refused = True
            raise RankDisagreement("a rank failed")

    def settle(self, point: str, ok: bool, digest: int, deadline: float) -> Verdict:
        refused, self.refused = self.refused, False
        return "refused" if refused else self.judge(self.gather((point, ok, digest), deadline))

    def gather(self, vote: Vote, deadline: float) -> list[Vote]:
        table, number = self.table, self.round
        self.round += 1
        with table.changed:
            table.votes[number][self.index] = vote
            table.changed.notify_all()
            if not table.changed.wait_for(lambda: len(table.votes[number]) == table.world, deadline):
                raise RankDisagreement("a rank did not vote in time")
        return list(table.votes[number].values())

    def judge(self, votes: Sequence[Vote]) -> Verdict:
        if len({point for point, _, _ in votes if point is not None}) > 1:
            raise RankDisagreement("ranks are at different points")
        if not all(ok for _, ok, _ in votes):
            return "refused"
        if len({digest for _, _, digest in votes}) > 1:
            raise RankDisagreement("digests differ")
        return "agreed"


class IsAlone(ThreadRank):
    @property
    def count(self) -> int:
        return 1


class IsEverywhere(ThreadRank):
    @property
    def index(self) -> int:
        return 0

    @index.setter
    def index(self, index: int) -> None:
        """The fault."""


class Hurries(ThreadRank):
    def meet(self) -> None:
        """The fault."""


class MeetsTheDead(ThreadRank):
    def meet(self) -> None:
        with suppress(RankDisagreement):
            super().meet()


class VotesTwice(ThreadRank):
    """Waits for the vote of a rank that has settled and gone."""

    def settle(self, point: str, ok: bool, digest: int, deadline: float) -> Verdict:
        self.refused = False
        return super().settle(point, ok, digest, deadline)


class NeverAgrees(ThreadRank):
    def judge(self, votes: Sequence[Vote]) -> Verdict:
        return "refused"


class TakesAMajority(ThreadRank):
    def judge(self, votes: Sequence[Vote]) -> Verdict:
        super().judge([(point, True, 0) for point, _, _ in votes])
        return "agreed" if 2 * sum(ok for _, ok, _ in votes) >= len(votes) else "refused"


class IgnoresDigests(ThreadRank):
    def judge(self, votes: Sequence[Vote]) -> Verdict:
        return super().judge([(point, ok, 0) for point, ok, _ in votes])


class IgnoresPoints(ThreadRank):
    def judge(self, votes: Sequence[Vote]) -> Verdict:
        return super().judge([("", ok, digest) for _, ok, digest in votes])


class WaitsForEver(ThreadRank):
    def gather(self, vote: Vote, deadline: float) -> list[Vote]:
        return super().gather(vote, deadline + 2)


class MixesRounds(ThreadRank):
    def gather(self, vote: Vote, deadline: float) -> list[Vote]:
        self.round = 0
        return super().gather(vote, deadline)


PLANTED: dict[str, Any] = {
    "count_is_the_worlds": IsAlone,
    "indices_are_the_ranks": IsEverywhere,
    "meet_waits_for_all": Hurries,
    "meet_fails_with_a_rank": MeetsTheDead,
    "settle_agrees": NeverAgrees,
    "settle_refuses": TakesAMajority,
    "settle_compares_digests": IgnoresDigests,
    "settle_compares_points": IgnoresPoints,
    "settle_ends": WaitsForEver,
    "settle_keeps_votes_apart": MixesRounds,
}


def world_of(make: Callable[[Table, int], Ranks]) -> Callable[[int], list[Ranks]]:
    """Makes worlds of ranks that share a table."""

    def build(world: int) -> list[Ranks]:
        table = Table(world)
        return [make(table, index) for index in range(world)]

    return build


@pytest.mark.parametrize("world", [1, 2, 3])
def test_right_ranks_pass(world: int):
    """One alone, two, and three."""
    check_ranks(world_of(ThreadRank), world=world, deadline=1, grace=10)


@pytest.mark.parametrize("alone", [FakeRanks, LocalRanks])
def test_a_rank_alone_passes(alone: Callable[[], Ranks]):
    """The fake, and the one for engines that run alone."""
    check_ranks(lambda world: [alone()], world=1)


def gloo_ranks(world: int) -> list[Ranks]:
    """Ranks over torch.distributed, all in this process."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # it is public, says its documentation

    def join(index: int) -> Ranks:
        group: Any = dist.ProcessGroupGloo(store, index, world, timedelta(seconds=30))
        return TorchRanks(group, deadline=10)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(join, range(world)))


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this build of torch has no gloo")
def test_ranks_of_torch_pass():
    """Two of them, over gloo."""
    check_ranks(gloo_ranks, deadline=1, grace=10)


def test_every_promise_has_a_planted_fault():
    """None of the checks is idle."""
    assert_all_planted(RANKS, PLANTED)


@pytest.mark.parametrize(("name", "faulty"), [*PLANTED.items(), ("meet_fails_with_a_rank", VotesTwice)])
def test_a_fault_is_found(name: str, faulty: Any):
    """Planted, and named by protocol and member."""
    alone = Promises(RANKS.protocol, [named(RANKS, name)])
    grace = 0.3 if name == "settle_ends" else 10
    assert_found(RANKS, name, lambda: alone.check(lambda: RanksTrial(world_of(faulty), 2, 0.1, grace)))
