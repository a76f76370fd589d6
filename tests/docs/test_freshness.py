"""README and docs say what there is: pictures, links, pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tsgraph.spec.draw import draw_spec
from tsgraph.spec.load import load_spec

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_readme_shows_the_lifecycle_as_it_is():
    """The README's picture is what `draw_spec` makes of the shipped spec."""
    (drawn,) = re.findall(r"^```mermaid\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)

    assert draw_spec(load_spec("decode")).strip() == drawn.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page):
    """Every relative link of a page leads to a file of the project."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    assert [] == [target for target in targets if not (page.parent / target).exists()]


def test_contributing_lists_the_scripts_that_there_are():
    """Each script has its line in the table, and each line its script."""
    listed = re.findall(r"^\| `scripts/(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)

    assert sorted(script.name for script in (ROOT / "scripts").iterdir()) == sorted(listed)
