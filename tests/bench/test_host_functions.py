"""The benchmark of host functions: what it measures and prints. Its figures mean something on a GPU alone."""

from __future__ import annotations

import pytest
import torch

from tsgraph.bench import host_functions
from tsgraph.bench.__main__ import main
from tsgraph.bench.host_functions import Measured, hidden
from tsgraph.testing import emulate


@pytest.mark.parametrize(("both", "share"), [(30, 0.0), (20, 1.0), (25, 0.5)])
def test_hidden_is_what_ran_side_by_side(both: float, share: float):
    """Of the shorter: none where the times add up, all where the longer is all that it takes."""
    measured = [Measured("kernels", 0, 20), Measured("function", 0, 10), Measured("both", 0, both)]
    assert share == hidden(measured)


def test_prints_a_row_for_each_graph(capsys, monkeypatch):
    """Machine, versions, launch and whole time of each, and what is hidden."""
    with emulate():
        monkeypatch.setattr(torch.cuda, "memory_snapshot", list)
        words = ["--turns", "2", "--width", "2", "--layers", "1", "--microseconds", "50"]
        assert 0 == main(["host-functions", *words])
        monkeypatch.undo()
    says, _, medians, head, *rows, last = capsys.readouterr().out.splitlines()
    assert (host_functions.SAYS, "medians of 2 turns") == (says, medians)
    assert ["graph", "launch", "µs", "whole", "µs"] == head.split()
    assert ["nothing", "kernels", "function", "both"] == [row.split()[0] for row in rows]
    assert float(rows[2].split()[-1]) >= 50
    assert "is hidden" in last
