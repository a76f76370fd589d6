"""Ranks over gloo groups: the exchange itself, each rank in a thread of this process."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tsgraph.adapters.torch_ranks import TorchRanks
from tsgraph.errors import ContractViolation, RankDisagreement
from tsgraph.testing.conformance import check_ranks

POINT = "capture default/4"


def world_of(count, deadline=20.0):
    """Ranks over one group; each is made in a thread, since making it waits for the others."""
    store = dist.HashStore()

    def one(index):
        return TorchRanks(dist.ProcessGroupGloo(store, index, count, timedelta(seconds=60)), deadline=deadline)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


@pytest.fixture
def together():
    """Runs one function per rank, each in its thread; returns what each returned, or its disagreement."""

    def run(*bodies, deadline=20.0):
        def one(body, ranks):
            try:
                return body(ranks)
            except RankDisagreement as error:
                return error

        with ThreadPoolExecutor(len(bodies)) as threads:
            return list(threads.map(one, bodies, world_of(len(bodies), deadline)))

    return run


def settle(ranks, ok=True, point=POINT, digest=7, deadline=20.0):
    """One vote."""
    return ranks.settle(point, ok, digest, deadline)


def fail_and_go_on(ranks):
    """Fails before it meets anyone, votes so, and works on the next point."""
    return settle(ranks, ok=False), ranks.meet(), settle(ranks, point="next")


def wait_and_go_on(ranks):
    """Waits for the others; the meeting fails, and it votes so and works on the next point."""
    with pytest.raises(RankDisagreement, match="rank 1 failed at 'capture default/4' while this rank waited"):
        ranks.meet()
    return settle(ranks, ok=False), ranks.meet(), settle(ranks, point="next")


def test_they_keep_every_promise_of_the_protocol():
    """Counting, meeting, voting, failing while others wait, and a rank that never comes."""
    check_ranks(world_of, world=3, deadline=3.0, grace=20.0)


def test_a_rank_alone_agrees_with_itself(together):
    """A group of one waits for nobody."""
    assert ["agreed"] == together(lambda ranks: ranks.meet() or settle(ranks))


def test_nobody_leaves_a_meeting_before_all_are_there(together):
    """The last one to come lets all go."""
    arrived = threading.Event()

    def late(ranks):
        time.sleep(0.2)
        arrived.set()
        ranks.meet()

    def early(ranks):
        ranks.meet()
        return arrived.is_set()

    assert [True, None, True] == together(early, late, early)


def test_ballots_are_host_tensors_whatever_the_default(together):
    """An engine that makes the device its default still votes over the host."""

    def vote(ranks):
        with torch.device("meta"):
            ranks.meet()
            return settle(ranks)

    assert ["agreed", "agreed"] == together(vote, vote)


@pytest.mark.parametrize("against", [(), (0,), (2,), (0, 1, 2)])
def test_one_no_refuses_for_all(together, against):
    """All agree, or all refuse."""
    bodies = [lambda ranks, ok=index not in against: settle(ranks, ok=ok) for index in range(3)]
    assert ["refused" if against else "agreed"] * 3 == together(*bodies)


def test_a_vote_of_no_reaches_those_who_wait(together):
    """The point is settled for all: peers that waited vote into the void, and everyone goes on to the next point."""
    expected = ("refused", None, "agreed")
    assert [expected] * 3 == together(wait_and_go_on, fail_and_go_on, wait_and_go_on)


def test_who_waits_but_does_not_vote_stays_in_step(together):
    """A rank whose meeting failed and that meets again, without a vote, is still in step with the others."""

    def careless(ranks):
        with pytest.raises(RankDisagreement):
            ranks.meet()
        return ranks.meet(), settle(ranks, point="next")

    assert [(None, "agreed"), ("refused", None, "agreed")] == together(careless, fail_and_go_on)


def test_different_points_are_a_disagreement(together):
    """Ranks that capture other slots, or in another order, are told which rank is where (R6)."""
    results = together(
        lambda ranks: settle(ranks, point="capture a/1"), lambda ranks: settle(ranks, point="capture a/2")
    )
    assert [RankDisagreement] * 2 == [type(result) for result in results]
    assert "rank 0 settles 'capture a/1'" in str(results[1])
    assert "rank 1 settles 'capture a/2'" in str(results[0])


def test_different_work_is_a_disagreement(together):
    """One point, two digests: named with the ranks (fault H7)."""
    results = together(lambda ranks: settle(ranks, digest=0xA), lambda ranks: settle(ranks, digest=0xB))
    assert [RankDisagreement] * 2 == [type(result) for result in results]
    assert "rank 0 settles 'capture default/4' with digest 0xa; rank 1 settles" in str(results[1])


def test_a_yes_while_another_waits_is_a_disagreement(together):
    """Ranks out of step are told so, both of them, and are in step again afterwards."""

    def ahead(ranks):
        with pytest.raises(RankDisagreement, match="out of step"):
            settle(ranks)
        return ranks.meet()

    def behind(ranks):
        with pytest.raises(RankDisagreement, match="out of step"):
            ranks.meet()
        return settle(ranks, ok=False), ranks.meet()

    assert [None, ("refused", None)] == together(ahead, behind)


def test_a_rank_that_does_not_come_is_named(together):
    """A meeting ends with its deadline, and says on every rank who was not there; so does a vote."""
    asleep = threading.Event()

    def absent(ranks):
        asleep.wait(20)

    def waiting(ranks):
        began = time.monotonic()
        try:
            ranks.meet()
        except RankDisagreement as error:
            return error, time.monotonic() - began
        finally:
            if ranks.index == 2:
                asleep.set()

    (first, seconds), _, (third, _) = together(waiting, absent, waiting, deadline=0.5)
    for error in (first, third):
        assert 1 in error.context["missing"]  # and the other one, if its deadline passed first: it hangs up
        assert "did not come to a meeting within 0.5 s" in str(error)
    assert 0.4 < seconds < 5


def test_after_a_missed_deadline_nothing_is_agreed_any_more(together):
    """Nobody knows who heard what: meetings and votes raise at once, a no is refused, and the late one hears, too."""
    missed = threading.Event()

    def punctual(ranks):
        with pytest.raises(RankDisagreement, match="rank 1 did not come to 'capture default/4'"):
            settle(ranks, deadline=0.2)
        missed.set()
        began = time.monotonic()
        for again in (ranks.meet, lambda: settle(ranks, point="next")):
            with pytest.raises(RankDisagreement, match=r"cannot agree .*: rank 1 did not come\n.*new group"):
                again()
            ranks._refused = False
        return settle(ranks, ok=False), time.monotonic() - began < 1

    def late(ranks):
        missed.wait(20)
        with pytest.raises(RankDisagreement, match="rank 0 did not come to a meeting"):
            ranks.meet()
        return settle(ranks, ok=False)

    assert [("refused", True), "refused"] == together(punctual, late)


def test_an_interrupted_exchange_is_the_last(together):
    """Where waiting is broken off, nobody knows who heard what either."""

    def interrupted(ranks):
        def interrupt(*_):
            raise KeyboardInterrupt

        ranks._group = type("Group", (), {"size": lambda _: 1, "rank": lambda _: 0, "__getattr__": interrupt})()
        ranks._group.size = interrupt
        with pytest.raises(KeyboardInterrupt):
            ranks.meet()
        with pytest.raises(RankDisagreement, match="an exchange was interrupted"):
            ranks.meet()
        return settle(ranks, ok=False)

    assert ["refused"] == together(interrupted)


@pytest.mark.parametrize("deadline", [0, -1, float("inf"), float("nan")])
def test_a_deadline_is_a_positive_number(deadline):
    """A meeting without an end is refused when the ranks are made."""
    with pytest.raises(ContractViolation, match=r"Ranks\.deadline"):
        TorchRanks(dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=9)), deadline=deadline)


@pytest.fixture
def world():
    """This process as a world of its own."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_group_of_its_own_is_made(world):
    """Without a group, ranks make a new one over gloo, so that no message of the engine is taken for a ballot."""
    ranks = TorchRanks()
    assert (1, "agreed") == (ranks.count, settle(ranks))
    assert dist.group.WORLD is not ranks._group


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("cpu:gloo,cuda:nccl", None),
        ("cuda:nccl", "one without a backend for them"),
        ("cpu:nccl,cuda:nccl", "over nccl"),
    ],
)
def test_the_backend_for_host_tensors_counts(world, monkeypatch, config, says):
    """A group with NCCL for the device is fine if the host's tensors go another way."""
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    if says is None:
        assert "agreed" == settle(TorchRanks(dist.group.WORLD))
    else:
        with pytest.raises(ContractViolation, match=says):
            TorchRanks(dist.group.WORLD)


def test_a_device_group_is_refused():
    """A vote never uses the device's communicator: a failed capture may have left it unusable."""
    group = type("Nccl", (), {"name": lambda _: "nccl"})()
    with pytest.raises(
        ContractViolation, match=r"Ranks\.group: expected a group that carries host tensors, got one over nccl"
    ):
        TorchRanks(group)
