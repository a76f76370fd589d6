"""What two recordings of one step differ in."""

from tests.receipts.parts import receipt
from tsgraph.receipts.probe import Constant, Probe
from tsgraph.receipts.receipt import Baked


def baked(value, line="/engine/s.py:1", times=1):
    """An argument with one value."""
    return Baked(operator="aten.lt.Scalar", argument="other", line=line, values=((value, times),))


def test_baked_arguments_that_differ_are_constants():
    """Operator, argument, both values and the line; what is equal is not told."""
    probe = Probe.of(
        receipt(baked=(baked("1"), baked("5", "s.py:9"))), receipt(baked=(baked("2"), baked("5", "s.py:9")))
    )
    assert (Constant("aten.lt.Scalar", "other", "1", "2", "/engine/s.py:1"),) == probe.constants
    assert ((), False) == (probe.others, probe.clean)
    assert "aten.lt.Scalar at /engine/s.py:1: other is baked: 1, and then 2" == str(probe.constants[0])


def test_a_line_that_one_recording_did_not_come_by_is_a_constant_too():
    """Another path was taken."""
    probe = Probe.of(receipt(baked=(baked("1"),)), receipt(baked=(baked("1"), baked("7", "s.py:3"))))
    assert [("—", "7")] == [(each.first, each.second) for each in probe.constants]


def test_how_often_a_value_came_counts():
    """A loop of another length."""
    probe = Probe.of(receipt(baked=(baked("1", times=2),)), receipt(baked=(baked("1", times=3),)))
    assert [("1 (×2)", "1 (×3)")] == [(each.first, each.second) for each in probe.constants]


def test_what_else_differs_is_told_beside_them():
    """Kernels and grids, say, that no operator's argument shows."""
    probe = Probe.of(receipt(nodes={"kernel": 3}), receipt(nodes={"kernel": 4}))
    assert [("nodes", "kernel")] == [(each.part, each.what) for each in probe.others]
    assert "nodes" in probe.table()


def test_equal_recordings_are_clean():
    """And the table says so."""
    probe = Probe.of(receipt(), receipt())
    assert probe.clean
    assert "slot default/4 of decode: both recordings are the same\n" == probe.table()


def test_a_table_has_both_values():
    """And the line without its folder."""
    table = Probe.of(receipt(baked=(baked("1"),)), receipt(baked=(baked("2"),))).table(100)
    (row,) = [line for line in table.splitlines() if "aten.lt" in line]
    assert ["aten.lt.Scalar", "other", "1", "2", "s.py:1"] == row.split()
