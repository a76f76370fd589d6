"""A receipt as a value: exact in JSON, strict when it is read, and told to people."""

import json

import pytest

from tests.receipts.parts import external, receipt
from tsgraph.errors import CallerError
from tsgraph.receipts.receipt import CaptureReceipt


def test_json_is_exact_both_ways():
    """Every part comes back equal, numbers that are none of JSON's included; the kept memory is in no file."""
    whole = receipt()
    again = CaptureReceipt.from_json(whole.to_json())
    assert (whole, ()) == (again, again.kept)
    assert whole.to_json() == again.to_json()
    assert "kept" not in json.loads(whole.to_json())


def test_an_empty_receipt_is_one_too():
    """Of a device that tells nothing."""
    empty = CaptureReceipt(slot="default/1", spec="decode", backend="cuda", device="cuda:0")
    assert empty == CaptureReceipt.from_json(empty.to_json())
    assert "nodes not told" in empty.table()


def test_what_is_kept_is_no_part_of_equality():
    """Receipts of two processes may be equal."""
    assert receipt() == receipt(kept=())


WRONG = {
    "no JSON": ("{", "it is not JSON: Expecting"),
    "something else": ('{"slots": []}', "it has no key `receipt`"),
    "a list": ("[]", "it has no key `receipt`"),
    "another version": ('{"receipt": 99}', "it is of version 99, and this tsgraph reads version 1"),
    "a part missing": ('{"receipt": 1, "spec": "decode", "backend": "cuda", "device": "cuda:0"}', "slot"),
    "an unknown key": ('{"receipt": 1, "slut": "default/4"}', "slut"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_receipt_is_refused(kind):
    """With what is wrong, and how to write one."""
    text, why = WRONG[kind]
    with pytest.raises(CallerError) as caught:
        CaptureReceipt.from_json(text)
    assert why in str(caught.value)
    assert "receipt.to_json()" in caught.value.hint


def test_no_value_is_bent_to_fit():
    """A number is not read as text, nor a text as a number or a truth: the place is told."""
    data = json.loads(receipt().to_json())
    data["externals"][0]["declared"] = "yes"
    data["pool_bytes"] = "2048"
    with pytest.raises(CallerError) as caught:
        CaptureReceipt.from_json(json.dumps(data))
    assert "externals[0].declared" in str(caught.value)
    assert "pool_bytes" in str(caught.value)


def test_a_summary_counts():
    """The numbers that a snapshot has."""
    assert {
        "read": 3,
        "written": 1,
        "undeclared": 1,
        "baked": 1,
        "opaque": 1,
        "escaped": 1,
        "nodes": 4,
    } == receipt().summary()
    assert receipt(nodes=None).summary()["nodes"] is None


def test_a_table_tells_every_part():
    """What nobody declared comes first; lines are without folders."""
    table = receipt().table(140)
    for told in (
        "slot default/4 of decode (cuda on cuda:0): 4 nodes (3 kernel, 1 host), 2 KiB of pool, 250.0 ms",
        "declared and not touched: adapter",
        "UNDECLARED memory",
        "state kv",
        "read written",
        "buffer ids",
        "2.0 (×2), nan",
        "step.py:9",
        "Masks.build",
        "scale_rows",
        "attribute table",
        "1×2×3",
        "not named",
    ):
        assert told in table
    assert table.index("UNDECLARED") < table.index("memory from outside")
    assert "/engine" not in table
    assert max(map(len, table.splitlines())) <= 140


def test_unnamed_memory_is_called_by_its_first_use():
    """A label has no address: the same step in another process has the same."""
    unknown = external("", kind="unknown", address=1)
    assert "unknown int64 (4), first in aten.add.Tensor at /engine/step.py:7" == unknown.label
    assert ("buffer ids", "buffer ids") == (external().label, external().path)
