"""`tsgraph receipt show` and `diff`: receipts in files, and exit codes that a script can use."""

import sys

import pytest

from tests.receipts.parts import receipt
from tsgraph.cli import main


@pytest.fixture
def file(tmp_path):
    """Writes a receipt, with some changes, and gives its path."""

    def write(name, **changes):
        path = tmp_path / name
        path.write_text(receipt(**changes).to_json(), encoding="utf-8")
        return str(path)

    return write


def test_show_prints_the_tables(file, capsys):
    """As `receipt.table()` has them, in the width asked for."""
    assert 0 == main(["receipt", "show", file("a.json"), "--width", "100"])
    assert receipt().table(100) == capsys.readouterr().out


def test_diff_of_equal_receipts_is_silent(file, capsys):
    """Exit code 0."""
    assert 0 == main(["receipt", "diff", file("a.json"), file("b.json", seconds=3.0)])
    assert "" == capsys.readouterr().out


def test_diff_tells_each_difference_and_fails(file, capsys):
    """Exit code 1, a line for each."""
    assert 1 == main(["receipt", "diff", file("a.json"), file("b.json", nodes={"kernel": 4, "host": 1}, unread=())])
    assert [
        "not touched: buffer adapter: declared → —",
        "nodes: kernel: ×3 → ×4",
    ] == capsys.readouterr().out.splitlines()


def test_addresses_are_compared_when_asked_for(file, capsys):
    """Within one process what moved matters."""
    import attrs

    moved = tuple(attrs.evolve(each, address=each.address + 1) for each in receipt().externals)
    files = file("a.json"), file("b.json", externals=moved)
    assert (0, 1) == (main(["receipt", "diff", *files]), main(["receipt", "diff", *files, "--addresses"]))
    assert "moved: buffer ids: 0x1000 → 0x1001" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "cannot be read: No such file"), (b"\xff", "cannot be read"), (b"{}", "no key `receipt`")],
)
def test_what_is_no_receipt_is_wrong_input(tmp_path, capsys, content, why):
    """Exit code 2, with the file, what is wrong and what to do."""
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    assert 2 == main(["receipt", "show", str(path)])
    told = capsys.readouterr().err
    assert f"{path}" in told
    assert why in told
    assert "fix: " in told


@pytest.mark.parametrize("arguments", [["receipt"], ["receipt", "show"], ["receipt", "show", "a.json", "--width", "9"]])
def test_wrong_usage_is_told(arguments, capsys):
    """Exit code 2, by argparse."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert 2 == caught.value.code


def test_it_needs_no_torch():
    """Receipts are read where no torch is."""
    import subprocess

    code = "import sys, tsgraph.cli.receipt; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "False" == done.stdout.strip()
