"""What engine authors test with. Imports without hypothesis."""

from __future__ import annotations

from tsgraph.testing.emulate import emulate

__all__ = ["emulate"]
