from __future__ import annotations

import gc
import weakref

from tsgraph.lifecycle.ledger import BOUND, Cause, Failure, Ledger


def test_entries_are_in_order_and_in_time():
    """Entries keep the order in which they were written; their index counts and their seconds never go back."""
    ledger = Ledger()
    for name in "abc":
        ledger.append(name, "event", "step")
    assert ["a", "b", "c"] == [entry.name for entry in ledger.entries]
    assert [0, 1, 2] == [entry.index for entry in ledger.entries]
    assert sorted(entry.at for entry in ledger.entries) == [entry.at for entry in ledger.entries]


def test_a_new_life_keeps_what_was_written():
    """History survives a reset: entries say to which life they belong, and the index goes on."""
    ledger = Ledger()
    ledger.append("old", "event", "step")
    ledger.begin_life()
    ledger.append("new", "event", "step")
    assert [("old", 1, 0), ("new", 2, 1)] == [(entry.name, entry.life, entry.index) for entry in ledger.entries]


def test_a_ledger_is_bounded():
    """A ledger keeps its newest entries and forgets older ones, so a slot that lives for ever does not grow."""
    ledger = Ledger()
    for _ in range(BOUND + 10):
        ledger.append("x", "event", "step")
    assert BOUND == len(ledger.entries)
    assert (10, BOUND + 9) == (ledger.entries[0].index, ledger.entries[-1].index)


class _Tensor:
    """Stands for what a frame holds."""


def _raise_holding() -> tuple[Cause, weakref.ref[_Tensor]]:
    tensor = _Tensor()
    reference = weakref.ref(tensor)
    try:
        raise ValueError("first line\nsecond line")
    except ValueError as error:
        return Cause.of(error), reference


def test_a_cause_holds_text_and_no_exception():
    """A cause keeps name, first line and traceback as text; the frames of the exception go, and what they held."""
    gc.disable()
    try:
        cause, reference = _raise_holding()
        assert reference() is None
    finally:
        gc.enable()
    assert ("ValueError", "first line") == (cause.kind, cause.summary)
    assert "_raise_holding" in cause.detail
    assert "second line" in cause.detail


def test_causes_and_failures_read_as_a_line():
    """Both print as one line; a cause without a message is its kind, a failure without a step came after the steps."""
    assert "KeyboardInterrupt" == str(Cause.of(KeyboardInterrupt()))
    assert "weights: layer.0 has moved" == str(Cause("weights", "layer.0 has moved"))
    assert "`capture` failed in metadata_bound, at step record" == str(Failure("capture", "metadata_bound", "record"))
    assert "`drain` failed in captured, after its steps" == str(Failure("drain", "captured", None))
