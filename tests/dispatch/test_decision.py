"""Where a step goes, against a slow oracle."""

from hypothesis import given
from hypothesis import strategies as st

from tsgraph.dispatch.decision import Dispatch, widest_rows
from tsgraph.keys import Mode, Reason, SlotKey

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


def test_ranks_follow_the_widest():
    """With counts of every rank, the size is that of the widest rank, in rows (R27)."""
    widest = widest_rows([3, 10], tokens_per_request=2)
    decision = Dispatch((2, 4, 8)).decide(1, variant="default", widest=widest)
    assert (5, 8) == (widest, decision.padded_to)


def test_a_decision_reads_as_a_sentence():
    """A decision prints rows, slot, waste and reason."""
    decision = Dispatch((16,)).decide(13, variant="default")
    assert "13 rows → slot default/16, 3 pad rows: a slot of the next larger size" == str(decision)
