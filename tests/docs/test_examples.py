"""The code in README and docs runs, page by page, and prints what the page says it prints."""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(
    r"^```python\n(?P<code>.*?)^```$"
    r"(?:\n+^```text\n(?P<output>.*?)^```$)?",  # a text block right below is what the code prints
    re.MULTILINE | re.DOTALL,
)


def _examples(page: Path) -> list[re.Match[str]]:
    return list(EXAMPLE.finditer(page.read_text(encoding="utf-8")))


PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if _examples(page)]


def _run(example: re.Match[str], page: Path, namespace: dict[str, Any]) -> str:
    """Runs a block as if it stood in a file, at the page's lines; returns what it printed."""
    printed = io.StringIO()
    namespace["print"] = partial(print, file=printed)
    above = example.string.count("\n", 0, example.start("code"))
    code = compile("\n" * above + example["code"], str(page), "exec")
    exec(code, namespace)  # noqa: S102 — the project's own pages
    return printed.getvalue()


@pytest.mark.no_cover
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs_and_prints_what_it_shows(page):
    """The Python blocks of a page run in order, in one namespace; a `text` block right below one is its output."""
    namespace: dict[str, Any] = {"__name__": "page"}

    for example in _examples(page):
        printed = _run(example, page, namespace)
        assert example["output"] in (None, printed)


def test_first_pages_are_among_those_that_run():
    """The pages that newcomers copy from have code that runs."""
    assert {ROOT / "README.md", ROOT / "docs" / "quickstart.md"} <= set(PAGES)


def test_output_belongs_to_the_block_right_above():
    """A `text` block with words in between is the output of nothing."""
    page = "```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\nprint(2)\n```\nwords\n```text\n3\n```\n"

    assert ["1\n", None] == [example["output"] for example in EXAMPLE.finditer(page)]
