"""Ranks over torch.distributed: every meeting and every vote is one exchange of ballots over a CPU group.

A vote must work when a capture has failed, so it never uses the device's communicator: a collective that was being
recorded may have left that one unusable, and a device that hangs would hang the vote as well. The exchange is point to
point, so that whoever waits in vain can say for whom.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Protocol

import attrs
import torch
import torch.distributed as dist

from tsgraph.adapters.ballots import FRAME, Ballot, judge_ballots, refusal_while_waiting
from tsgraph.errors import ContractViolation, RankDisagreement
from tsgraph.protocols.collaborators import Verdict

MEETING_SECONDS = 300.0
"""How long a rank waits for the others unless it is told otherwise: a slow rank may be compiling kernels."""

_TAG = 0
_SHORTEST_WAIT = 0.001  # seconds; no time at all would mean the group's own, long timeout


class Work(Protocol):
    """A message on its way."""

    def wait(self, timeout: timedelta) -> bool:
        """Block until it has gone or come. Raises RuntimeError after `timeout`, or where the other end is gone."""


class Group(Protocol):
    """The part of a process group that is used; `torch.distributed.ProcessGroup` and its backends have it."""

    def size(self) -> int:
        """How many ranks it has."""

    def rank(self) -> int:
        """Which of them this is."""

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> Work:
        """Begin to send to `rank`."""

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> Work:
        """Begin to receive from `rank`."""

    def name(self) -> str:
        """Its backend."""


class TorchRanks:
    """The ranks of a CPU group, which must serve nothing else: other messages on it would be taken for ballots.

    Where a meeting fails since a rank said no, the point is settled for this rank too: its own vote, which follows, is
    answered "refused" and sends nothing, because the others have gone on. After a missed deadline nobody knows who
    heard what, so the group is spent: each later meeting and vote raises at once, and a vote of no is "refused".
    """

    def __init__(self, group: Group | None = None, *, deadline: float = MEETING_SECONDS) -> None:
        """Ranks of `group` (None: a new gloo group of all ranks; every rank must make it at the same point).

        `deadline`: seconds that a meeting may take.

        Raises: ContractViolation where the group cannot carry host tensors, or the deadline is no positive number.
        """
        self._deadline = _checked_deadline(deadline)
        self._group = _checked_group(dist.new_group(backend="gloo") if group is None else group)
        self._refused = False
        self._spent: str | None = None

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return self._group.size()

    @property
    def index(self) -> int:
        """Which of them this is."""
        return self._group.rank()

    def meet(self) -> None:
        """Wait until every rank is here.

        Raises: RankDisagreement where a rank failed meanwhile, is somewhere else, or has not come in time (named in
        `context["missing"]`).
        """
        self._refused = True  # until all is well: a failed meeting settles the point
        ballots = self._exchange(Ballot(self.index), self._deadline)
        if judge_ballots(ballots) == "refused":
            raise refusal_while_waiting(ballots)
        self._refused = False

    def settle(self, point: str, ok: bool, digest: int, deadline: float) -> Verdict:
        """Agree on how `point` went, within `deadline` seconds. Call it once a point, also where this rank failed.

        Raises: RankDisagreement where ranks settle different points or did different work, or one is not in time.
        """
        refused, self._refused = self._refused, False
        if refused or (self._spent is not None and not ok):
            return "refused"
        return judge_ballots(self._exchange(Ballot(self.index, point, ok, digest), deadline))

    # -- the exchange -------------------------------------------------------------------------------------------------

    def _exchange(self, mine: Ballot, deadline: float) -> list[Ballot]:
        if self._spent is not None:
            raise _spent(self._spent)
        self._spent = "an exchange was interrupted"  # until all is well
        poll = _Poll(self._group, monotonic() + deadline)
        ballots = poll.take(mine)
        if poll.missing:
            self._spent = f"rank {', '.join(map(str, poll.missing))} did not come"
            raise _missing(mine, poll, deadline) from poll.trouble
        self._spent = None
        return ballots


@attrs.define(eq=False)
class _Poll:
    """One exchange: `missing` are the ranks that were not heard, `trouble` the last error among them."""

    group: Group
    until: float
    missing: list[int] = attrs.field(factory=list)
    trouble: RuntimeError | None = None

    def take(self, mine: Ballot) -> list[Ballot]:
        """The ballots of all ranks that were heard, in their order."""
        peers = [rank for rank in range(self.group.size()) if rank != mine.rank]
        frame = torch.frombuffer(bytearray(mine.encode()), dtype=torch.uint8)
        sent = {rank: self._begin(self.group.send, frame, rank) for rank in peers}
        frames = {rank: torch.empty(FRAME, dtype=torch.uint8, device="cpu") for rank in peers}
        due = {rank: self._begin(self.group.recv, frames[rank], rank) for rank in peers}
        heard = [rank for rank in peers if self._finished(due[rank])]
        self.missing = [rank for rank in peers if rank not in heard or not self._finished(sent[rank])]
        ballots = [Ballot.decode(bytes(frames[rank].tolist())) for rank in heard]
        return sorted([mine, *ballots], key=lambda ballot: ballot.rank)

    def _begin(
        self, move: Callable[[list[torch.Tensor], int, int], Work], frame: torch.Tensor, rank: int
    ) -> Work | None:
        try:
            return move([frame], rank, _TAG)
        except RuntimeError as error:  # the other end has hung up
            self.trouble = error
            return None

    def _finished(self, work: Work | None) -> bool:
        try:
            return work is not None and work.wait(timedelta(seconds=max(self.until - monotonic(), _SHORTEST_WAIT)))
        except RuntimeError as error:
            self.trouble = error
            return False


def _missing(mine: Ballot, poll: _Poll, deadline: float) -> RankDisagreement:
    where = "a meeting" if mine.point is None else repr(mine.point)
    names = ", ".join(map(str, poll.missing))
    return RankDisagreement(
        f"rank {names} did not come to {where} within {deadline:g} s, or has hung up; rank {mine.rank} waited",
        hint=f"look where rank {names} is; then restart the ranks, or give each new TorchRanks over a new group",
        missing=list(poll.missing),
        point=mine.point,
    )


def _spent(why: str) -> RankDisagreement:
    return RankDisagreement(
        f"these ranks cannot agree on anything any more: {why}",
        hint="make new TorchRanks over a new group, on every rank",
    )


def _checked_deadline(deadline: float) -> float:
    if not (0 < deadline < math.inf):
        raise ContractViolation("Ranks", "deadline", "seconds, more than none", repr(deadline))
    return deadline


def _checked_group(group: Group) -> Group:
    carrier = _host_backend(group)
    if carrier in {"", "nccl"}:
        got = f"one over {carrier}" if carrier else "one without a backend for them"
        hint = 'make one on every rank: torch.distributed.new_group(backend="gloo")'
        raise ContractViolation("Ranks", "group", "a group that carries host tensors", got, hint=hint)
    return group


def _host_backend(group: Group) -> str:
    """The backend that carries host tensors: `gloo` of `cpu:gloo,cuda:nccl`."""
    if not isinstance(group, dist.ProcessGroup):
        return group.name()
    parts = (part.partition(":") for part in dist.get_backend_config(group).split(","))
    return {device: backend for device, _, backend in parts}.get("cpu", "")
