"""Pads with a real paged step: whatever came before and whatever lies in pads, live rows and live state notice nothing.

The oracle (`tests.faults.oracle`) serves each turn a second time, at the same padded shape with neutral pads and at
exactly the live rows, without any slot or staging.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest
from hypothesis import given, settings

from tests.faults.histories import SHAPES, History, Turn, histories
from tests.faults.oracle import serve_history
from tests.faults.properties import check_history, check_staging, forget_engines
from tests.faults.rig import Rig
from tests.faults.shape import CONTEXT, CONVENTIONS, VOCABULARY, Shape
from tsgraph.errors import ContractViolation
from tsgraph.spec.model import Buffer

SPECS = {"decode": SHAPES[0], "speculative": SHAPES[1]}
HOSTILE: dict[str, tuple[int, ...]] = {
    "input_ids": (VOCABULARY,),
    "shifted_ids": (VOCABULARY,),
    "positions": (CONTEXT,),
    "cache_locations": (2,),
    "seq_lens": (0, 7),
    "draft_seq_lens": (0, 7),
    "request_pool": (1,),
    "state_write_pool": (0, 1),
    "recurrent_slots": (0,),
    "recurrent_sources": (0,),
    "recurrent_branches": (0,),
    "recurrent_tracks": (0,),
    "paged_tables": (1,),
    "paged_offsets": (3,),
    "flat_tables": (1,),
}
"""For each buffer, pads that name something live or nothing at all: out of range, of some length, a request's row."""


@pytest.fixture(scope="module", autouse=True)
def engines():
    """Engines that examples share are forgotten afterwards."""
    yield
    forget_engines()


@settings(max_examples=8)
@given(history=histories())
def test_no_history_and_no_garbage_reaches_live_rows_of_a_replay(history):
    """Replays give eager's bits at the padded shape, its numbers at the exact one; only live rows write state."""
    check_history(history)


@settings(max_examples=20)
@given(history=histories())
def test_no_history_and_no_garbage_reaches_live_rows_of_a_padded_step(history):
    """The same of eager steps through the static buffers."""
    check_staging(history)


# -- the kill table of pads --------------------------------------------------------------------------------------------


def _buffers(name: str) -> Mapping[str, Buffer]:
    """The buffers of a spec that its engine here has."""
    shape = SPECS[name]
    drafts = {"drafter"} if shape.drafts else set()
    return shape.neutral.restricted_to(frozenset({*CONVENTIONS, "recurrent", *drafts})).buffers


PADS = [
    (spec, name, pad)
    for spec in SPECS
    for name in _buffers(spec)
    for pad in HOSTILE[name] + ((0,) if (spec, name) == ("speculative", "request_pool") else ())
]


TURNS = (Turn((1, 2, 3), (8, 5, 2)), Turn((3,), (4,)), Turn((2,), (6,)), Turn((2, 1), (6, 2)), Turn((3,), (8,)))
"""Each page is some request's at some turn, and nobody's, so NaN, at another."""


def _found(shape: Shape) -> Exception | None:
    """What a telling history finds in an engine of `shape`."""
    rig = Rig.build(shape, capture=False)
    try:
        serve_history(rig, History(shape=shape, turns=TURNS, garbage=3))
    except Exception as error:  # noqa: BLE001 - an index out of range is a find too
        return error
    return None


@pytest.mark.parametrize(("spec", "name", "pad"), PADS)
def test_a_hostile_pad_is_found(spec, name, pad):
    """A spec whose pad names something live, or nothing, fails what its neutral twin passes: every pad is needed."""
    assert _found(attrs.evolve(SPECS[spec], pads=((name, pad),))) is not None


@pytest.mark.parametrize("spec", SPECS)
def test_a_hostile_column_pad_is_found(spec):
    """So does one whose tables name a page in the columns that a narrow table does not have."""
    assert _found(attrs.evolve(SPECS[spec], column_pads=(("flat_tables", 1),))) is not None


@pytest.mark.parametrize("spec", SPECS)
def test_neutral_pads_pass(spec):
    """The same history finds nothing in the specs as they are shipped."""
    assert _found(SPECS[spec]) is None


@pytest.mark.parametrize(("spec", "name", "pad"), PADS)
def test_a_hostile_pad_is_refused_where_a_collaborator_honours_another(spec, name, pad):
    """Attention that says which pads it honours has no engine built around it that declares another."""
    shape = SPECS[spec]
    honours = {each.name: _values(each, shape) for each in _buffers(spec).values()}
    Rig.build(shape, capture=False, honours=honours)
    with pytest.raises(ContractViolation, match=name):
        Rig.build(attrs.evolve(shape, pads=((name, pad),)), capture=False, honours=honours)


def _values(buffer: Buffer, shape: Shape) -> tuple[float, ...]:
    pad = buffer.pad
    value = shape.geometry.sinks[pad.sink] if pad.sink is not None else pad.value
    return tuple(each for each in (value, buffer.column_pad) if each is not None)


def test_every_buffer_has_hostile_pads():
    """No buffer of either spec is left out of the table."""
    assert set(HOSTILE) == {name for spec in SPECS for name in _buffers(spec)}
