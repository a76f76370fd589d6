"""`tsgraph spec mutate`: the table, its verdict, and the exit code that CI goes by."""

from __future__ import annotations

import json

import pytest

from tests.proving.toy import TOY
from tsgraph.cli import main


@pytest.fixture
def spec_file(tmp_path):
    """`spec_file(text)`: a file with that text."""

    def spec_file(text):
        file = tmp_path / "toy.toml"
        file.write_text(text, encoding="utf-8")
        return str(file)

    return spec_file


def test_a_complete_table_is_printed_by_kind_and_is_fine(spec_file, capsys):
    """One table for each kind of mutant, who killed it and how, a sum, and exit code 0."""
    assert 0 == main(["spec", "mutate", spec_file(TOY)])
    text = capsys.readouterr().out
    kinds = ["rule removed", "rule weakened", "scope changed", "steps swapped", "step dropped", "effect dropped"]
    assert sorted(kinds, key=text.index) == kinds
    rows = [line.split() for line in text.splitlines()]
    assert ["A", "removed", "property", "measures", "in", "4", "moves,", "with", "no", "collaborator"] in rows
    assert text.rstrip().endswith("s: complete")


def test_an_incomplete_table_fails(spec_file, capsys):
    """What nothing notices is told below the tables, with what to do, and the exit code is 1."""
    assert 1 == main(["spec", "mutate", spec_file(TOY.replace('free = [["measure", "oil"]]\n', ""))])
    lines = capsys.readouterr().out.splitlines()
    (problem,) = [line for line in lines if line.startswith("problem: ")]
    assert problem.startswith("problem: make: measure and oil change places: nothing would notice")
    assert lines[-1].endswith("NOT complete, 1 problem")
    assert any("NOTHING" in line for line in lines)


def test_the_table_as_json(spec_file, capsys):
    """The same as one JSON object."""
    file = spec_file(TOY)
    assert 0 == main(["spec", "mutate", "--json", file])
    told = json.loads(capsys.readouterr().out)
    assert (file, "toy", True, [], 30) == (
        told["file"],
        told["spec"],
        told["complete"],
        told["problems"],
        len(told["mutants"]),
    )


def test_a_spec_that_cannot_be_loaded_is_bad_input(spec_file, capsys):
    """Exit code 2 and its problems on standard error, as for the other actions."""
    assert 2 == main(["spec", "mutate", spec_file(TOY.replace("version = 1", "version = 1\nvision = 2"))])
    assert "vision: unknown key" in capsys.readouterr().err
