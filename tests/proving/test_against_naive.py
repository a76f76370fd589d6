from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.proving.drawn import specs
from tests.proving.naive import Walk
from tsgraph.proving import prove

WIDEST = 150


@pytest.mark.no_cover
@given(specs())
@settings(max_examples=40)
def test_what_is_broken_and_how_soon_is_what_a_plain_walk_finds(spec):
    """On any small spec both find the same properties broken, by ways of the same length."""
    walk = Walk(spec).run(WIDEST)
    found = {violation.property: violation.moves for violation in prove(spec).violations}

    assert walk.broken == {name: moves for name, moves in found.items() if moves <= walk.depth}
