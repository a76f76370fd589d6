"""Where a step goes, against a slow oracle."""

from hypothesis import given
from hypothesis import strategies as st

from tsgraph.dispatch.decision import Dispatch
from tsgraph.dispatch.peers import Peers
from tsgraph.keys import Mode, RankCounts, Reason, SlotKey

SIZES = st.sets(st.integers(1, 40), min_size=1, max_size=6).map(lambda sizes: tuple(sorted(sizes)))


def test_every_reason_is_given():
    """Each reason that dispatch can give has a step that gets it."""
    stale = SlotKey("default", 8)
    dispatch = Dispatch((2, 4, 8), blocked={stale: Reason.SLOT_STALE})
    unpadded, disabled = Dispatch((2, 4), padding=False), Dispatch((2,), enabled=False)
    decisions = [
        dispatch.decide(4, variant="default"),
        dispatch.decide(3, variant="default"),
        dispatch.decide(9, variant="default"),
        dispatch.decide(7, variant="default"),
        dispatch.decide(1, variant="default", mode=Mode.EXTEND),
        unpadded.decide(3, variant="default"),
        disabled.decide(1, variant="default"),
    ]
    expected = ["EXACT", "PADDED", "NO_SIZE_FITS", "SLOT_STALE", "NOT_DECODE", "NO_EXACT_SIZE", "DISABLED"]
    assert expected == [decision.reason.name for decision in decisions]


@given(sizes=SIZES, rows=st.integers(0, 50), padding=st.booleans())
def test_the_smallest_size_that_fits_serves(sizes, rows, padding):
    """With padding the smallest size that holds the rows serves; without, only the exact one."""
    decision = Dispatch(sizes, padding=padding).decide(rows, variant="v")
    fitting = [size for size in sizes if (size >= rows if padding else size == rows)]
    assert (min(fitting) if fitting else None) == (decision.key.size if decision.key else None)
    assert decision.waste == decision.padded_to - rows >= 0


@given(sizes=SIZES)
def test_the_table_says_what_deciding_says(sizes):
    """The table that the hot path reads agrees with the decision, for every row count it covers."""
    dispatch = Dispatch(sizes)
    table = dispatch.table("default")
    assert [dispatch.decide(rows, variant="default") for rows in range(sizes[-1] + 1)] == list(table)


PAIR = Peers(count=2, tokens_per_request=2)
BUSY = RankCounts([4, 6], all_decode_or_idle=True)


def test_ranks_follow_the_widest():
    """With counts of every rank, the size is that of the widest rank, in rows: not of this rank, nor the sum (R27)."""
    decision = Dispatch((2, 4, 8), peers=PAIR).decide(2, variant="default", counts=BUSY)
    assert (4, Reason.PADDED) == (decision.padded_to, decision.reason)


@given(sizes=SIZES, rows=st.lists(st.integers(0, 45), min_size=2, max_size=4), padding=st.booleans())
def test_all_ranks_choose_the_same_size(sizes, rows, padding):
    """Whatever each rank has, all go to one slot, the smallest that holds the widest, or all run eagerly (R27, R29)."""
    counts = RankCounts([2 * each for each in rows], all_decode_or_idle=True)
    peers = [Peers(count=len(rows), index=index, tokens_per_request=2) for index in range(len(rows))]
    chosen = [Dispatch(sizes, padding, peers=one).decide(rows[one.index], variant="v", counts=counts) for one in peers]
    fitting = [size for size in sizes if (size >= max(rows) if padding else size == max(rows))]
    expected = SlotKey("v", min(fitting)) if fitting and any(rows) else None
    assert {expected} == {decision.key for decision in chosen}


def test_a_rank_that_is_elsewhere_keeps_all_eager():
    """With several ranks a slot needs counts, every rank decoding or idle, and some rank with a row (R26)."""
    dispatch = Dispatch((2, 4), peers=PAIR)
    prefill, idle = RankCounts([4, 77]), RankCounts([0, 0], all_decode_or_idle=True)
    decisions = [
        dispatch.decide(rows, variant="v", counts=counts) for rows, counts in ((2, None), (2, prefill), (0, idle))
    ]
    expected = [Reason.OTHER_RANKS_UNKNOWN, Reason.OTHER_RANKS_BUSY, Reason.ALL_IDLE]
    assert expected == [decision.reason for decision in decisions]


def test_the_table_of_several_ranks_has_no_slot():
    """The hot path's table knows live rows alone: with several ranks it must never send a step to a slot (R26)."""
    assert {Reason.OTHER_RANKS_UNKNOWN} == {decision.reason for decision in Dispatch((2,), peers=PAIR).table("v")}


def test_an_idle_rank_joins_the_others():
    """A rank without rows, be its step called idle or decode, takes the others' slot; alone, an idle step is eager."""
    counts = RankCounts([0, 6], all_decode_or_idle=True)
    joined = [
        Dispatch((4,), peers=PAIR).decide(0, variant="v", mode=mode, counts=counts) for mode in (Mode.IDLE, Mode.DECODE)
    ]
    alone = Dispatch((4,)).decide(0, variant="v", mode=Mode.IDLE)
    assert ([4, 4], Reason.NOT_DECODE) == ([decision.padded_to for decision in joined], alone.reason)
    with_rows = Dispatch((4,), peers=PAIR).decide(1, variant="v", mode=Mode.IDLE, counts=counts)
    assert with_rows.eager


def test_a_decision_reads_as_a_sentence():
    """A decision prints rows, slot, waste and reason."""
    decision = Dispatch((16,)).decide(13, variant="default")
    assert "13 rows → slot default/16, 3 pad rows: a slot of the next larger size" == str(decision)
