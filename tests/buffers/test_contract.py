"""Declarations and their resolution: every number known, every pad honoured, or an error that names the buffer."""

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.buffers.contract import Field, Fixed, Rows, State, as_buffers, check_honoured, resolve_fields
from tsgraph.errors import BadBatch, ContractViolation
from tsgraph.keys import Geometry
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import Buffer, Pad


def buffer(name, **rest):
    """A buffer of one int32 number per request with pad 0, unless told otherwise."""
    return Buffer(**{"name": name, "dtype": "int32", "per": "request", "pad": Pad(value=0), **rest})


def resolve(*buffers, **geometry):
    """The fields of some buffers in a geometry of four rows."""
    return resolve_fields({b.name: b for b in buffers}, Geometry(rows=4, **geometry))


# -- the short door ---------------------------------------------------------------------------------------------------


def test_rows_without_a_pad_are_refused_with_the_reason():
    """A forgotten pad is an error that says why pads exist, not a default."""
    with pytest.raises(ContractViolation, match=r"Rows\.pad: expected a number, got none") as error:
        Rows(torch.int64)
    assert "act on what an earlier batch left" in error.value.hint


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dtype": "int64"}, "Rows.dtype: expected a torch.dtype, got 'int64'"),
        ({"pad": "0"}, "Rows.pad: expected a number, got '0'"),
        ({"per": "row"}, "Rows.per: expected one of request, token, got 'row'"),
        ({"source": "host"}, "Rows.source: expected one of call, engine, got 'host'"),
        ({"read_by": ("gpu",)}, "Rows.read_by: expected one of graph, host, device, got 'gpu'"),
    ],
)
def test_rows_refuse_words_without_a_meaning(wrong, message):
    """Each misused word is named with what it may be."""
    with pytest.raises(ContractViolation, match=message.replace(".", r"\.")):
        Rows(**{"dtype": torch.int64, "pad": 0, **wrong})


def test_the_short_door_declares_the_same_buffers_as_a_spec():
    """Every word of `Rows` reaches the field, by the path that a spec's buffers take."""
    rows = Rows(torch.bfloat16, -1, (3, 5), column_pad=-2, per="token", source="engine", warm=4, read_by=["device"])
    (resolved,) = resolve_fields(as_buffers({"table": rows}), Geometry(rows=4, tokens_per_request=2))
    expected = Field(
        name="table",
        dtype=torch.bfloat16,
        per="token",
        pad=-1.0,
        rows_per_request=2,
        shape=(3, 5),
        column_pad=-2.0,
        warm=4.0,
        read_by=("device",),
        source="engine",
    )
    assert expected == resolved


def test_the_short_door_takes_rows_only():
    """A bare tensor among the inputs is refused by name."""
    with pytest.raises(ContractViolation, match=r"inputs\.ids: expected Rows, got Tensor"):
        as_buffers({"ids": torch.zeros(1)})


def test_fixed_and_state_take_tensors_only():
    """What has no address cannot be fixed, nor be state."""
    with pytest.raises(ContractViolation, match=r"Fixed\.tensor: expected a torch\.Tensor, got float"):
        Fixed(1.0)
    with pytest.raises(ContractViolation, match=r"State\.tensor: expected a torch\.Tensor, got list"):
        State([1], restore=True)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({}, "expected either sink rows or restore=True, got neither"),
        ({"sink": 0, "restore": True}, "expected either sink rows or restore=True, got both"),
        ({"sink": 3}, "expected row indices of a tensor of 3 rows, got 3"),
        ({"sink": (0, -1)}, "expected row indices of a tensor of 3 rows, got -1"),
    ],
)
def test_a_state_needs_exactly_one_protection(declared, message):
    """Sinks or restore, not both, and sinks are rows that exist: -1 would be some row or none, as readers please."""
    with pytest.raises(ContractViolation, match=message):
        State(torch.zeros(3, 2), **declared)


def test_sinks_are_kept_as_a_sorted_tuple():
    """One sink, several or none at all are the same word afterwards."""
    tensor = torch.zeros(3, 2)
    assert ((1,), (0, 2), ()) == tuple(State(tensor, sink=s).sink for s in (1, [2, 0, 2], []))


def test_a_state_without_rows_can_only_be_restored():
    """A scalar has no row that could be a sink."""
    with pytest.raises(ContractViolation, match="a tensor of 0 rows, got 0"):
        State(torch.tensor(1.0), sink=0)
    assert State(torch.tensor(1.0), restore=True).sink is None


# -- resolution -------------------------------------------------------------------------------------------------------


def test_names_become_numbers():
    """Extents and sinks come from the geometry; tokens per request size tokens and the named warm-up value."""
    table = buffer("table", shape=("pages", 2), pad=Pad(sink="dummy"), column_pad=-1, warm="tokens_per_request")
    ids = buffer("ids", dtype="int64", per="token")
    geometry = {"extents": {"pages": 7}, "sinks": {"dummy": 9}, "tokens_per_request": 3}
    one, other = resolve(table, ids, **geometry)
    assert ((7, 2), 9, -1, 3, 1) == (one.shape, one.pad, one.column_pad, one.warm, one.rows_per_request)
    assert ((), 0, None, None, 3) == (other.shape, other.pad, other.column_pad, other.warm, other.rows_per_request)


@pytest.mark.parametrize(("word", "context", "value"), [("context", 4096, 4096), ("context", 0, None), (17, 4096, 17)])
def test_a_probes_value_may_be_the_context(word, context, value):
    """The geometry's, if it is known; else rows are as in a warm-up."""
    (lens,) = resolve(buffer("lens", warm=1, probe=word), context=context)
    assert value == lens.probe


def test_a_grouped_buffer_is_one_field_per_group():
    """Each group has its own width, and a label of its own."""
    fields = resolve(buffer("tables", shape=("pages",), grouped=True), extents={"pages": {"full": 8, "window": 2}})
    assert [("tables[full]", (8,)), ("tables[window]", (2,))] == [(f.label, f.shape) for f in fields]


def test_a_grouped_buffer_without_columns_has_the_groups_of_its_siblings():
    """Offsets have no extent of their own; they belong to the tables that share their need, not to other ones."""
    buffers = [
        buffer("offsets", grouped=True, needs="paged_groups"),
        buffer("tables", shape=("pages",), grouped=True, needs="paged_groups"),
        buffer("flat", shape=("flat_pages",), grouped=True, needs="flat_groups"),
    ]
    fields = resolve(*buffers, extents={"pages": {"a": 1, "b": 2}, "flat_pages": {"c": 3}})
    assert ["offsets[a]", "offsets[b]", "tables[a]", "tables[b]", "flat[c]"] == [f.label for f in fields]


def test_the_shipped_decode_spec_resolves():
    """The decode law's buffers have fields, given the extents and sinks it names."""
    law = load_spec("decode").restricted_to(frozenset({"paged_groups", "drafter", "recurrent"}))
    geometry = Geometry(
        rows=4,
        tokens_per_request=2,
        extents={"pages": {"full": 8, "window": 2}},
        sinks={"dummy_cache_slot": 0, "sentinel": 5},
    )
    fields = {f.label: f for f in resolve_fields(law.buffers, geometry)}
    assert {"tables[full]", "tables[window]"} == {k.removeprefix("paged_") for k in fields if "tables" in k}
    assert (5, 2, 2) == (
        fields["state_write_pool"].pad,
        fields["seq_lens"].warm,
        fields["input_ids"].rows_per_request,
    )


@pytest.mark.parametrize(
    ("declared", "geometry", "message"),
    [
        ({"shape": ("pages",)}, {}, r"Geometry.extents: expected the size of 'pages' in buffer 'b', got none"),
        (
            {"shape": ("pages",)},
            {"extents": {"page": 3}},
            "expected the size of 'pages' in buffer 'b', got page = 3",
        ),
        (
            {"shape": ("pages",)},
            {"extents": {"pages": {"a": 3}}},
            "expected the size of 'pages' in buffer 'b', got pages = {'a': 3}",
        ),
        (
            {"shape": ("pages", "heads"), "grouped": True},
            {"extents": {"pages": {"a": 3, "z": 4}, "heads": {"a": 1}}},
            "expected the size of 'heads' in buffer 'b', group 'z'",
        ),
        (
            {"shape": (3,), "grouped": True},
            {"extents": {"pages": 3}},
            "expected an extent that maps groups to sizes, for grouped buffer 'b', got pages = 3",
        ),
        (
            {"pad": Pad(sink="dummy")},
            {"sinks": {"sentinel": 3}},
            "Geometry.sinks: expected the index of sink 'dummy', the pad of buffer 'b', got sentinel = 3",
        ),
    ],
)
def test_what_a_geometry_lacks_is_named(declared, geometry, message):
    """A missing number is an error with the buffer that needs it and with what there is."""
    with pytest.raises(ContractViolation) as error:
        resolve(buffer("b", **declared), **geometry)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"dtype": "uint8", "pad": Pad(value=-1)}, "buffer 'b': torch.uint8 cannot hold its pad -1"),
        ({"dtype": "int8", "pad": Pad(value=128)}, "torch.int8 cannot hold its pad 128"),
        ({"pad": Pad(value=0.5)}, "torch.int32 cannot hold its pad 0.5"),
        ({"pad": Pad(value=float("nan"))}, "torch.int32 cannot hold its pad nan"),
        ({"dtype": "bool", "pad": Pad(value=2)}, "torch.bool cannot hold its pad 2"),
        ({"dtype": "float16", "pad": Pad(value=1e6)}, "torch.float16 cannot hold its pad 1000000.0"),
        ({"dtype": "float8_e4m3fn", "pad": Pad(value=float("inf"))}, "torch.float8_e4m3fn cannot hold its pad inf"),
        ({"shape": (2,), "column_pad": 2**40}, "torch.int32 cannot hold its column pad 1099511627776"),
        ({"warm": -(2**40)}, "torch.int32 cannot hold its warm-up value -1099511627776"),
        ({"probe": 2**40}, "torch.int32 cannot hold its value for probes 1099511627776"),
        ({"pad": Pad()}, "buffer 'b': its pad must be a number, not None"),
        ({"dtype": "int"}, "cannot hold"),
        ({"dtype": "floaty"}, "buffer 'b': torch has no dtype 'floaty'"),
        ({"dtype": "nn"}, "buffer 'b': torch has no dtype 'nn'"),
        ({"shape": (3, -1)}, "buffer 'b': a dimension has 0 or more elements, not -1"),
        ({"column_pad": 0}, "buffer 'b' has a column pad but no columns"),
    ],
)
def test_numbers_that_no_tensor_can_have_are_refused(declared, message):
    """A number that would become another in its dtype, or is no size, is refused by buffer and by what it is."""
    if declared == {"dtype": "int"}:  # torch.int is a dtype by another name: a number too large for it is refused too
        declared = {"dtype": "int", "pad": Pad(value=2**31)}
    with pytest.raises(BadBatch) as error:
        resolve(buffer("b", **declared))
    assert message in str(error.value)


@given(
    st.sampled_from(
        [
            "bool",
            "uint8",
            "int8",
            "int16",
            "int32",
            "int64",
            "bfloat16",
            "float16",
            "float32",
            "float64",
            "float8_e4m3fn",
        ]
    ),
    st.one_of(st.booleans(), st.integers(-(2**64), 2**64), st.floats()),
)
def test_a_pad_is_refused_or_held(dtype, pad):
    """A pad that resolves fills a tensor with that number: exactly, or rounded where floats must be."""
    try:
        (resolved,) = resolve(buffer("b", dtype=dtype, pad=Pad(value=pad)))
    except BadBatch:
        return
    held = torch.full((1,), resolved.pad, dtype=resolved.dtype)
    if resolved.dtype.is_floating_point:
        expected = torch.tensor([float(pad)], dtype=torch.float64).to(resolved.dtype)
        assert torch.equal(expected.float().nan_to_num(), held.float().nan_to_num())
        assert held.isnan().item() == (pad != pad)  # noqa: PLR0124 - only NaN differs from itself
    else:
        assert pad == held.item()


def test_a_pad_is_a_number_of_its_dtype():
    """Indices keep every bit; floats are floats and flags are flags, however they were written."""
    pads = [("int64", 2**53 + 1), ("int32", 3.0), ("float16", 1), ("bool", 1)]
    fields = [resolve(buffer("b", dtype=dtype, pad=Pad(value=pad)))[0] for dtype, pad in pads]
    assert [2**53 + 1, 3, 1.0, True] == [field.pad for field in fields]
    assert [int, int, float, bool] == [type(field.pad) for field in fields]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (None, "like itself, got nothing"),
        ({"mirrors": "m"}, "like itself, got a mirror"),
        ({"dtype": "int64"}, "to be torch.int32 of shape () per request like itself, got torch.int64 of shape ()"),
        ({"shape": (2,)}, "got torch.int32 of shape (2,) per request"),
        ({"per": "token"}, "got torch.int32 of shape () per token"),
        ({"grouped": True, "shape": ("pages",)}, "got a: torch.int32 of shape (1,) per request"),
    ],
)
def test_a_mirror_is_like_what_it_mirrors(other, message):
    """A mirror takes another's rows as they are, so any difference between the two is refused."""
    buffers = [buffer("m", mirrors="other")] + ([buffer("other", **other)] if other is not None else [])
    with pytest.raises(ContractViolation) as error:
        resolve(*buffers, extents={"pages": {"a": 1}})
    assert "Buffer.m: expected 'other', which it mirrors, " in str(error.value)
    assert message in str(error.value)


def test_a_mirror_has_its_own_pad():
    """Only the live rows are shared: the pad and the warm-up value stay the mirror's."""
    mirror, _ = resolve(buffer("m", mirrors="r", pad=Pad(value=7)), buffer("r", warm=3))
    assert ("r", 7, None) == (mirror.mirrors, mirror.pad, mirror.warm)


# -- honoured pads ----------------------------------------------------------------------------------------------------


def test_a_collaborator_must_honour_the_declared_pad(field):
    """A table padded with -1 and a reader that skips 0 is fault B10: refused, naming both."""
    with pytest.raises(ContractViolation) as error:
        check_honoured([field("table", pad=-1)], "attention", {"table": {0}})
    assert "attention.honours: expected pad -1, which buffer 'table' declares, got 0 for it" in str(error.value)


def test_a_collaborator_must_honour_the_column_pad(field):
    """What columns of live rows hold is read like pads are."""
    table = field("table", pad=0, shape=(4,), column_pad=-1)
    check_honoured([table], "attention", {"table": [0, -1]})
    with pytest.raises(ContractViolation, match="expected column pad -1, which buffer 'table' declares, got 0 for it"):
        check_honoured([table], "attention", {"table": [0]})


def test_each_group_is_held_against_what_is_honoured(field):
    """A grouped buffer is honoured by its name, and blamed by its group."""
    groups = [field("tables", pad=-1, group=group) for group in ("a", "b")]
    check_honoured(groups, "attention", {"tables": (-1,)})
    with pytest.raises(ContractViolation, match=r"tables\[a\]"):
        check_honoured(groups, "attention", {"tables": ()})


def test_nan_is_honoured_as_a_number_and_other_buffers_are_ignored(field):
    """NaN as a pad honours itself; what a reader honours elsewhere, or nobody reads, is no concern."""
    fields = [field("scale", dtype=torch.float32, pad=float("nan")), field("ids", pad=1)]
    check_honoured(fields, "sampler", {"scale": [float("nan")], "absent": [0]})


def test_a_field_is_a_value(field):
    """Fields compare by what they say, and cannot be changed."""
    assert field("a") == field("a")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        field("a").pad = 1
