"""Constrained requests on the reference engine: valid texts beside free ones, the same whichever path serves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.grammar.validator import valid
from tsgraph.errors import BadBatch, CallerError, InternalError
from tsgraph.grammar.bitmask import ALL
from tsgraph.grammar.masks import Masks
from tsgraph.reference import DecoderConfig, EngineConfig, Parts, ReferenceEngine, Request, decode, graph_runtime
from tsgraph.reference.constraint import JsonGrammar, load_schema
from tsgraph.reference.trial import Trial, config_for, requests_for, run_trial

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["new", "old"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
}
RECURSIVE = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}, "kid": {"$ref": "#"}},
    "required": ["n"],
    "additionalProperties": False,
}
GRAMMAR = JsonGrammar.of(SCHEMA)
SMALL = DecoderConfig(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=40)


def trial_of(grammar: JsonGrammar, count: int = 4, *, speculative: bool = False, recurrent: bool = False) -> Trial:
    """A small trial on the emulated backend, every other text constrained."""
    requests = requests_for(("one", "another prompt", "three"), count, grammar=grammar)
    config = config_for(requests, "cpu", speculative=speculative, recurrent=recurrent)
    decoder = attrs.evolve(SMALL, recurrent=(1,) if recurrent else ())
    return run_trial(
        requests, attrs.evolve(config, rows=2, decoder=decoder, variants=False), backend="emulated", grammar=grammar
    )


@pytest.mark.no_cover
@pytest.mark.parametrize("parts", [{}, {"speculative": True}, {"recurrent": True}], ids=str)
def test_constrained_texts_are_valid_and_all_equal_eager(parts: Any):
    """Every one parses and validates, replays and eager steps agree, free texts are those of an engine without."""
    trial = trial_of(GRAMMAR, **parts)
    assert trial.holds
    assert 2 == len(trial.constrained) == trial.as_json()["grammar"]["constrained"]
    for completion in trial.constrained:
        assert "eos" == completion.ended
        assert valid(json.loads(decode(completion.tokens)), SCHEMA)


def test_any_schema_with_xgrammar():
    """What the built-in matcher cannot say goes to xgrammar, and is proved alike."""
    pytest.importorskip("xgrammar", reason="xgrammar is not installed (extra `grammar`)")
    wide = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 7, "maximum": 10**6}},
        "required": ["n"],
    }
    grammar = JsonGrammar.of(wide)
    trial = trial_of(grammar, 3)
    assert ("built-in", "xgrammar") == (GRAMMAR.by, grammar.by)
    assert trial.holds
    assert all(valid(json.loads(decode(each.tokens)), wide) for each in trial.constrained)


def test_without_xgrammar_such_a_schema_is_refused(monkeypatch: pytest.MonkeyPatch):
    """The error names the extra, and why the built-in matcher does not do."""
    monkeypatch.setitem(__import__("sys").modules, "xgrammar", None)
    with pytest.raises(CallerError, match="xgrammar cannot be imported") as caught:
        JsonGrammar.of(RECURSIVE)
    assert "schema.properties.kid" in caught.value.__notes__[0]


def unmasked(masks: Masks, rows: int, draws: int) -> list[Exception]:
    """Planted: masks that allow all."""
    masks.words[: rows * draws] = ALL
    return []


def stale(masks: Masks, rows: int, draws: int, fill: Any = Masks._fill) -> list[Exception]:
    """Planted: rows that are free keep a mask."""
    errors = fill(masks, rows, draws)
    free = (masks.words[: rows * draws] == ALL).all(axis=1)
    masks.words[: rows * draws][free] = 2**31 - 2
    return list(errors)


@pytest.mark.parametrize("fault", [unmasked, stale])
def test_a_planted_fault_breaks_the_trial(monkeypatch: pytest.MonkeyPatch, fault: Any):
    """Masks that do nothing make invalid texts or refused tokens; masks on free rows change their texts."""
    monkeypatch.setattr(Masks, "_fill", fault)
    try:
        assert not trial_of(GRAMMAR).holds
    except RuntimeError as error:
        assert "one that its grammar allows" in str(error)  # noqa: PT017 -- either way it is found


class Anything:
    """A matcher that any text keeps."""

    terminated = True

    def fill(self, words: Any) -> None: ...

    def accept(self, token: int) -> bool:
        return True

    def rollback(self, count: int) -> None: ...


def test_what_is_wrong_with_a_text_is_said():
    """No end, another text, or no JSON: a trial with one such text does not hold."""
    tokens = [*b'{"name":"","age":1}', 257]
    assert "" == GRAMMAR.fault(tokens, "eos")
    assert "no end within 21 tokens" in GRAMMAR.fault([*tokens, 1], "length")
    assert "does not keep" in GRAMMAR.fault(tokens[:-1], "eos")
    assert "does not keep" in GRAMMAR.fault([*tokens[1:]], "eos")
    anything = attrs.evolve(GRAMMAR, matcher=lambda most: Anything())
    assert "is not JSON" in anything.fault([1, 257], "eos")


def test_a_budget_is_kept():
    """With the least tokens there are, texts still end."""
    requests = [Request(prompt=(256, 65), max_tokens=GRAMMAR.least, constraint=lambda: GRAMMAR.matcher(GRAMMAR.least))]
    config = EngineConfig(decoder=SMALL, rows=1, context=64, constrained=True)
    engine = ReferenceEngine(config, lambda parts: graph_runtime(parts, backend="emulated", capture=False))
    completion = engine.generate(requests)[0]
    assert ("eos", GRAMMAR.least) == (completion.ended, len(completion.tokens))
    assert len(engine.runtime._parts.engine.grammar.queue) == 0


def test_an_engine_without_grammars_refuses_such_requests(eager_runtime: Any):
    """Before anything runs."""
    engine = ReferenceEngine(EngineConfig(decoder=SMALL, rows=1, context=64), eager_runtime)
    with pytest.raises(BadBatch, match="has a grammar"):
        engine.generate([Request(prompt=(256,), max_tokens=40, constraint=lambda: GRAMMAR.matcher(40))])


def test_a_step_that_raises_leaves_no_entry():
    """What was pushed for it is taken back, so that the next step finds its own."""
    config = EngineConfig(decoder=SMALL, rows=1, context=64, constrained=True)
    engine = ReferenceEngine(config, lambda parts: graph_runtime(parts, backend="emulated", capture=False))
    request = Request(prompt=(256, 65), max_tokens=60, constraint=lambda: GRAMMAR.matcher(60))
    forward = engine.parts.model.forward
    engine.parts.model.forward = lambda *args, **words: 1 // 0
    with pytest.raises(ZeroDivisionError):
        engine.generate([request])
    engine.parts.model.forward = forward
    assert "eos" == engine.generate([request])[0].ended


def test_an_executor_is_there_once_a_runtime_is():
    """Before, the error says how to make one."""
    parts = Parts.build(EngineConfig(decoder=SMALL, rows=1, constrained=True))
    with pytest.raises(InternalError, match="no executor"):
        parts.constraints.executor  # noqa: B018


def test_schemas_are_read_from_files(tmp_path: Path):
    """What cannot be read, or is not JSON, is named."""
    path = tmp_path / "schema.json"
    with pytest.raises(CallerError, match="cannot be read"):
        load_schema(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(CallerError, match="is not JSON"):
        load_schema(path)
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    assert SCHEMA == load_schema(path)
