"""What the tests of benchmarks share."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from tsgraph.bench.__main__ import main
from tsgraph.bench.report import Report

Bench = Callable[..., Report]


@pytest.fixture
def uncollected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures collect no garbage: that takes most of the time of small ones, and nothing here is about it."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)


@pytest.fixture
def bench(tmp_path: Path, uncollected: None) -> Bench:
    """Runs a benchmark by its command line; gives what it kept."""

    def run(*words: str) -> Report:
        file = tmp_path / "kept.json"
        assert 0 == main([*words, "--json", str(file)])
        return Report.load(file)

    return run
