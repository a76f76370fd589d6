"""The replay benchmark: what it prints, and that a replay on the emulated device is no slower than it may be."""

from __future__ import annotations

from itertools import count

import pytest

from tsgraph.bench.__main__ import main
from tsgraph.bench.machine import describe_machine, processor
from tsgraph.bench.replay import measure_slots
from tsgraph.reference import EngineConfig

ALLOWED = 1.5
ATTEMPTS = 5


@pytest.mark.no_cover  # it judges time
@pytest.mark.parametrize("rows", [1, 8])
def test_a_replay_costs_at_most_half_more_than_eager(rows: int):
    """The median of interleaved runs is within the bound at every slot size; a loaded machine may try again."""
    for attempt in count(1):
        ratios = {each.size: each.ratio for each in measure_slots(EngineConfig(rows=rows), turns=9)}
        if max(ratios.values()) <= ALLOWED:
            break
        assert attempt < ATTEMPTS, ratios


def test_measures_every_slot_of_the_engine():
    """Smallest first, each with as many nodes as its recording."""
    measured = list(measure_slots(EngineConfig(rows=2), turns=1))

    assert [1, 2] == [each.size for each in measured]
    assert all(each.nodes > 100 for each in measured)


def test_prints_machine_versions_and_a_row_for_each_slot(capsys):
    """The header says what was measured on what; each row has the size, the times and the ratio."""
    assert 0 == main(["replay", "--turns", "2", "--rows", "2"])

    says, machine, medians, head, *rows = capsys.readouterr().out.splitlines()
    assert "reference decoder" in says
    assert describe_machine() == machine
    assert "medians of 2 turns" == medians
    assert ["rows", "nodes", "eager", "ms", "replay", "ms", "replay", "/", "eager"] == head.split()
    assert ["1", "2"] == [row.split()[0] for row in rows]
    assert all(float(row.split()[-1]) > 0 for row in rows)


def test_names_the_processor_where_the_system_tells(tmp_path):
    """On Linux from its listing; elsewhere from Python."""
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor\t: 0\nmodel name\t: Some CPU 3000\nmodel name\t: Another\n")

    assert "Some CPU 3000" == processor(listing)
    assert processor(tmp_path / "none")


@pytest.mark.parametrize("argv", [[], ["replay", "--turns", "0"], ["replay", "--rows", "many"]], ids=str)
def test_wrong_usage_is_told(argv, capsys):
    """Without a name, or with a count that is none, it says how it is used, and exits as the command line does."""
    with pytest.raises(SystemExit) as caught:
        main(argv)

    assert 2 == caught.value.code
    assert "usage: python -m tsgraph.bench" in capsys.readouterr().err
