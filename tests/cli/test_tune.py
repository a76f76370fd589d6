"""`tsgraph tune`: what it prints, what it returns, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import torch

from tsgraph import GraphRuntime, Rows
from tsgraph.cli import main
from tsgraph.dispatch.forecast import Forecast

SEEN = {"rows": {"default": {"1": 900, "6": 300, "7": 400, "64": 50}, "greedy": {"7": 10}}, "tokens_per_request": 4}


@pytest.fixture
def seen(tmp_path):
    """A histogram of two variants, four tokens a row."""
    return written(tmp_path / "seen.json", SEEN)


def written(path, document):
    """The path of a file with `document` in it."""
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return str(path)


def figures(capsys, *argv, code=0):
    """What the command prints as JSON."""
    assert code == main(["tune", *argv, "--json"])
    printed = capsys.readouterr()
    assert "" == printed.err
    return json.loads(printed.out)


def test_figures_for_people(seen, capsys):
    """A table of what was chosen beside defaults and exact sizes, what nothing uses, and the sizes to paste."""
    assert 0 == main(["tune", seen, "--slots", "3", "--shared-bytes", "1MiB"])
    printed = capsys.readouterr().out
    head, *rest = printed.splitlines()
    assert "1660 decode steps of 1 to 64 rows, 4 tokens a row, variants default, greedy" == head
    cells = {
        name: re.split(r"\s{2,}", line.strip())[1:] for line in rest for name in NAMES if line.strip().startswith(name)
    }
    work = 4 * (900 + 7 * 710 + 64 * 50)
    assert ["3", "6", f"{work:,}", "+3.4%", "3.3%", "0", "2", "64.0"] == cells["chosen "]
    assert ["4", "8", f"{work - 4 * 300:,}", "+0.0%", "0.0%", "0", "3", "64.0"] == cells["exact sizes "]
    assert ["23", "46"] == cells["decode's defaults "][:2]
    assert "chosen: no step uses greedy/1, 64" in rest
    assert "no size covers" not in printed
    assert printed.endswith("\n\nsizes=(1, 7, 64)\n\n[sizes]\ndefault = [1, 7, 64]\n")


NAMES = ("chosen ", "decode's defaults ", "exact sizes ")


def test_figures_as_json(seen, capsys):
    """One document with the sizes and, for each choice, its figures and what it leaves out."""
    told = figures(capsys, seen, "--slots", "3")
    assert (seen, "decode", 1660, ["default", "greedy"], 4) == tuple(
        told[key] for key in ("file", "spec", "steps", "variants", "tokens_per_request")
    )
    assert [1, 7, 64] == told["sizes"] == told["chosen"]["sizes"]
    assert ("tokens", 160, []) == (told["unit"], told["limit"], told["notes"])
    assert ({}, ["greedy/1", "greedy/64"], None) == tuple(told["chosen"][key] for key in ("eager", "unused", "bytes"))
    assert pytest.approx(300 / (900 + 6 * 300 + 7 * 410 + 64 * 50)) == told["chosen"]["padded_work"]
    assert told["chosen"]["work"] < told["defaults"]["work"]
    assert 0 == told["exact"]["padded_work"]


def test_batches_that_no_size_covers_are_exit_status_1(tmp_path, capsys):
    """They are named with their steps, and with the limit where it is at fault."""
    file = written(tmp_path / "steps.csv", "rows,steps\n40,90\n80,90\n158,1\n161,2\n162,3\n170,1\n")
    told = figures(capsys, file, "--slots", "2", code=1)
    assert ([40, 80], {"158": 1, "161": 2, "162": 3, "170": 1}) == (told["sizes"], told["chosen"]["eager"])
    assert 1 == main(["tune", file, "--slots", "2"])
    lines = capsys.readouterr().out.splitlines()
    rows = "158, 161..162, 170 (a size has 160 at most)"
    assert f"chosen: no size covers so many rows: {rows}; steps that run eagerly: 7" in lines


def test_within_its_limit_no_limit_is_told(tmp_path, capsys):
    """A batch that no size covers by choice is named alone."""
    file = written(tmp_path / "steps.csv", "rows,steps\n40,90\n80,90\n158,1\n")
    assert 1 == main(["tune", file, "--slots", "2"])
    assert "chosen: no size covers so many rows: 158; steps that run eagerly: 1\n" in capsys.readouterr().out


def test_a_log_of_steps_is_read(tmp_path, capsys):
    """A user's own scheduler may write it; what was left out is told."""
    lines = [{"rows": 3, "event": "step"}, {"rows": 3, "variant": "b"}, {"event": "server.started"}]
    file = written(tmp_path / "log", "\n".join(map(json.dumps, lines)))
    told = figures(capsys, file)
    assert ([3], ["default", "b"], 1) == (told["sizes"], told["variants"], len(told["notes"]))
    assert 0 == main(["tune", file])
    assert "left out: 1 record that is no decode step\n" in capsys.readouterr().out


def test_options_reach_the_choice(seen, tmp_path, capsys):
    """Rows, variants, width, spec, eager factor and measured seconds, each where it matters."""
    assert [1, 6, 7] == figures(capsys, seen, "--rows", "32", code=1)["sizes"]
    assert ["default", "greedy", "x"] == figures(capsys, seen, "--variants", "greedy, x")["variants"]
    assert 2 == figures(capsys, seen, "--tokens-per-request", "2")["tokens_per_request"]
    assert ("reference", 16) == tuple(
        figures(capsys, seen, "--spec", "reference", code=1)[k] for k in ("spec", "limit")
    )
    assert [64] == figures(capsys, seen, "--slots", "1", "--eager", "1000")["sizes"]
    costs = written(tmp_path / "costs.json", {"1": 0.5, "64": 0.5})
    told = figures(capsys, seen, "--costs", costs)
    assert ([64], "seconds", 0.5 * 1660) == (told["sizes"], told["unit"], told["chosen"]["work"])
    assert 0 == main(["tune", seen, "--costs", costs])
    assert "830.000" in capsys.readouterr().out


def test_memory_is_a_limit(seen, capsys):
    """Bytes are foretold from what one says, and what is chosen keeps within them."""
    said = ("--row-bytes", "1KiB", "--slot-bytes", "10KB", "--memory", "0.1MiB")
    assert (
        Forecast(row=1024, slot=10_000).bytes((1, 6, 7), 2) == figures(capsys, seen, *said, code=1)["chosen"]["bytes"]
    )


def test_a_spec_without_padding_has_its_own_default(seen, tmp_path, capsys):
    """The sizes go where such a spec reads them."""
    spec = 'extends = "decode"\nname = "exact"\nversion = 1\n[sizes]\npadding = false\n'
    assert 0 == main(["tune", seen, "--spec", written(tmp_path / "exact.toml", spec)])
    assert capsys.readouterr().out.endswith("\ndefault_without_padding = [1, 6, 7, 64]\n")


def test_a_runtime_can_be_tuned_by_what_it_tells(tmp_path, capsys):
    """Its snapshot is a log and a forecast, its own events are no steps, and it takes the sizes that were chosen."""
    told = []
    runtime = GraphRuntime.for_step(
        lambda x: x * 2,
        inputs={"x": Rows(torch.float32, pad=0)},
        outputs="request",
        sizes=(4, 8),
        backend="emulated",
        observers=[lambda event: told.append({"event": event.name, **event.fields})],
    )
    runtime.capture()
    for rows in (6, 6, 6, 3, 9):
        runtime(x=torch.zeros(rows))
    assert any(event.get("rows") == 9 for event in told)
    snapshot = written(tmp_path / "snapshot.json", runtime.snapshot())
    seen = figures(capsys, snapshot, "--memory", "1GiB")
    assert (5, [3, 6, 9], []) == (seen["steps"], seen["sizes"], seen["notes"])
    assert Forecast.of_slots(runtime.snapshot()["slots"]).bytes(seen["sizes"], 1) == seen["chosen"]["bytes"] > 0
    logged = "".join(json.dumps({"event": "stats", "level": "info", **runtime.snapshot()}) + "\n" for _ in range(2))
    same = figures(capsys, written(tmp_path / "stats.jsonl", logged), "--forecast", snapshot)
    assert seen["chosen"] == same["chosen"]
    GraphRuntime.for_step(
        lambda x: x * 2, inputs={"x": Rows(torch.float32, pad=0)}, outputs="request", sizes=seen["sizes"]
    )
    log = "".join(json.dumps(each, default=str) + "\n" for each in told)
    assert 2 == main(["tune", written(tmp_path / "log", log)])
    assert "what the runtime logs itself are changes, not steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("nowhere.json",), "nowhere.json cannot be read"),
        (("SEEN", "--spec", "nowhere"), "there is no such spec"),
        (("SEEN", "--costs", "SEEN"), "sizes must be whole numbers"),
        (("SEEN", "--costs", "LIST"), "holds no JSON object"),
        (("SEEN", "--costs", "TEXT"), "is no JSON"),
        (("SEEN", "--costs", "DEEP"), "is no JSON"),
        (("SEEN", "--eager", "0.5"), "an eager step costs 0.5"),
        (("SEEN", "--memory", "1GiB"), "there is no forecast"),
        (("SEEN", "--memory", "1", "--slot-bytes", "2"), "no size fits into 1 bytes"),
        (("SEEN", "--forecast", "SEEN"), "tells of no slots"),
        (("SEEN", "--forecast", "NONE"), "needs two recorded slots"),
        (("SEEN", "--forecast", "SEEN", "--row-bytes", "1"), "a forecast is given twice"),
        (("LIST",), "record 1 is no JSON object"),
    ],
)
def test_what_cannot_be_used_is_exit_status_2(argv, says, seen, tmp_path, capsys):
    """Named on standard error, without a traceback, and nothing is printed."""
    files = {"SEEN": seen, "LIST": written(tmp_path / "list", [1]), "TEXT": written(tmp_path / "text", "words")}
    files["NONE"] = written(tmp_path / "none", {"slots": []})
    files["DEEP"] = written(tmp_path / "deep", "[" * 100_000)
    assert 2 == main(["tune", *(files.get(word, word) for word in argv)])
    printed = capsys.readouterr()
    assert printed.err.startswith("tsgraph: ")
    assert (True, "") == (says in printed.err, printed.out)


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("x", "--slots", "0"),
        ("x", "--slots", "-1"),
        ("x", "--rows", "many"),
        ("x", "--memory", "1 parsec"),
        ("x", "--memory", "-1"),
        ("x", "--eager", "often"),
    ],
)
def test_wrong_usage_is_exit_status_2(argv, capsys):
    """What the command line does not know is said with the usage."""
    with pytest.raises(SystemExit) as caught:
        main(["tune", *argv])
    assert 2 == caught.value.code
    assert "usage: tsgraph tune" in capsys.readouterr().err


def test_tuning_needs_no_torch(seen):
    """It works on a machine that has logs and nothing else."""
    code = f"import sys; from tsgraph.cli import main; main(['tune', {seen!r}]); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "False" == run.stdout.splitlines()[-1]
