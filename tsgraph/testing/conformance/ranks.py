"""`check_ranks`: whether ranks agree as their protocol says. Threads play the ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tsgraph.errors import RankDisagreement
from tsgraph.protocols.collaborators import Ranks
from tsgraph.testing.conformance.promises import Promises
from tsgraph.testing.conformance.threads import AGREED, DISAGREED, REFUSED, Act, RanksTrial

LATE_SECONDS = 0.05
"""How much later than the others one rank comes."""

RANKS: Promises[RanksTrial] = Promises(Ranks)


def check_ranks(
    factory: Callable[[int], Sequence[Ranks]], *, world: int = 2, deadline: float = 0.5, grace: float = 2.0
) -> None:
    """Check every promise of `Ranks` on what `factory(world)` makes, one for each rank, anew for each promise.

    `deadline`: seconds that a vote is given; `grace`: by how much it may exceed them. With a `world` of 1 only what one
    rank promises is checked.

    Raises: Nonconformance that lists all promises broken.
    """
    RANKS.check(lambda: RanksTrial(factory, world, deadline, grace))


@RANKS.promise("count", "how many ranks there are, on each of them")
def count_is_the_worlds(trial: RanksTrial) -> str | None:
    """Whether it is alone is what a rank asks first."""
    counts = [rank.count for rank in trial.ranks]
    return None if counts == [trial.world] * trial.world else f"{counts}"


@RANKS.promise("index", "another index from 0 on each rank")
def indices_are_the_ranks(trial: RanksTrial) -> str | None:
    """Each is one of them."""
    indices = [rank.index for rank in trial.ranks]
    return None if sorted(indices) == list(range(trial.world)) else f"{indices}"


@RANKS.promise("meet", "no rank to go on before every rank is here")
def meet_waits_for_all(trial: RanksTrial) -> str | None:
    """The last comes late, whichever it is; and again for the next meeting."""
    for late in range(trial.world):
        here: list[int] = []
        early = [told for told in trial.together(_meet(here, late)) if told != str(trial.world)]
        if early:
            return f"a rank that went on with {early[0]} of {trial.world} here"
    return None


def _meet(here: list[int], late: int) -> Act:
    def act(index: int, rank: Ranks) -> str:
        if index == late:
            time.sleep(LATE_SECONDS)
        here.append(index)
        rank.meet()
        return str(len(here))

    return act


@RANKS.promise("meet", "RankDisagreement where a rank has failed, and the point settled with it")
def meet_fails_with_a_rank(trial: RanksTrial) -> str | None:
    """One says no while the others still meet; their own vote on the point, which follows, waits for nobody."""
    for failing in range(trial.world if trial.world > 1 else 0):
        outcome = trial.together(_fail_or_meet(failing, trial.deadline))
        expected = [REFUSED if index == failing else f"{DISAGREED}, {REFUSED}" for index in range(trial.world)]
        if outcome != expected:
            return f"{_listed(outcome)} (rank {failing} failed)"
    return None


def _fail_or_meet(failing: int, deadline: float) -> Act:
    def act(index: int, rank: Ranks) -> str:
        if index == failing:
            return rank.settle("point", False, 0, deadline)
        try:
            rank.meet()
        except RankDisagreement:
            return f"{DISAGREED}, {rank.settle('point', False, 0, deadline)}"
        return "met"

    return act


@RANKS.promise("settle", "agreed by all where all say yes alike")
def settle_agrees(trial: RanksTrial) -> str | None:
    """With one digest."""
    return _unless(trial.vote(), {AGREED})


@RANKS.promise("settle", "refused by all where any says no")
def settle_refuses(trial: RanksTrial) -> str | None:
    """Whichever rank it is, and whatever its digest."""
    for failing in range(trial.world):
        if told := _unless(_against(trial, failing), {REFUSED}):
            return f"{told} (rank {failing} failed)"
    return None


@RANKS.promise("settle", "RankDisagreement where digests differ")
def settle_compares_digests(trial: RanksTrial) -> str | None:
    """Ranks that captured different things must not all go on; each is told."""
    for other in range(trial.world if trial.world > 1 else 0):
        if told := _unless(_astray(trial, other), {DISAGREED}):
            return f"{told} (rank {other} differs)"
    return None


def _against(trial: RanksTrial, failing: int) -> list[str]:
    """A vote in which one rank says no, and has nothing to show."""
    return trial.vote(ok=lambda index: index != failing, digest=lambda index: 7 * (index != failing))


def _astray(trial: RanksTrial, other: int) -> list[str]:
    """A vote in which one rank has another digest."""
    return trial.vote(digest=lambda index: 8 if index == other else 7)


@RANKS.promise("settle", "RankDisagreement between different points")
def settle_compares_points(trial: RanksTrial) -> str | None:
    """Ranks that are out of step must not take each other's votes for their own."""
    if trial.world == 1:
        return None
    return _unless(trial.vote(point=lambda i: "here" if i else "there"), {DISAGREED})


@RANKS.promise("settle", "RankDisagreement within the deadline where a rank never votes")
def settle_ends(trial: RanksTrial) -> str | None:
    """Its peers do not wait for ever."""
    if trial.world == 1:
        return None
    return _unless(trial.vote(absent=trial.world - 1), {DISAGREED})


@RANKS.promise("settle", "every vote to count for its own point, one after the other")
def settle_keeps_votes_apart(trial: RanksTrial) -> str | None:
    """Ten in a row without a pause, every third refused by one rank: all ranks see the same row."""

    def act(index: int, rank: Ranks) -> str:
        return " ".join(rank.settle(f"point {n}", n % 3 > 0 or index > 0, 7, trial.deadline) for n in range(10))

    return _unless(trial.together(act), {" ".join(AGREED if n % 3 > 0 else REFUSED for n in range(10))})


def _unless(outcome: list[str], right: set[str]) -> str | None:
    """The outcome at each rank, unless all are the same one of the `right` ones."""
    if len(set(outcome)) == 1 and set(outcome) <= right:
        return None
    return _listed(outcome)


def _listed(outcome: list[str]) -> str:
    return "; ".join(f"rank {index}: {told}" for index, told in enumerate(outcome))
