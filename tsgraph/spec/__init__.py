"""Specs: the contract of one engine as a value. `load_spec` reads one, `check_spec` judges it, `draw_spec` shows it."""

from __future__ import annotations

from tsgraph.spec.catalog import shipped
from tsgraph.spec.check import check_spec
from tsgraph.spec.draw import draw_spec
from tsgraph.spec.load import load_spec, parse_spec
from tsgraph.spec.model import Spec

__all__ = ["Spec", "check_spec", "draw_spec", "load_spec", "parse_spec", "shipped"]
