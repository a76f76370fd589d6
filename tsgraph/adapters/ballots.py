"""What ranks tell each other when they meet and when they settle, and what all of it together means.

A meeting is a vote, too: each rank sends one ballot to every other, and it says either "I wait" or how a point went. So
a rank that failed, and settles while the others still meet, is heard by them: nobody waits for one who is not coming.
Pure: every mixture of ballots can be tried without processes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import attrs

from tsgraph.errors import RankDisagreement
from tsgraph.protocols.collaborators import Verdict

FRAME = 1024
"""Bytes of one ballot on the wire: of one size, so that a receiver needs to know nothing first."""

_LONGEST_POINT = 600


@attrs.frozen
class Ballot:
    """What one rank says: that it waits (`point` None), or how `point` went, with a digest of what was done there."""

    rank: int
    point: str | None = None
    ok: bool = True
    digest: int = 0

    def encode(self) -> bytes:
        """The ballot in `FRAME` bytes. A point that is too long keeps its beginning and a digest of the whole."""
        fields = [self.rank, self.point and _shortened(self.point), self.ok, self.digest]
        return json.dumps(fields, ensure_ascii=False).encode().ljust(FRAME)

    @classmethod
    def decode(cls, frame: bytes) -> Ballot:
        """The ballot that a frame holds."""
        return cls(*json.loads(frame))

    def __str__(self) -> str:
        if self.point is None:
            return f"rank {self.rank} waits in a meeting"
        word = "settles" if self.ok else "says no at"
        return f"rank {self.rank} {word} {self.point!r} with digest {self.digest:#x}"


def judge_ballots(ballots: Sequence[Ballot]) -> Verdict:
    """What the ballots of all ranks, one of each, mean; the same on every rank.

    "agreed": all wait, or all say yes to one point and one digest. "refused": a rank says no, and each other settles
    the same point or waits.

    Raises: RankDisagreement where ranks settle different points, where those that say yes have different digests, and
    where one says yes while another waits: they do not do the same work.
    """
    votes = [ballot for ballot in ballots if ballot.point is not None]
    content = [ballot for ballot in votes if ballot.ok]
    if len({ballot.point for ballot in votes}) > 1:
        raise _disagreement("ranks settle different points", votes)
    if content and len(votes) < len(ballots):
        raise _disagreement("ranks are out of step", ballots)
    if len({ballot.digest for ballot in content}) > 1:
        raise _disagreement("ranks did different work at one point", votes)
    return "agreed" if len(content) == len(votes) else "refused"


def refusal_while_waiting(ballots: Iterable[Ballot]) -> RankDisagreement:
    """The error of a rank that waited in a meeting while others said no."""
    against = [ballot for ballot in ballots if ballot.point is not None]
    failed = ", ".join(str(ballot.rank) for ballot in against)
    point = against[0].point
    return RankDisagreement(
        f"rank {failed} failed at {point!r} while this rank waited for it",
        hint="the cause is in that rank's log; mend it, then reset and capture again on every rank",
        ranks=[ballot.rank for ballot in against],
        point=point,
    )


def _disagreement(what: str, ballots: Sequence[Ballot]) -> RankDisagreement:
    return RankDisagreement(
        f"{what}: {'; '.join(map(str, ballots))}",
        hint="capture the same slots, from the same spec and geometry, in the same order on every rank (R6)",
        ballots=[attrs.asdict(ballot) for ballot in ballots],
    )


def _shortened(point: str) -> str:
    raw = point.encode()
    if len(json.dumps(point, ensure_ascii=False).encode()) <= _LONGEST_POINT:
        return point
    return f"{raw[: _LONGEST_POINT // 8].decode(errors='ignore')}… {blake2b(raw, digest_size=8).hexdigest()}"
