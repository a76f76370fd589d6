from __future__ import annotations

import math

import attrs
import pytest

from tsgraph.spec import check_spec, parse_spec
from tsgraph.spec.model import Pad

PLANTED = [
    (("buffers.ids.dtype", "int33"), ["buffers.ids.dtype: unknown dtype 'int33'; did you mean 'int32'?"]),
    (
        ("buffers.ids.needs", "drafters"),
        ["buffers.ids.needs: unknown collaborator or policy 'drafters'; did you mean 'drafter'?"],
    ),
    (("buffers.ids.dtype", "uint8", "buffers.ids.pad", -1), ["buffers.ids.pad: -1 does not fit into uint8"]),
    (("buffers.ids.dtype", "int8", "buffers.ids.pad", 128), ["buffers.ids.pad: 128 does not fit into int8"]),
    (("buffers.ids.pad", 0.5), ["buffers.ids.pad: 0.5 does not fit into int32"]),
    (("buffers.ids.pad", True), ["buffers.ids.pad: True does not fit into int32"]),
    (("buffers.ids.dtype", "bool"), ["buffers.ids.pad: 1 does not fit into bool"]),
    (("buffers.ids.dtype", "float16", "buffers.ids.pad", 65505), ["buffers.ids.pad: 65505 does not fit into float16"]),
    (("buffers.ids.dtype", "bfloat16", "buffers.ids.pad", 257), ["buffers.ids.pad: 257 does not fit into bfloat16"]),
    (("buffers.ids.dtype", "float32", "buffers.ids.pad", 1e39), ["buffers.ids.pad: 1e+39 does not fit into float32"]),
    (("buffers.ids.warm", 1 << 31), ["buffers.ids.warm: 2147483648 does not fit into int32"]),
    (
        ("buffers.ids.dtype", "bool", "buffers.ids.pad", False, "buffers.ids.warm", "tokens_per_request"),
        ["buffers.ids.warm: a number of tokens does not fit into bool"],
    ),
    (("buffers.ids.probe", 1 << 31), ["buffers.ids.probe: 2147483648 does not fit into int32"]),
    (
        ("buffers.ids.dtype", "bool", "buffers.ids.pad", False, "buffers.ids.probe", "context"),
        ["buffers.ids.probe: a number of tokens does not fit into bool"],
    ),
    (("buffers.ids.column_pad", -1), ["buffers.ids.column_pad: rows without a shape have no columns"]),
    (("buffers.ids.shape", [0]), ["buffers.ids.shape: 0 is no extent"]),
    (("buffers.ids.shape", ["a b"]), ["buffers.ids.shape: 'a b' is no name of an extent"]),
    (("buffers.ids.read_by", []), ["buffers.ids.read_by: nobody reads it"]),
    (
        ("buffers.ids.dtype", "float32", "buffers.ids.pad", {"sink": "s"}),
        ["buffers.ids.pad.sink: a sink is an index, and float32 cannot hold one"],
    ),
    (("buffers.ids.mirrors", "palces"), ["buffers.ids.mirrors: unknown buffer 'palces'; did you mean 'places'?"]),
    (
        ("buffers.places.mirrors", "again"),
        [
            "buffers.places.mirrors: 'again' is a mirror itself; mirror what it mirrors",
            "buffers.again.mirrors: 'places' is a mirror itself; mirror what it mirrors",
        ],
    ),
    (("buffers.again.mirrors", "again"), ["buffers.again.mirrors: 'again' is a mirror itself; mirror what it mirrors"]),
    (
        ("buffers.ids.mirrors", "places"),
        [
            "buffers.ids.mirrors: the dtype of 'places' is 'int64', not 'int32'",
            "buffers.ids.mirrors: the per of 'places' is 'request', not 'token'",
        ],
    ),
    (
        ("buffers.places.needs", "drafter"),
        ['buffers.again.mirrors: \'places\' is absent without "drafter"; add needs = "drafter"'],
    ),
]


@pytest.mark.parametrize(("changes", "expected"), PLANTED)
def test_each_flaw_of_a_buffer_is_told(planted, changes, expected):
    """One thing wrong in a sound buffer: exactly its problems, with key path and reason."""
    assert set(expected) == planted(*changes)


@pytest.mark.parametrize(
    ("dtype", "pad"),
    [
        ("uint8", 255),
        ("int8", -128),
        ("int64", -(1 << 63)),
        ("uint64", (1 << 64) - 1),
        ("bool", True),
        ("float16", 65504),
        ("float32", 0.1),
        ("float32", -1),
        ("float32", -math.inf),
        ("bfloat16", 256),
        ("float64", 1e300),
        ("float32", 1 << 100),
    ],
)
def test_pads_that_fit_are_fine(small, problems, dtype, pad):
    """The ends of a dtype belong to it; fractions may be rounded, and infinities are numbers too."""
    small["buffers"]["ids"] |= {"dtype": dtype, "pad": pad}
    assert () == problems(small)


def test_specs_made_by_hand_are_checked_too(small):
    """`check_spec` judges values, not files: a buffer without a pad cannot be written, but it can be made."""
    spec = parse_spec(small)
    ids = spec.buffers["ids"]
    for pad, expected in (
        (Pad(), "buffers.ids.pad: missing; rows beyond the live ones would keep what an earlier step left there (B1)"),
        (Pad(value=1, sink="s"), "buffers.ids.pad: a value and a sink; only one can be in a row"),
    ):
        broken = attrs.evolve(spec, buffers={**spec.buffers, "ids": attrs.evolve(ids, pad=pad)})
        assert (expected,) == check_spec(broken)
