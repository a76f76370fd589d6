from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.errors import SpecError
from tsgraph.spec import load_spec, parse_spec, shipped
from tsgraph.spec.load import with_policy
from tsgraph.spec.model import After, AtLeast, CounterIs, ModeIs, Pad

DECODE = tomllib.loads(shipped()["decode"].read_text(encoding="utf-8"))
WRONG = {
    str: (True, 1.5, {"a": 1}),
    int: ("3", True, 1.5, {"a": 1}),
    bool: (1, 0, "true", {"a": 1}),
    float: ("1.0", True),
}


def leaves(value: Any, address: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The addresses of all texts, numbers and truth values."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*address, key))
    else:
        yield address


def at(data: Any, address: tuple[Any, ...]) -> Any:
    """The value at `address`."""
    for part in address:
        data = data[part]
    return data


def key_path(data: Any, address: tuple[Any, ...]) -> str:
    """`address` as problems write it, made here a second time and on purpose."""
    words = ""
    for part in address:
        data = data[part]
        name = data.get("id", data.get("on", part)) if isinstance(data, dict) else part
        words += f"[{name if isinstance(name, str) else part}]" if isinstance(part, int) else f".{part}"
    return words[1:]


LEAVES = list(leaves(DECODE))


# -- what a spec says --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_spec_loads(name):
    """Shipped specs are sound, and know their own name and file."""
    spec = load_spec(name)
    assert (name, shipped()[name].name) == (spec.name, Path(spec.source).name)


def test_the_four_kinds_of_conditions(small):
    """A rule's `kind` makes its condition; `is` is the value of a mode."""
    spec = load_spec("decode")
    conditions = {rule.id: rule.condition for rule in spec.rules}
    assert After("lengths_filled", "forward") == conditions["R7"]
    assert AtLeast("forward", 4) == conditions["W1"]
    assert CounterIs("grammar", 1) == conditions["R22"]
    assert ModeIs("capture", True) == conditions["R20a"]
    assert ModeIs("capture", False) == conditions["R20b"]


def test_the_shapes_that_differ_from_the_model():
    """`from` and `finally`, one event or several, pads as values or sinks, clauses, and names from keys."""
    spec = load_spec("decode")
    fail = spec.lifecycle.transition("fail")
    assert ("allocated", "warmed", "metadata_bound", "captured") == fail.source
    assert ("leave_capture_mode", "drain_grammar", "reset_grammar", "release_graph") == fail.cleanup
    assert ("recorded",) == spec.steps["record"].event
    assert ("ranks_agreed", "ranks_refused") == spec.steps["settle_ranks"].event
    assert (Pad(value=1), Pad(sink="sentinel")) == (spec.buffers["seq_lens"].pad, spec.buffers["state_write_pool"].pad)
    assert "seq_lens" == spec.buffers["seq_lens"].name
    clauses = next(prop for prop in spec.properties if prop.id == "P1").holds
    assert [
        (After("lengths_filled", "forward"), None),
        (After("metadata_bound", "forward"), None),
        (After("metadata_bound", "sampler_prepared"), "sampler"),
    ] == [(clause.condition, clause.needs) for clause in clauses]


def test_the_default_sizes_are_r1s():
    """R1: 1, 2, 4, 8..160 by 8; without padding 1..32, 64, 96, 128, 160; the largest is 160."""
    sizes = load_spec("decode").sizes
    assert (1, 2, 4, *range(8, 161, 8)) == sizes.default
    assert (*range(1, 33), 64, 96, 128, 160) == sizes.default_without_padding
    assert 160 == sizes.cap


def test_loading_leaves_the_data_alone(decode):
    """References are resolved in a copy."""
    before = copy.deepcopy(decode)
    parse_spec(decode)
    assert before == decode


def test_any_mapping_is_data(small):
    """Read-only mappings and tuples do as well as what tomllib gives."""
    frozen = MappingProxyType({**small, "session": MappingProxyType({"enter": ()})})
    assert parse_spec(small) == parse_spec(frozen)


# -- strictness --------------------------------------------------------------------------------------------------------


@given(address=st.sampled_from(LEAVES), data=st.data())
def test_a_leaf_of_a_wrong_type_is_named(address, data):
    """Whatever leaf has a wrong type, its key path is among the problems: nothing is converted, nothing slips by."""
    spec = copy.deepcopy(DECODE)
    wrong = data.draw(st.sampled_from(WRONG[type(at(DECODE, address))]))
    at(spec, address[:-1])[address[-1]] = wrong
    with pytest.raises(SpecError) as caught:
        parse_spec(spec)
    assert any(problem.startswith(f"{key_path(spec, address)}: ") for problem in caught.value.problems), caught.value


@pytest.mark.parametrize(
    ("address", "wrong", "expected"),
    [
        (("name",), 3, "name: expected text, got the whole number 3"),
        (("version",), True, "version: expected a whole number, got true"),
        (("version",), 1.0, "version: expected a whole number, got the fraction 1.0"),
        (("warmup", "forwards"), "2", "warmup.forwards: expected a whole number, got the text '2'"),
        (("rules", 0, "guards"), "build", "rules[A].guards: expected a list, got the text 'build'"),
        (("rules", 0), [], "rules[0]: expected a table, got a list"),
        (("rules",), {}, "rules: expected a list, got a table"),
        (
            ("steps", "build", "count", "held"),
            1.5,
            "steps.build.count.held: expected a whole number, got the fraction 1.5",
        ),
        (
            ("steps", "build", "mode", "busy"),
            1,
            "steps.build.mode.busy: expected true or false, got the whole number 1",
        ),
        (
            ("buffers", "ids", "per"),
            "tokn",
            "buffers.ids.per: expected 'request' or 'token', got the text 'tokn'; did you mean 'token'?",
        ),
        (("buffers", "ids", "pad"), "1", "buffers.ids.pad: expected a number or true or false, got the text '1'"),
        (("buffers", "places", "pad"), {"sink": 0}, "buffers.places.pad.sink: expected text, got the whole number 0"),
        (
            ("buffers", "ids", "pad"),
            {"value": 0},
            'buffers.ids.pad: expected a value or { sink = "name" }, got a table of value',
        ),
        (
            ("buffers", "ids", "warm"),
            "tokens",
            "buffers.ids.warm: expected a number or 'tokens_per_request', got the text 'tokens'",
        ),
        (
            ("rules", 0, "kind"),
            "aftr",
            "rules[A].kind: expected one of after, at_least, counter, mode, got the text 'aftr'; did you mean 'after'?",
        ),
        (
            ("properties", 0, "holds", 0),
            {"at_least": ["built", "1"]},
            "properties[P].holds[0].at_least[1]: expected a whole number, got the text '1'",
        ),
        (
            ("properties", 0, "holds", 0),
            {"at_least": ["built"]},
            "properties[P].holds[0].at_least: expected a list of event, n, got a list",
        ),
        (
            ("properties", 0, "holds", 0),
            {},
            "properties[P].holds[0]: expected exactly one of after, at_least, counter, mode, got nothing",
        ),
        (("sizes", "default", 1), "4..2", "sizes.default[1]: no size lies between 4 and 2"),
        (("sizes", "default", 1), "1..9 by 0", "sizes.default[1]: '1..9 by 0' never gets anywhere"),
        (("sizes", "default", 1), "1..99999999", "sizes.default[1]: 1..99999999 is more than 4096 sizes"),
        (
            ("sizes", "default", 1),
            "2-4",
            "sizes.default[1]: expected a size or a range such as \"8..160 by 8\", got the text '2-4'",
        ),
    ],
)
def test_types_are_exact(small, problems, address, wrong, expected):
    """3 is no text, true is no number, a text is no list; the problem says what was expected and what is there."""
    at(small, address[:-1])[address[-1]] = wrong
    assert (expected,) == problems(small)


@pytest.mark.parametrize(
    ("address", "key", "expected"),
    [
        ((), "bufers", "bufers: unknown key; did you mean 'buffers'?"),
        (("lifecycle",), "on_fail", "lifecycle.on_fail: unknown key; did you mean 'on_failure'?"),
        (("lifecycle",), "transitions", "lifecycle.transitions: unknown key; write [[transitions]] instead"),
        (("transitions", 0), "form", "transitions[make].form: unknown key; did you mean 'from'?"),
        (("transitions", 0), "cleanup", "transitions[make].cleanup: unknown key"),
        (("rules", 0), "becuase", "rules[A].becuase: unknown key; did you mean 'because'?"),
        (("rules", 0), "evnt", "rules[A].evnt: unknown key; did you mean 'event'?"),
        (("rules", 0), "equals", "rules[A].equals: unknown key"),
        (("properties", 0), "hold", "properties[P].hold: unknown key; did you mean 'holds'?"),
        (("steps", "build"), "events", "steps.build.events: unknown key; did you mean 'event'?"),
        (("steps", "build"), "name", "steps.build.name: unknown key; the table's own key is its name"),
        (("counters", "held"), "flor", "counters.held.flor: unknown key; did you mean 'floor'?"),
        (("modes", "busy"), "scpe", "modes.busy.scpe: unknown key; did you mean 'scope'?"),
        (("session",), "entr", "session.entr: unknown key; did you mean 'enter'?"),
        (("serving",), "replays", "serving.replays: unknown key; did you mean 'replay'?"),
        (("warmup",), "forward", "warmup.forward: unknown key; did you mean 'forwards'?"),
        (("sizes",), "caps", "sizes.caps: unknown key; did you mean 'cap'?"),
        (("buffers", "ids"), "columns", "buffers.ids.columns: unknown key; did you mean 'column_pad'?"),
        (("outputs", "tokens"), "option", "outputs.tokens.option: unknown key; did you mean 'optional'?"),
        (("policy",), "freeze", "policy.freeze: unknown key; did you mean 'freeze_gc'?"),
        (("buffers", "ids"), "remove", "buffers.ids.remove: unknown key"),
        ((), "source", "source: unknown key"),
    ],
)
def test_unknown_keys_are_refused_everywhere(small, problems, address, key, expected):
    """A key that nobody reads is a problem, with the nearest key that somebody does."""
    at(small, address)[key] = {}
    assert (expected,) == problems(small)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (("name",), "name: missing"),
        (("lifecycle", "initial"), "lifecycle.initial: missing"),
        (("transitions",), "transitions: missing"),
        (("transitions", 0, "from"), "transitions[make].from: missing"),
        (("rules", 0, "id"), "rules[0].id: missing"),
        (("rules", 0, "than"), "rules[A].than: missing"),
        (("rules", 0, "kind"), "rules[A].kind: expected one of after, at_least, counter, mode, missing"),
        (("steps", "serve", "event"), "steps.serve.event: missing"),
        (("sizes", "cap"), "sizes.cap: missing"),
        (
            ("buffers", "ids", "pad"),
            "buffers.ids.pad: missing; rows beyond the live ones would keep what an earlier step left there (B1)",
        ),
    ],
)
def test_missing_keys_are_named(small, problems, address, expected):
    """What has no default must be there; a buffer without a pad is refused with the reason."""
    del at(small, address[:-1])[address[-1]]
    assert (expected,) == problems(small)


# -- all at once -------------------------------------------------------------------------------------------------------


def test_all_problems_are_told_at_once(small):
    """Types, keys, references, sizes and structure: one error has them all, and no problem that only follows."""
    small["rules"][0] |= {"guards": ["bild"], "fixx": ""}
    small["rules"][1]["because"] = 3
    small["warmup"]["forwards"] = "two"
    small["sizes"]["default"] = [4, 2]
    small["buffers"]["ids"]["pad"] = "one"
    small["buffers"]["places"]["dtype"] = "int31"
    small["outputs"]["tokens"]["per"] = "row"
    small["steps"]["tidy"]["needs"] = "sampled"
    with pytest.raises(SpecError) as caught:
        parse_spec(small, source="here")
    assert {
        "rules[A].fixx: unknown key; did you mean 'fix'?",
        "rules[A].guards: unknown step or trigger 'bild'; did you mean 'build'?",
        "rules[B].because: expected text, got the whole number 3",
        "warmup.forwards: expected a whole number, got the text 'two'",
        "sizes.default: 2 comes after 4; sizes increase strictly (R1)",
        "buffers.ids.pad: expected a number or true or false, got the text 'one'",
        "buffers.places.dtype: unknown dtype 'int31'; did you mean 'int32'?",
        "buffers.again.mirrors: the dtype of 'places' is 'int31', not 'int64'",
        "outputs.tokens.per: expected 'request' or 'token' or 'whole', got the text 'row'",
        "steps.tidy.needs: unknown collaborator or policy 'sampled'; did you mean 'sampler'?",
    } == set(caught.value.problems)
    assert str(caught.value).startswith("here: 10 problems\n  ")


def test_a_wrong_step_is_told_without_its_consequences(small, problems):
    """A step that cannot be read makes everything that names it, or its events, dangle; that is not told."""
    small["steps"]["measure"]["event"] = 3
    small["rules"][1]["event"] = "bilt"
    told = problems(small)
    assert "steps.measure.event: expected a list, got the whole number 3" == told[0]
    assert "rules[B].event: no step appends 'bilt'; did you mean 'built'?" in told
    assert not [problem for problem in told if "'measure'" in problem]


def test_without_a_lifecycle_only_types_are_told(small, problems):
    """Where the graph itself cannot be read, nothing that depends on it is guessed at."""
    del small["lifecycle"]
    small["rules"][0]["guards"] = ["bild"]
    assert ("lifecycle: missing",) == problems(small)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_path_is_read(tmp_path):
    """A spec may lie anywhere; `source` says where it came from."""
    file = tmp_path / "mine.toml"
    file.write_text(shipped()["decode"].read_text(encoding="utf-8"), encoding="utf-8")
    assert str(file) == load_spec(file).source == load_spec(str(file)).source


def test_a_syntax_error_says_where(tmp_path):
    """TOML's own line and column are in the problem."""
    file = tmp_path / "bad.toml"
    file.write_text('name = "x"\nversion = = 1\n', encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_spec(file)
    assert ("syntax: Invalid value (at line 2, column 11)",) == caught.value.problems


def test_a_missing_file_lists_what_is_shipped():
    """A mistyped name is answered with the nearest one and with all."""
    with pytest.raises(SpecError) as caught:
        load_spec("decod")
    assert (
        f"file: there is no such spec; did you mean 'decode'? (shipped: {', '.join(shipped())})",
    ) == caught.value.problems


def test_a_directory_is_no_spec(tmp_path):
    """Only files are read."""
    with pytest.raises(SpecError, match="there is no such spec"):
        load_spec(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    """TOML is UTF-8."""
    file = tmp_path / "bad.toml"
    file.write_bytes(b"name = '\xff'")
    with pytest.raises(SpecError, match="file: cannot be read: 'utf-8' codec"):
        load_spec(file)


def test_words_of_the_policy_are_replaced_and_nothing_else():
    """A policy's words may be replaced one by one; the rest of the spec is the same."""
    spec = load_spec("decode")
    leased = with_policy(spec, {"outputs": "leased"})
    assert ("leased", spec.policy.staleness) == (leased.policy.outputs, leased.policy.staleness)
    assert spec == attrs.evolve(leased, policy=spec.policy)


def test_a_word_that_no_policy_has_is_refused_with_the_nearest():
    """A policy is as strict as the file: unknown words and values are told together."""
    with pytest.raises(SpecError) as refused:
        with_policy(load_spec("decode"), {"output": "leased", "staleness": "alwys"})
    assert 2 == len(refused.value.problems)
    assert "did you mean 'outputs'?" in str(refused.value)
    assert "did you mean 'always'?" in str(refused.value)
