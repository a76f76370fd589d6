"""What engine authors test with. `emulate` imports without hypothesis; the rest needs the `testing` extra."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tsgraph.testing.emulate import emulate

if TYPE_CHECKING:
    from tsgraph.testing.stateful.find import find as find
    from tsgraph.testing.stateful.find import fuzz as fuzz
    from tsgraph.testing.stateful.find import fuzz_spec as fuzz_spec
    from tsgraph.testing.stateful.lives import machine_for as machine_for
    from tsgraph.testing.stateful.serving import runtime_machine as runtime_machine
    from tsgraph.testing.stateful.shrink import Find as Find
    from tsgraph.testing.strategies.batches import Values as Values

_PUBLIC = {
    "tsgraph.testing.stateful.find": ("find", "fuzz", "fuzz_spec"),
    "tsgraph.testing.stateful.shrink": ("Find",),
    "tsgraph.testing.stateful.lives": ("machine_for",),
    "tsgraph.testing.stateful.serving": ("runtime_machine",),
    "tsgraph.testing.strategies.batches": ("Values",),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = ["emulate", *_HOME]  # noqa: PLE0604 - made from the one table above


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tsgraph.testing' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
