"""Figures go into pages by themselves: tables between marks, charts beside them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tsgraph.bench.__main__ import main
from tsgraph.bench.page import SHEETS, benches_of, fill_page, mark
from tsgraph.bench.plots import charts
from tsgraph.bench.report import Report
from tsgraph.bench.svg import Bars, Panel, draw_panels
from tsgraph.errors import CallerError

PAGE = Path(__file__).parents[2] / "docs" / "results" / "h200-speed.md"
SVG = "{http://www.w3.org/2000/svg}"
FIGURES = {"median": 2e-6, "low": 1e-6, "high": 3e-6}
CASE = {"model": "reference", "rows": 8, "ways": dict.fromkeys(("eager", "raw graph", "tsgraph"), FIGURES)}
DECODE = {"steps": 4, "cases": [{**CASE, "tsgraph over raw": 0.99, "same tokens": 1.0}]}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """One with places for two benchmarks."""
    page = tmp_path / "speed.md"
    places = "\n\n".join(f"{mark(bench)}\n<!-- end of figures -->" for bench in ("host", "decode"))
    page.write_text(f"# Speed\n\n{places}\n\nThe end.\n")
    return page


def test_fills_the_place_of_a_benchmark_and_draws_its_charts(page):
    """Machine, command and table stand between the marks, with the charts; all else is as before, also twice."""
    for machine in ("an old one", "a GPU"):
        fill_page(page, Report("decode", machine, "python3 -m tsgraph.bench decode", DECODE))

    text = page.read_text()
    assert "an old one" not in text
    assert "a GPU. `python3 -m tsgraph.bench decode`" in text
    assert "| reference | 8 | 4,000,000 | 4,000,000 | 4,000,000 | 0.990 | 0.002 | 100% |" in text
    assert f"{mark('host')}\n<!-- end of figures -->" in text
    assert text.endswith("<!-- end of figures -->\n\nThe end.\n")
    assert "![Decode throughput, % of the raw graph's](speed-decode-throughput.svg)" in text
    ET.parse(page.with_name("speed-decode-throughput.svg"))  # noqa: S314 - written right here


def test_fills_from_kept_files(page, tmp_path):
    """The command takes a page, and what `--json` kept."""
    kept = tmp_path / "decode.json"
    Report("decode", "a GPU", "…", DECODE).save(kept)

    assert 0 == main(["page", str(page), str(kept)])
    assert "a GPU" in page.read_text()


def test_a_page_without_a_place_is_left_alone(page):
    """The error names the mark that is missing."""
    before = page.read_text()
    with pytest.raises(CallerError, match="no place for the figures of capture"):
        fill_page(page, Report("capture", "a GPU", "…", {}))

    assert before == page.read_text()


def test_the_page_of_results_has_a_place_for_each_benchmark():
    """And the charts that it shows are there: a test of links sees to that."""
    assert sorted(SHEETS) == sorted(benches_of(PAGE))


def test_a_benchmark_without_charts_has_none():
    """Nothing is drawn rather than something wrong."""
    assert [] == list(charts(Report("replay", "", "", {})))


def test_bars_are_as_long_as_their_numbers():
    """The longest takes all the width, the others their share; what is no number has no bar."""
    drawn = ET.fromstring(Bars("Speeds", ("a & b", "c"), {"x": [1, 4], "y": [2, float("nan")]}).draw())  # noqa: S314

    bars = [rect for rect in drawn.iter(f"{SVG}rect") if rect.get("height") == "12"]
    assert [105, 210, 420] == [float(bar.get("width")) for bar in bars]
    words = {text.text for text in drawn.iter(f"{SVG}text")}
    assert {"Speeds", "a & b", "c", "x", "y", "1.0", "2.0", "4.0"} <= words


def test_lines_end_at_their_numbers():
    """Points of one series from the bottom, which is 0, to the top, which is the most of any."""
    panel = Panel("rows", "µs", (1, 2, 4), {"raw": [0.0, 1.0, 2.0], "tsgraph": [2.0, 2.0, 4.0]})
    drawn = ET.fromstring(draw_panels("Growth", [panel, panel]))  # noqa: S314

    heights = [float(point.get("cy")) for point in drawn.iter(f"{SVG}circle")]
    low, high = heights[0], heights[5]
    assert [low, low - (low - high) / 4, (low + high) / 2] == pytest.approx(heights[:3])
    assert heights[:6] == heights[6:]
