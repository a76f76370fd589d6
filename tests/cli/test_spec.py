from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.proving.toy import TOY
from tsgraph.cli import main
from tsgraph.spec import draw_spec, load_spec, shipped
from tsgraph.spec.table import spec_table


@pytest.fixture
def sound(tmp_path):
    """A file that keeps its promises: small, for what the shipped ones keep is proved elsewhere."""
    tables = TOY.split("\n\n")
    file = tmp_path / "sound.toml"
    file.write_text("\n\n".join(each for each in tables if 'id = "bench"' not in each), encoding="utf-8")
    return str(file)


@pytest.fixture
def broken(tmp_path):
    """A file with two problems."""
    file = tmp_path / "broken.toml"
    file.write_text('extends = "decode"\nnme = "x"\n[sizes]\ncap = 100\n', encoding="utf-8")
    return str(file)


def test_check_says_ok_with_counts(sound, capsys):
    """What a sound spec has, which of its properties hold, how much was explored, and exit code 0."""
    spec = load_spec(sound)
    counts = (
        f"{len(spec.lifecycle.states)} states, {len(spec.lifecycle.transitions)} transitions, {len(spec.steps)} steps, "
    )
    counts += f"{len(spec.rules)} rules, {len(spec.properties)} properties, {len(spec.buffers)} buffers"
    assert 0 == main(["spec", "check", sound])
    first, *_, last = capsys.readouterr().out.splitlines()
    assert f"toy: ok ({counts})" == first
    assert re.fullmatch(r"explored: \d+ combinations of .*, \d+ configurations, \d+\.\d s", last)


@pytest.fixture
def unsound(sound, tmp_path):
    """A file that lacks a rule which a property needs."""
    file = tmp_path / "unsound.toml"
    without = '[[rules]]\nid = "A"\nremove = true\n'
    file.write_text(f'extends = "{sound}"\nname = "unsound"\nversion = 1\n{without}', encoding="utf-8")
    return str(file)


def test_check_prints_a_shortest_counterexample(unsound, capsys):
    """What is broken, one line for each thing that happens, what is false and why, and exit code 1."""
    assert 1 == main(["spec", "check", unsound])
    first, second, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("unsound: not ok (")
    assert "measures is broken with no collaborator: what is built has measures of its own" == second
    assert "    1  the slot begins: fresh" == lines[0]
    assert "    2  `make` begins in fresh" == lines[1]
    assert "  false: just before built, the newest measured is later than the newest built" in lines
    assert "    the newest measured: never" in lines


def test_check_tells_the_proof_as_json(unsound, capsys):
    """Combinations, properties, violations with their traces, and findings, as plain data."""
    assert 1 == main(["spec", "check", unsound, "--json"])
    proof = json.loads(capsys.readouterr().out)["proof"]
    assert (False, ["measures"]) == (proof["ok"], [violation["property"] for violation in proof["violations"]])
    assert ["over", "one", "none"] == proof["properties"]
    assert proof["configurations"] == sum(one["configurations"] for one in proof["combinations"])


def test_check_prints_each_problem(broken, capsys):
    """One line a problem, with the file's name, and exit code 1."""
    assert 1 == main(["spec", "check", broken])
    lines = capsys.readouterr().out.splitlines()
    assert f"{broken}: nme: unknown key; did you mean 'name'?" == lines[0]
    assert f"{broken}: sizes.default: 104 is above the cap 100 (R1)" in lines
    assert all(line.startswith(f"{broken}: ") for line in lines)


def test_check_speaks_json(sound, broken, capsys):
    """The verdict as one JSON object, with the same exit codes."""
    assert 0 == main(["spec", "check", sound, "--json"])
    verdict = json.loads(capsys.readouterr().out)
    assert ("toy", [], 5) == (verdict["name"], verdict["problems"], verdict["counts"]["states"])
    assert 1 == main(["spec", "check", "--json", broken])
    verdict = json.loads(capsys.readouterr().out)
    assert (broken, "nme: unknown key; did you mean 'name'?") == (verdict["file"], verdict["problems"][0])


@pytest.mark.parametrize("action", ["check", "draw", "table"])
def test_a_missing_file_is_bad_input(action, capsys):
    """Exit code 2, what is shipped on standard error, and no traceback."""
    assert 2 == main(["spec", action, "nowhere.toml"])
    said = capsys.readouterr()
    assert "" == said.out
    assert said.err.startswith("tsgraph: nowhere.toml: 1 problem\n  file: there is no such spec (shipped: decode, ")


@pytest.mark.parametrize("action", ["draw", "table"])
def test_what_cannot_be_loaded_cannot_be_shown(action, broken, capsys):
    """Exit code 2, and all problems on standard error."""
    assert 2 == main(["spec", action, broken])
    assert "  nme: unknown key" in capsys.readouterr().err


def test_draw_prints_the_diagram(capsys):
    """The same as `draw_spec`, with a state marked where one is asked for."""
    spec = load_spec("decode")
    assert 0 == main(["spec", "draw", "decode"])
    assert draw_spec(spec) + "\n" == capsys.readouterr().out
    assert 0 == main(["spec", "draw", "decode", "--state", "stale"])
    assert draw_spec(spec, "stale") + "\n" == capsys.readouterr().out


def test_draw_refuses_an_unknown_state(capsys):
    """Exit code 2, with the nearest state."""
    assert 2 == main(["spec", "draw", "decode", "--state", "stail"])
    assert "did you mean 'stale'?" in capsys.readouterr().err


def test_table_prints_the_tables(capsys):
    """The same as `spec_table`, as wide as asked."""
    assert 0 == main(["spec", "table", "decode", "--width", "90"])
    assert spec_table(load_spec("decode"), 90) + "\n" == capsys.readouterr().out


def test_list_names_what_is_shipped(capsys):
    """One name a line."""
    assert 0 == main(["spec", "list"])
    assert list(shipped()) == capsys.readouterr().out.split()


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["spec"],
        ["spec", "check"],
        ["spec", "chek", "decode"],
        ["nothing"],
        ["spec", "table", "decode", "--width", "0"],
    ],
)
def test_wrong_usage_is_exit_code_2(argv, capsys):
    """What the command line does not know is said with the usage."""
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert 2 == caught.value.code
    assert "usage: tsgraph" in capsys.readouterr().err


def test_help_lists_every_command(capsys):
    """`tsgraph --help` knows all commands, also those whose module was not asked for."""
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert 0 == caught.value.code
    assert "check, mutate, draw and list specs" in capsys.readouterr().out


def test_python_dash_m_is_the_same_command(sound, broken):
    """`python -m tsgraph` gives the command's exit codes."""
    for file, code in ((sound, 0), (broken, 1), ("nowhere", 2)):
        done = subprocess.run(
            [sys.executable, "-m", "tsgraph", "spec", "check", file], capture_output=True, check=False
        )
        assert code == done.returncode


def test_a_reader_that_has_seen_enough_is_no_error():
    """`tsgraph spec table decode | head -1` ends quietly."""
    with subprocess.Popen(
        [sys.executable, "-m", "tsgraph", "spec", "table", "decode"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (b"", 0) == (process.stderr.read(), process.wait())
