"""Sphinx: MyST pages, an API reference from docstrings, and lifecycles drawn from the specs while building."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import tsgraph

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "tsgraph"
author = "the tsgraph authors"
project_copyright = "2026, the tsgraph authors"
version = release = tsgraph.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "fault_table", "lifecycle", "spec_tables"]
exclude_patterns = ["_build"]
default_role = "code"  # docstrings write `name` for code
html_theme = "furo"
html_title = f"tsgraph {version}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90

# The build has no network, so other projects' names cannot be resolved; ours must be.
suppress_warnings = ["ref.python"]  # `bytes` is a type, and also an attribute of pools, graphs and slots
nitpick_ignore_regex = [(r"py:.*", r"(?!tsgraph).*")]


def drop_tree(_app: Sphinx, _what: str, name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Leave the docstring of `errors` out of the reference: docs/errors.md shows its tree as text."""
    if name == "tsgraph.errors":
        lines.clear()


def setup(app: Sphinx) -> None:
    """Connect what docstrings need."""
    app.connect("autodoc-process-docstring", drop_tree)
