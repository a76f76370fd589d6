"""The words of a call: keys, geometry, batches and decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.errors import BadGeometry
from tsgraph.groups import CacheGroup
from tsgraph.keys import Batch, Decision, Geometry, Mode, Reason, SlotKey


def _batch(**fields):
    given = {"rows": 2, "tokens": 2, "mode": Mode.DECODE, "variant": "default", "buffers": {"ids": "the ids"}}
    return Batch(**(given | fields))


def test_key_equals_the_plain_tuple():
    """A slot is found by `slots["default", 16]`: the key is its tuple, hash and all."""
    assert {SlotKey("default", 16): "slot"}["default", 16] == "slot"


def test_key_reads_as_a_path():
    """Logs and messages name a slot as variant/size."""
    assert "greedy/8" == str(SlotKey("greedy", 8))


@pytest.mark.parametrize("fields", [{"rows": 0}, {"rows": -1}, {"rows": 2, "tokens_per_request": 0}])
def test_geometry_refuses_numbers_below_one(fields):
    """A step has at least one row, and a row at least one token."""
    with pytest.raises(ValueError, match="must be >= 1"):
        Geometry(**fields)


@pytest.mark.parametrize("rows", [1.0, "4", None])
def test_geometry_refuses_what_is_no_integer(rows):
    """A float or a string is a mistake of the caller, never rounded or parsed."""
    with pytest.raises(TypeError, match="int"):
        Geometry(rows=rows)


def test_geometry_knows_how_wide_the_tables_of_cache_groups_are():
    """The extent `pages` follows from the groups, unless it is given."""
    groups = (CacheGroup(name="full", rows_per_page=64),)
    numbers = {"rows": 8, "tokens_per_request": 4, "groups": groups, "context": 4096, "overlap_depth": 1}

    assert {"pages": {"full": 65}} == Geometry(**numbers).extents
    assert {"pages": 3} == Geometry(**numbers, extents={"pages": 3}).extents
    with pytest.raises(BadGeometry, match="overlap depth"):
        Geometry(**{**numbers, "overlap_depth": 2})


def test_batch_gives_buffers_by_attribute_and_by_name():
    """`batch.ids` and `batch["ids"]` are one object."""
    batch = _batch()

    assert "the ids" == batch.ids
    assert batch.ids is batch["ids"]


def test_batch_gives_fixed_tensors_too():
    """A tensor handed over once is read like a buffer; a buffer of the same name comes first."""
    batch = _batch(fixed={"scale": "the scale", "ids": "hidden"})

    assert ("the scale", "the ids") == (batch.scale, batch.ids)


def test_batch_names_its_buffers_when_asked_for_another():
    """A typo in a step is answered with the names that exist."""
    with pytest.raises(AttributeError, match="no buffer 'id'; it has ids"):
        _ = _batch().id


@given(rows=st.integers(1, 64), waste=st.integers(0, 64))
def test_waste_is_what_is_padded(rows, waste):
    """Live rows and wasted rows make up the slot's size."""
    decision = Decision(rows, rows + waste, Reason.PADDED, SlotKey("default", rows + waste))

    assert (waste, False) == (decision.waste, decision.eager)


def test_decision_says_where_and_why():
    """A decision reads as one sentence: rows, place, pads, reason."""
    decision = Decision(13, 16, Reason.PADDED, SlotKey("default", 16))

    assert "13 rows → slot default/16, 3 pad rows: a slot of the next larger size" == str(decision)


def test_eager_decision_says_why_no_slot_served():
    """Falling back is no error but a decision, with the reason and what the reason was about."""
    decision = Decision(200, 200, Reason.NO_SIZE_FITS, detail="the largest is 160")

    assert decision.eager
    assert "200 rows → eager: more rows than the largest captured size (the largest is 160)" == str(decision)


def test_reasons_are_sentences_of_their_own():
    """No two reasons read alike: what `explain` prints tells them apart."""
    assert len(Reason) == len({reason.value for reason in Reason})
