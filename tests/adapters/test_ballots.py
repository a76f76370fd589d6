"""What ballots mean, in every mixture."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.adapters.ballots import FRAME, Ballot, judge_ballots, refusal_while_waiting
from tsgraph.errors import RankDisagreement

POINTS = st.sampled_from([None, "capture default/4", "capture default/2"])
MIXTURES = st.lists(st.tuples(POINTS, st.booleans(), st.sampled_from([7, 8])), min_size=1, max_size=4)


def ballots_of(mixture):
    """One ballot of each rank; who waits has nothing to say."""
    return [Ballot(rank) if vote[0] is None else Ballot(rank, *vote) for rank, vote in enumerate(mixture)]


def outcome(ballots):
    """The verdict, or that there is none."""
    try:
        return judge_ballots(ballots)
    except RankDisagreement:
        return "disagreement"


@given(mixture=MIXTURES)
def test_only_the_same_work_is_agreed(mixture):
    """Agreed: all wait, or all say yes to the same. Refused: someone says no at the one point. Else: no verdict."""
    ballots = ballots_of(mixture)
    points, words = {ballot.point for ballot in ballots}, {ballot.ok for ballot in ballots if ballot.point}
    yes = {ballot.digest for ballot in ballots if ballot.point and ballot.ok}
    expected = "disagreement"
    if points == {None} or (len(points) == 1 and words == {True} and len(yes) == 1):
        expected = "agreed"
    elif len(points - {None}) == 1 and False in words and len(yes) < 2 and not (yes and None in points):
        expected = "refused"
    assert expected == outcome(ballots)


@given(mixture=MIXTURES, data=st.data())
def test_the_order_of_arrival_means_nothing(mixture, data):
    """Every rank hears the same ballots and so decides the same."""
    ballots = ballots_of(mixture)
    assert outcome(ballots) == outcome(data.draw(st.permutations(ballots)))


@given(
    ballot=st.builds(
        Ballot,
        st.integers(0, 10**6),
        st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=100)),
        st.booleans(),
        st.integers(0, 2**63 - 1),
    )
)
def test_a_ballot_survives_the_wire(ballot):
    """What is sent is what is heard, in frames of one size."""
    frame = ballot.encode()
    assert (FRAME, ballot) == (len(frame), Ballot.decode(frame))


@pytest.mark.parametrize("letter", ["x", "ä", '"', "\0"])
def test_a_long_point_keeps_its_beginning_and_is_told_from_others(letter):
    """A point too long for a frame is shortened: alike on every rank, and never like another point."""
    long, other = letter * 5_000, letter * 4_999 + "y"
    heard, again, else_ = (Ballot.decode(Ballot(0, point).encode()).point for point in (long, long, other))
    assert heard == again != else_
    assert heard.startswith(letter)


def test_differing_points_name_ranks_points_and_digests():
    """Whoever reads the error sees which rank is where, and with what."""
    with pytest.raises(RankDisagreement, match=r"rank 0 settles 'a' with digest 0x7; rank 1 settles 'b'") as caught:
        judge_ballots([Ballot(0, "a", True, 7), Ballot(1, "b", True, 7)])
    assert ["a", "b"] == [ballot["point"] for ballot in caught.value.context["ballots"]]


def test_a_vote_of_no_has_no_work_to_compare():
    """A rank that failed may have any digest: the point is refused, with no disagreement about work not done."""
    assert "refused" == judge_ballots([Ballot(0, "a", True, 7), Ballot(1, "a", False, 8)])


def test_a_yes_beside_one_who_waits_is_out_of_step():
    """A rank that has finished a slot which another still warms up does other work."""
    with pytest.raises(RankDisagreement, match=r"out of step: rank 0 settles 'a'.*; rank 1 waits in a meeting"):
        judge_ballots([Ballot(0, "a", True, 7), Ballot(1)])


def test_who_waited_learns_whom_for():
    """The error of a rank that waited names the ranks that failed, and where."""
    error = refusal_while_waiting([Ballot(0), Ballot(1, "a", False), Ballot(2, "a", False)])
    assert ("rank 1, 2 failed at 'a'", [1, 2]) == (str(error)[:23], error.context["ranks"])
