"""`tsgraph demo`: what it prints, what it returns, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tsgraph.cli import main
from tsgraph.errors import CallerError
from tsgraph.reference import DecoderConfig, trial
from tsgraph.reference.constraint import JsonGrammar
from tsgraph.reference.proof import Flip
from tsgraph.reference.rows import RunningRows

SMALL = ("demo", "--backend", "emulated", "--requests", "2")


@pytest.fixture(autouse=True)
def small_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of two rows and two layers, so that two slots a variant are captured instead of six, and fast."""
    plain: Callable[..., Any] = trial.config_for

    def config_for(*args: Any, recurrent: bool = False, **words: Any) -> Any:
        decoder = DecoderConfig(width=32, head_dim=8, hidden=40, layers=2, recurrent=(1,) if recurrent else ())
        return attrs.evolve(plain(*args, recurrent=recurrent, **words), rows=2, decoder=decoder)

    monkeypatch.setattr(trial, "config_for", config_for)


def test_figures_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """One JSON document holds slots, counters, speeds, the verdict and the texts, and nothing else is printed."""
    path = tmp_path / "prompts.txt"
    path.write_text("first\nsecond\nthird\n", encoding="utf-8")
    assert 0 == main([*SMALL, "--json", "--prompts", str(path)])
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert "" == printed.err
    assert ["first", "second"] == [each["prompt"] for each in figures["completions"]]
    assert figures["verified"]["holds"]
    assert figures["verified"]["steps"] == figures["counters"]["replays"] > 0
    assert {"replayed", "eager"} == set(figures["tokens_per_second"])
    assert [2, 1] == [slot["size"] for slot in figures["slots"]]


def test_figures_for_people(capsys: pytest.CaptureFixture[str]):
    """For people there are texts, the slot table, counts with their reasons, and a verdict; no control characters."""
    assert 0 == main(SMALL)
    printed = capsys.readouterr()
    for word in ("Hello.", "default/2", "replayable", "only decode steps have slots", "tokens/s", "verified: "):
        assert word in printed.out
    assert "\x1b" not in printed.out
    assert "" == printed.err


def test_parts_may_be_asked_for(capsys: pytest.CaptureFixture[str]):
    """A draft model and recurrent layers are proved like everything else, and it says how many tokens are accepted."""
    assert 0 == main([*SMALL, "--speculative", "--recurrent"])
    shown = capsys.readouterr().out
    for word in ("verified: ", "penalties/2", "accepted tokens per step", "of 4"):
        assert word in shown


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_texts_may_have_to_keep_a_schema(capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: tuple[str, ...]):
    """Every other text does; how many are valid is shown, and how they were matched."""
    path = tmp_path / "schema.json"
    path.write_text('{"type": "array", "items": {"type": "boolean"}, "maxItems": 3}', encoding="utf-8")
    assert 0 == main([*SMALL, "--json-schema", str(path), *flags])
    shown = capsys.readouterr().out
    assert ('"constrained": 1' if flags else "1 of 1 texts (built-in matcher)") in shown


def test_an_invalid_text_is_exit_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """It is named, and the verdict says that grammars were not kept."""
    path = tmp_path / "schema.json"
    path.write_text('{"type": "boolean"}', encoding="utf-8")
    monkeypatch.setattr(JsonGrammar, "fault", lambda grammar, tokens, ended: "planted")
    assert 1 == main([*SMALL, "--json-schema", str(path)])
    shown = capsys.readouterr().out
    assert "seed 0: planted" in shown
    assert "INVALID" in shown


def test_an_unusable_schema_is_exit_status_2(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Named with the reason, without a traceback."""
    assert 2 == main([*SMALL, "--json-schema", str(tmp_path / "nowhere")])
    assert "nowhere cannot be read" in capsys.readouterr().err


def test_slots_may_be_verified_one_by_one(capsys: pytest.CaptureFixture[str]):
    """What was checked, of which slots, and what came of it is in the document."""
    assert 0 == main([*SMALL, "--verify", "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert figures["verification"]["ok"]
    assert ["default/2", "default/1"] == figures["verification"]["slots"]


def test_a_finding_is_exit_status_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Planted: a number that the slots have baked in is another one afterwards, which no text that was served shows."""
    plain: Callable[..., Any] = RunningRows.__call__

    def moved(rows: Any, count: int) -> Any:
        object.__setattr__(rows.parts.config.decoder, "norm_eps", 0.5)
        return plain(rows, count)

    monkeypatch.setattr(RunningRows, "__call__", moved)
    assert 1 == main([*SMALL, "--verify"])
    shown = capsys.readouterr().out
    for word in ("output['logits']", "probe_constants", "DIFFERENT: NOT right: "):
        assert word in shown


@pytest.mark.parametrize("flag", ["--speculative", "--recurrent"])
def test_a_part_may_be_asked_for_alone(monkeypatch: pytest.MonkeyPatch, flag: str):
    """Each flag asks for its own part, and requests then have penalties, too."""
    asked: list[Any] = []

    def run_trial(requests: Any, config: Any, **words: Any) -> Any:
        asked.append((config.drafts > 0, bool(config.decoder.recurrent), any(r.sampling.penalised for r in requests)))
        raise CallerError("no more is needed", hint="")

    monkeypatch.setattr(trial, "run_trial", run_trial)
    assert 2 == main(["demo", "--backend", "emulated", flag])
    assert [("--speculative" == flag, "--recurrent" == flag, True)] == asked


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_difference_is_exit_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
):
    """Where replay and eager differ the command says so, shows the difference, and fails."""
    plain: Callable[..., Any] = trial.run_trial
    flip = Flip((1, 9), 65, 66, 0.25)
    monkeypatch.setattr(trial, "run_trial", lambda *args, **words: attrs.evolve(plain(*args, **words), flips=[flip]))
    assert 1 == main([*SMALL, *flags])
    shown = capsys.readouterr().out
    assert ('"holds": false' if flags else "DIFFERENT") in shown
    assert ('"margin": 0.25' if flags else "position 9: token 66 instead of 65") in shown


@pytest.mark.parametrize("count", ["0", "-1", "many", "1.5", "²"])
def test_requests_must_be_a_positive_number(capsys: pytest.CaptureFixture[str], count: str):
    """Another number of requests is wrong usage."""
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--requests", count])
    assert 2 == caught.value.code
    assert "positive whole number" in capsys.readouterr().err


def test_unusable_prompts_are_exit_status_2(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """A file that cannot be read is named with the reason, without a traceback."""
    assert 2 == main([*SMALL, "--prompts", str(tmp_path / "nowhere")])
    assert "nowhere cannot be read" in capsys.readouterr().err


def test_cuda_without_a_device_is_exit_status_2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Asking for CUDA where there is none is an error that names the way out."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert 2 == main(["demo", "--backend", "cuda"])
    assert "--backend emulated" in capsys.readouterr().err
