from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.proving.toy import TOY
from tsgraph.errors import SpecError
from tsgraph.spec import catalog
from tsgraph.spec.catalog import locate, shipped


def test_shipped_specs_are_the_files_of_the_checkout():
    """Every TOML file in `specs/` is shipped under its name, in alphabetical order."""
    files = Path(catalog.__file__).parents[2].joinpath("specs").glob("*.toml")
    assert sorted(file.stem for file in files) == list(shipped())
    assert {"decode", "speculative"} <= set(shipped())


def test_a_wheel_has_its_specs_inside(tmp_path, monkeypatch):
    """Where the package has `_specs`, those are the shipped ones, whatever lies beside it."""
    inside = tmp_path / "tsgraph" / "_specs"
    inside.mkdir(parents=True)
    (inside / "only.toml").write_text("", encoding="utf-8")
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "other.toml").write_text("", encoding="utf-8")
    monkeypatch.setattr(catalog.resources, "files", lambda package: tmp_path / package)
    assert ["only"] == list(shipped())


def test_other_files_are_no_specs(tmp_path, monkeypatch):
    """Only TOML files count."""
    (tmp_path / "tsgraph").mkdir()
    (tmp_path / "specs").mkdir()
    for name in ("a.toml", "README.md"):
        (tmp_path / "specs" / name).write_text("", encoding="utf-8")
    monkeypatch.setattr(catalog.resources, "files", lambda package: tmp_path / package)
    assert ["a"] == list(shipped())


def test_a_shipped_name_wins_over_a_file_and_a_path_over_a_name(tmp_path, monkeypatch):
    """A text that is a shipped name is that spec; a `Path` is always a file."""
    monkeypatch.chdir(tmp_path)
    Path("decode").write_text("", encoding="utf-8")
    assert shipped()["decode"] == locate("decode")
    assert Path("decode") == locate(Path("decode"))


def test_a_path_is_looked_for_beside(tmp_path):
    """Relative paths begin in the given directory; absolute ones do not care."""
    file = tmp_path / "mine.toml"
    file.write_text("", encoding="utf-8")
    assert file == locate("mine.toml", beside=tmp_path) == locate(str(file), beside=Path("/nowhere"))
    with pytest.raises(SpecError, match="there is no such spec"):
        locate("mine.toml", beside=tmp_path / "deeper")


def test_specs_need_no_torch(tmp_path):
    """Specs and their command line load neither torch nor `structlog` and `hypothesis`."""
    (tmp_path / "toy.toml").write_text(TOY, encoding="utf-8")
    code = """
import sys
import tsgraph.spec, tsgraph.spec.table, tsgraph.cli.spec
from tsgraph.cli import main
main(["spec", "check", sys.argv[1]])
main(["spec", "table", "decode"])
print([name for name in ("torch", "structlog", "hypothesis") if name in sys.modules])
"""
    command = [sys.executable, "-c", code, tmp_path / "toy.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.splitlines()[-1]
