"""The specs that tsgraph ships: in the wheel inside the package, in a checkout in `specs/` beside it."""

from __future__ import annotations

import os
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from tsgraph.errors import SpecError
from tsgraph.spec.problems import listed, suggestion

SUFFIX = ".toml"


def shipped() -> dict[str, Traversable]:
    """The shipped specs by name, in alphabetical order."""
    files = (file for file in _home().iterdir() if file.name.endswith(SUFFIX))
    return {file.name.removesuffix(SUFFIX): file for file in sorted(files, key=lambda file: file.name)}


def locate(name_or_path: str | os.PathLike[str], *, beside: Path | None = None) -> Traversable:
    """The file of a shipped spec, or of a path (relative to the directory `beside`, where given).

    Raises: SpecError if there is no such file; it lists the shipped specs.
    """
    specs = shipped()
    if isinstance(name_or_path, str) and name_or_path in specs:
        return specs[name_or_path]
    file = (beside or Path()) / Path(name_or_path)
    if file.is_file():
        return file
    near = suggestion(str(name_or_path), specs)
    raise SpecError(str(name_or_path), (f"file: there is no such spec{near} (shipped: {listed(specs)})",))


def _home() -> Traversable:
    package = resources.files("tsgraph")
    inside = package / "_specs"
    return inside if inside.is_dir() else Path(str(package)).parent / "specs"
