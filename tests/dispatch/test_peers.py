"""What ranks tell of themselves, checked against what must hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.dispatch.peers import Peers
from tsgraph.errors import BadBatch
from tsgraph.keys import Mode, RankCounts

PAIR = Peers(count=2, index=1, tokens_per_request=2)


def decoding(tokens, rows=None):
    """Counts of a step in which all decode or idle."""
    return RankCounts(tokens, rows, all_decode_or_idle=True)


def test_a_recording_pretends_uniform_ranks():
    """Tokens and rows are alike on every rank, and all decode (R14, R15); a rank alone pretends nothing."""
    assert decoding([8, 8], [4, 4]) == PAIR.uniform(4)
    assert Peers(tokens_per_request=2).uniform(4) is None


@given(rows=st.lists(st.integers(0, 99), min_size=1, max_size=5), each=st.integers(1, 5), data=st.data())
def test_rows_follow_from_tokens_where_all_decode(rows, each, data):
    """What is right is accepted as it is, with the rows of every rank."""
    index = data.draw(st.integers(0, len(rows) - 1))
    peers = Peers(count=len(rows), index=index, tokens_per_request=each)
    given_rows = data.draw(st.sampled_from([None, rows]))
    counts = decoding([each * number for number in rows], given_rows)
    assert tuple(rows) == peers.checked(counts, rows[index], Mode.DECODE).rows
    assert max(rows) == peers.widest(counts)


def test_counts_of_other_steps_are_taken_as_they_are():
    """Where a rank extends, tokens are any number, and rows are known only if they are given."""
    counts = RankCounts([4, 77])
    assert counts is PAIR.checked(counts, 3, Mode.EXTEND)
    assert PAIR.checked(None, 3, Mode.EXTEND) is None


def test_the_last_row_of_the_widest_may_be_incomplete():
    """Tokens that are no whole rows need a row more (R27); of nothing, nothing is known."""
    assert (39, None) == (PAIR.widest(RankCounts([4, 77])), PAIR.widest(None))


WRONG = {
    "a list": ([4, 6], Mode.DECODE, "must be RankCounts"),
    "one rank too few": (decoding([6]), Mode.DECODE, "of 1 ranks, but there are 2"),
    "one rank too many": (decoding([2, 6, 2]), Mode.DECODE, "of 3 ranks, but there are 2"),
    "rows of one rank": (decoding([4, 6], [3]), Mode.DECODE, r"counts\.rows are of 1 ranks"),
    "negative": (decoding([-2, 6]), Mode.DECODE, "non-negative integers"),
    "negative rows": (RankCounts([4, 77], [-1, 3]), Mode.EXTEND, r"counts\.rows must be non-negative"),
    "no integer": (decoding([4.0, 6]), Mode.DECODE, "non-negative integers"),
    "a truth value": (decoding([True, 6]), Mode.DECODE, "non-negative integers"),
    "half a row": (decoding([3, 6]), Mode.DECODE, r"\[3, 6\] are not all multiples of 2"),
    "rows of other tokens": (decoding([4, 6], [1, 3]), Mode.DECODE, r"\[1, 3\] contradict the tokens.*\[2, 3\]"),
    "not what this rank has": (decoding([6, 4]), Mode.DECODE, "counts.tokens of rank 1: 4, not its 6"),
    "nor in a mixed step": (RankCounts([9, 4]), Mode.DECODE, "counts.tokens of rank 1: 4, not its 6"),
    "rows that this rank has not": (RankCounts([4, 77], [2, 9]), Mode.EXTEND, "counts.rows of rank 1: 9, not its 3"),
    "an idle rank's": (decoding([4, 2]), Mode.IDLE, "counts.rows of rank 1: 1, not its 3"),
    "all decode, but this one": (decoding([4, 6]), Mode.EXTEND, "this one's step is extend"),
}


@pytest.mark.parametrize(("counts", "mode", "says"), WRONG.values(), ids=WRONG)
def test_wrong_counts_are_refused(counts, mode, says):
    """Counts that cannot be, or that contradict this rank's own step, are a BadBatch that says how."""
    with pytest.raises(BadBatch, match=says):
        PAIR.checked(counts, 3, mode)
