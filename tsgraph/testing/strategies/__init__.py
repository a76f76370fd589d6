"""Strategies for what engine authors test with: specs and their variations, geometries, batches, sequences."""

from __future__ import annotations

from tsgraph.testing.strategies.batches import (
    Recipe,
    Values,
    batches,
    geometries,
    make_sources,
    recipes,
    rows_around,
    sequences,
)
from tsgraph.testing.strategies.specs import (
    LeftOut,
    Moved,
    Variation,
    broken_variations,
    small_specs,
    specs,
    variations,
)

__all__ = [
    "LeftOut",
    "Moved",
    "Recipe",
    "Values",
    "Variation",
    "batches",
    "broken_variations",
    "geometries",
    "make_sources",
    "recipes",
    "rows_around",
    "sequences",
    "small_specs",
    "specs",
    "variations",
]
