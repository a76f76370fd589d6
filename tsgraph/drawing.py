"""What hypothesis is told when it starts, by its entry point: how to draw the types of tsgraph.

It stands outside of `tsgraph.testing`, which imports torch: whoever imports hypothesis would wait for that.
"""

from __future__ import annotations

from typing import Any

from tsgraph.keys import Geometry
from tsgraph.spec.model import Spec


def register() -> None:
    """Register strategies for `Spec` and `Geometry` (of the decode spec). What draws them is imported when used."""
    from hypothesis.strategies import register_type_strategy

    register_type_strategy(Spec, _specs)
    register_type_strategy(Geometry, _geometries)


def _specs(_: type) -> Any:
    from tsgraph.testing.strategies import specs

    return specs()


def _geometries(_: type) -> Any:
    from tsgraph.spec.load import load_spec
    from tsgraph.testing.strategies import geometries

    return geometries(load_spec("decode"))
