"""Kill tables: the shipped law's is a stage of its own; here a small one is broken, and some of `decode`'s tried."""

from __future__ import annotations

import tomllib

import pytest

from tests.proving.toy import TOY
from tsgraph.proving.kill_table import kill_table, settings
from tsgraph.spec import parse_spec

IDLE_RULE = """
[[rules]]
id = "E"
guards = ["build"]
kind = "at_least"
event = "measured"
n = 1
because = "it seemed safer"
fix = "measure"
"""

# A mutant of each kind, and what kills it first; the whole table is a stage of its own.
SAMPLE = {
    "R9b: removed": ("property", "P7"),
    "R22: no longer guards record": ("property", "P3"),
    "R6: scope variant, not slot": ("property", "P10"),
    "grammar: scope runtime, not slot": ("loader", "'grammar' is no counter of scope 'slot'"),
    "warm: fill_lengths and bind_metadata change places": ("declared course", "rule R7 refuses bind_metadata"),
    "drain: reset_grammar and check_addresses change places": ("declared course", "rule R21b refuses drain"),
    "fail: without settle_ranks": ("loader", "lacks 'settle_ranks'; peers would wait"),
    "retire: without release_graph": ("property", "P17"),
    "reset: without release_graph": ("declared course", "property P17 breaks at allocated"),
    "session leave: without thaw_gc": ("declared course", "rule R43b refuses freeze_gc"),
    "drain_grammar: no longer does set grammar = 0": ("declared course", "rule R23a refuses drain"),
    "bind: without bind_mask": ("declared course", "rule R18 refuses record"),
}
FREE = ["capture: arm_comm and push_grammar change places", "fail: drain_grammar and release_graph change places"]


def table_of(text):
    """The kill table of a spec's text."""
    return kill_table({"": parse_spec(tomllib.loads(text))})


def planted(was, now):
    """The small spec with one thing changed."""
    assert TOY.count(was) == 1
    return table_of(TOY.replace(was, now))


def test_a_lean_law_has_a_complete_table():
    """Whatever is changed is found, except for what is declared free."""
    table = table_of(TOY)
    assert ((), True) == (table.problems, table.complete)
    unkilled = {row.mutant.name for row in table.rows if row.kill is None}
    assert {"make: measure and oil change places", "fail: tidy and empty change places"} == unkilled


def test_a_useless_rule_is_told():
    """A rule that the others imply can be removed, and its scope changed, without anything noticing."""
    told = table_of(TOY + IDLE_RULE).problems
    assert told
    assert all(problem.startswith("E: ") for problem in told)
    assert "E: removed: nothing would notice; say why it is so in a property, or drop it" == told[0]


def test_an_order_that_nobody_declared_free_is_told():
    """Two steps that may change places stand in an order that is a mere habit."""
    (told,) = planted('free = [["measure", "oil"]]\n', "").problems
    assert told.startswith("make: measure and oil change places: nothing would notice; say why it is so")


def test_a_stale_declaration_of_a_free_order_is_told():
    """What is declared free must be: here a rule refuses."""
    (told,) = planted('[["measure", "oil"]]', '[["measure", "oil"], ["build", "tidy"]]').problems
    assert told.startswith("make: build and tidy change places: declared free, but it is law: rule D refuses make")


def test_an_order_of_cleanup_that_is_law_is_found_by_a_property():
    """Nobody else permutes cleanup, so it is explored: emptying leaves the bench busy, and must come first."""
    text = TOY.replace("set = { held = 0 } }", "set = { held = 0 }, mode = { busy = true } }")
    text = text.replace('finally = ["tidy", "empty"]\nfree = [["tidy", "empty"]]', 'finally = ["empty", "tidy"]')
    (row,) = [row for row in table_of(text).rows if row.mutant.name == "fail: empty and tidy change places"]
    assert ("property", "over", None) == (row.kill.by, row.kill.what, row.problem)


def test_a_step_that_nothing_needs_is_told():
    """It may be left out, and stand anywhere."""
    taken = TOY.replace('steps = ["measure"', 'steps = ["polish", "measure"')
    table = table_of(taken.replace("oil = {", 'polish = { event = "polished" }\noil = {'))
    told = {row.mutant.name for row in table.rows if row.problem}
    assert {"make: without polish", "make: polish and measure change places"} <= told


def test_a_law_that_is_broken_itself_has_no_table():
    """Where a property breaks without any change, or the declared steps are refused, no row would mean anything."""
    table = planted('finally = ["tidy", "empty"]\nfree = [["tidy", "empty"]]', 'finally = ["empty"]')
    assert ((), False) == (table.rows, table.complete)
    assert ("the law itself: over in 3 moves, with no collaborator",) == table.problems
    refused = planted('["measure", "oil", "build"', '["oil", "build", "measure"')
    assert refused.problems[0].startswith("the law itself: rule A refuses build")


@pytest.mark.no_cover
def test_a_sample_of_decode_is_killed_by_what_should():
    """Loader, declared course and properties each kill what is theirs; one mutant falls only if variants are warmed."""
    kills = {row.mutant.name: row.kill for row in kill_table(settings("decode"), only=[*SAMPLE, *FREE]).rows}
    assert {*SAMPLE, *FREE} == set(kills)
    assert [] == [name for name, (by, what) in SAMPLE.items() if kills[name].by != by or what not in kills[name].what]
    assert [None, None] == [kills[name] for name in FREE]
    assert 'warmup.per = "variant"' == kills["bind: without bind_mask"].setting


def test_settings_are_both_values_of_what_changes_the_law(tmp_path):
    """A file is read with either `warmup.per`, and what refers to it follows."""
    file = tmp_path / "mine.toml"
    file.write_text('extends = "decode"\nname = "mine"\n[warmup]\nper = "variant"\n', encoding="utf-8")
    specs = settings(str(file))
    assert ["", 'warmup.per = "slot"'] == list(specs)
    scopes = [next(rule.scope for rule in spec.rules if rule.id == "W1") for spec in specs.values()]
    assert ["variant", "slot"] == scopes


def test_a_table_is_plain_data_too():
    """For JSON: each mutant with its kill."""
    told = table_of(TOY).as_dict()
    (row,) = [row for row in told["mutants"] if (row["subject"], row["what"]) == ("A", "removed")]
    assert ("toy", True, ()) == (told["spec"], told["complete"], told["problems"])
    assert ("rule removed", "removed", False, None) == (row["kind"], row["what"], row["free"], row["problem"])
    assert ("property", "measures") == (row["kill"]["by"], row["kill"]["what"])
