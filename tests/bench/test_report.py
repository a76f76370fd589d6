"""What benchmarks print and keep."""

from __future__ import annotations

import argparse

import pytest

from tsgraph.bench.machine import describe_machine
from tsgraph.bench.report import Report, Sheet, add_outputs, count, counts, mebibytes, micro, publish, times

SHEET = Sheet("Speeds", ("", "µs"), (("fast", "1"), ("slow", "20")), ("Both are made up.",))


def _args(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=count, default=3)
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--batches", type=counts, default=(1, 8))
    add_outputs(parser, "turns", "batches")
    return parser.parse_args(words)


def test_sheet_as_markdown():
    """A title, a table whose numbers stand on the right, and the notes."""
    lines = ["**Speeds**", "", "|  | µs |", "| --- | --: |", "| fast | 1 |", "| slow | 20 |", "", "Both are made up."]
    assert lines == SHEET.markdown().splitlines()


def test_report_names_machine_and_command():
    """The command is what one types to get the figures again."""
    report = Report.of("host", _args("--turns", "5"), {"a": 1})

    assert describe_machine() == report.machine
    assert "python3 -m tsgraph.bench host --turns 5 --batches 1,8" == report.command


def test_publishes_to_terminal_json_and_markdown(tmp_path, capsys):
    """All three say the same, and what was kept is read again."""
    kept, page = tmp_path / "kept.json", tmp_path / "tables.md"
    args = _args("--json", str(kept), "--markdown", str(page))
    report = Report.of("host", args, {"ways": [1.5]})

    assert 0 == publish(report, [SHEET], args)
    assert report == Report.load(kept)
    assert report.markdown([SHEET]) + "\n" == page.read_text()
    printed = capsys.readouterr().out
    assert all(words in printed for words in (report.machine, report.command, "Speeds", "slow", "Both are made up."))


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", ""])
def test_a_count_is_a_positive_whole_number(text: str):
    """Anything else is refused, alone and in a list."""
    for parse in (count, counts):
        with pytest.raises(argparse.ArgumentTypeError, match="not a positive whole number"):
            parse(text)


def test_numbers_have_the_digits_that_mean_something():
    """Three for times and ratios, one behind the point for memory."""
    assert ("1.23", "12.3", "123") == tuple(micro(us * 1e-6) for us in (1.234, 12.34, 123.4))
    assert ("1.23", "12.3") == (times(1.234), times(12.34))
    assert "1.5" == mebibytes(1.5 * 2**20)
