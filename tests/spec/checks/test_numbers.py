from __future__ import annotations

import pytest

PLANTED = [
    (("version", 0), ["version: 0 is no version; the first is 1"]),
    (
        ("warmup.forwards", -1),
        [
            "warmup.forwards: -1 is no number of forwards",
            "transitions[make].repeat: -1 is no number of times",
            "rules[B].n: -1 is no number of times",
        ],
    ),
    (("sizes.default", []), ["sizes.default: has no size, so that nothing would be captured (R1)"]),
    (("sizes.default", [0, 1]), ["sizes.default: 0 is no size; sizes are above 0 (R1)"]),
    (("sizes.default", [-1]), ["sizes.default: -1 is no size; sizes are above 0 (R1)"]),
    (("sizes.default", [1, 1]), ["sizes.default: 1 comes after 1; sizes increase strictly (R1)"]),
    (("sizes.default", ["1..4", 2]), ["sizes.default: 2 comes after 4; sizes increase strictly (R1)"]),
    (("sizes.default_without_padding", [9]), ["sizes.default_without_padding: 9 is above the cap 8 (R1)"]),
]


@pytest.mark.parametrize(("changes", "expected"), PLANTED)
def test_each_wrong_number_is_told(planted, changes, expected):
    """R1 and counts: exactly the problems of one wrong number."""
    assert set(expected) == planted(*changes)
