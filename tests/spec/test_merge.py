from __future__ import annotations

import pytest

from tsgraph.errors import SpecError
from tsgraph.spec import load_spec
from tsgraph.spec.merge import merged
from tsgraph.spec.model import AtLeast, CounterIs, Pad


@pytest.fixture
def extending(tmp_path):
    """`extending(text)`: the spec of a file that extends decode and says `text` too."""

    def load(text, name="mine.toml"):
        file = tmp_path / name
        file.write_text(f'extends = "decode"\nname = "mine"\n{text}', encoding="utf-8")
        return load_spec(file)

    return load


def told(load, text):
    """The problems of an extending spec."""
    with pytest.raises(SpecError) as caught:
        load(text)
    return caught.value.problems


def test_everything_is_inherited(extending):
    """A spec that says nothing else is the one that it extends, but for its name."""
    mine, decode = extending(""), load_spec("decode")
    assert "mine" == mine.name
    assert (decode.lifecycle, decode.steps, decode.rules, decode.properties) == (
        mine.lifecycle,
        mine.steps,
        mine.rules,
        mine.properties,
    )
    assert (decode.buffers, decode.sizes, decode.policy) == (mine.buffers, mine.sizes, mine.policy)


def test_tables_merge_deeply(extending):
    """What is not named stays; a scalar and a list replace."""
    mine = extending('[buffers.seq_lens]\nwhy = "mine"\nread_by = ["host"]\n[warmup]\nforwards = 2\n')
    inherited = load_spec("decode").buffers["seq_lens"]
    lens = mine.buffers["seq_lens"]
    assert ("mine", ("host",)) == (lens.why, lens.read_by)
    assert (inherited.pad, inherited.dtype, inherited.warm) == (lens.pad, lens.dtype, lens.warm)
    assert 2 == mine.warmup.forwards


def test_references_follow_the_change(extending):
    """Numbers by address are resolved in the merged spec."""
    mine = extending("[warmup]\nforwards = 9\n")
    assert 9 == mine.lifecycle.transition("warm").repeat
    assert AtLeast("forward", 9) == next(rule for rule in mine.rules if rule.id == "W1").condition


def test_entries_merge_by_identity(extending):
    """A rule by `id`, a transition by `on`, in their places; new ones come last."""
    text = """
    [[transitions]]
    on = "bind"
    steps = ["reset_sampler", "synchronize", "meet_ranks", "bind_metadata", "prepare_sampler", "bind_metadata"]
    free = []
    [[rules]]
    id = "R7"
    fix = "mine"
    [[rules]]
    id = "M1"
    guards = ["bind"]
    kind = "after"
    event = "synchronized"
    than = "forward"
    because = "mine"
    fix = "mine"
    """
    mine, decode = extending(text), load_spec("decode")
    assert [rule.id for rule in decode.rules] + ["M1"] == [rule.id for rule in mine.rules]
    assert ("mine", decode.rules[3].because) == (mine.rules[3].fix, mine.rules[3].because)
    bind = mine.lifecycle.transition("bind")
    assert (6, ("warmed",)) == (len(bind.steps), bind.source)
    assert [t.on for t in decode.lifecycle.transitions] == [t.on for t in mine.lifecycle.transitions]


def test_a_rule_of_another_kind_forgets_its_condition(extending):
    """The words of the old kind would be unknown keys of the new one."""
    mine = extending('[[rules]]\nid = "R7"\nneeds = "grammar"\nkind = "counter"\ncounter = "grammar"\nequals = 1\n')
    assert CounterIs("grammar", 1) == mine.rules[3].condition


def test_a_pad_may_become_a_sink_and_back(extending):
    """A value and a table do not merge; one replaces the other."""
    mine = extending('[buffers]\nrequest_pool = { pad = { sink = "s" } }\ncache_locations = { pad = -1 }\n')
    assert (Pad(sink="s"), Pad(value=-1)) == (mine.buffers["request_pool"].pad, mine.buffers["cache_locations"].pad)


def test_entries_are_removed(extending):
    """A rule by its id, a transition by its trigger, a buffer, output, or one of a step's counts by its key."""
    text = """
    [[rules]]
    id = "R43"
    remove = true
    [[properties]]
    id = "P16"
    remove = true
    [[transitions]]
    on = "retire"
    remove = true
    [lifecycle]
    final = []
    states = ["allocated", "warmed", "metadata_bound", "captured", "replayable", "stale", "failed", "released"]
    [[properties]]
    id = "P4"
    when = ["replayable", "failed"]
    [[properties]]
    id = "P5"
    when = ["captured", "replayable", "failed"]
    [[properties]]
    id = "P11"
    when = ["replayable", "failed"]
    [[properties]]
    id = "P17"
    when = ["failed", "released"]
    [buffers]
    shifted_ids = { remove = true }
    [outputs.logprobs]
    remove = true
    """
    mine = extending(text)
    assert "R43" not in {rule.id for rule in mine.rules}
    assert "retire" not in {transition.on for transition in mine.lifecycle.transitions}
    assert "shifted_ids" not in mine.buffers
    assert {"tokens", "accept_lengths"} == set(mine.outputs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[rules]]\nid = "R99"\nremove = true\n', "rules[R99]: there is nothing to remove; did you mean 'R9b'?"),
        (
            "[buffers]\nseq_len = { remove = true }\n",
            "buffers.seq_len: there is nothing to remove; did you mean 'seq_lens'?",
        ),
        (
            '[[rules]]\nid = "R43"\nremove = true\nfix = "x"\n',
            "rules[R43]: an entry that is removed says nothing else, but has fix",
        ),
        ('[[rules]]\nid = "R7"\nremove = false\n', "rules[R7].remove: unknown key"),
        ('[[rules]]\nfix = "x"\n', "rules[33].id: missing"),
    ],
)
def test_what_cannot_be_merged_is_a_problem(extending, text, expected):
    """A removal of nothing, a removal that says more, an entry without identity."""
    assert expected in told(extending, text)


def test_an_entry_that_stands_twice_is_told(extending):
    """Two entries with one id in one file are not merged into one another."""
    text = '[[rules]]\nid = "R7"\nfix = "x"\n[[rules]]\nid = "R7"\nfix = "y"\n'
    assert "rules[R7].guards: missing" in told(extending, text)


def test_a_removed_step_leaves_dangling_names(extending):
    """Removing is checked like anything else."""
    problems = told(extending, "[steps]\narm_comm = { remove = true }\n")
    assert "transitions[capture].steps: unknown step 'arm_comm'" in problems
    assert "rules[C3].event: no step appends 'comm_armed'" in problems


def test_extends_takes_a_path_beside_the_file(tmp_path, extending):
    """A relative path begins where the extending file lies; chains are followed."""
    extending("[warmup]\nforwards = 3\n", name="base.toml")
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "top.toml"
    file.write_text('extends = "../base.toml"\nname = "top"\n', encoding="utf-8")
    assert ("top", 3) == (load_spec(file).name, load_spec(file).warmup.forwards)


def test_a_missing_base_is_the_only_problem(tmp_path):
    """Nothing else can be judged without it."""
    file = tmp_path / "mine.toml"
    file.write_text('extends = "decoed"\nnme = "x"\n', encoding="utf-8")
    with pytest.raises(SpecError, match=r"extends: file: there is no such spec; did you mean 'decode'\?") as caught:
        load_spec(file)
    assert 1 == len(caught.value.problems)


def test_a_base_of_a_wrong_type_is_told(small, problems):
    """`extends` is one name."""
    assert ("extends: expected a shipped name or a path, got a list",) == problems({**small, "extends": ["decode"]})


def test_a_cycle_is_told_in_order(tmp_path):
    """a extends b extends a."""
    files = [tmp_path / "a.toml", tmp_path / "b.toml"]
    for file, other in zip(files, reversed(files), strict=True):
        file.write_text(f'extends = "{other.name}"\n', encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_spec(files[0])
    chain = " extends ".join(str(file) for file in (*files, files[0]))
    assert (f"extends: a cycle: {chain}",) == caught.value.problems


def test_a_syntax_error_of_the_base_is_told(tmp_path):
    """The base's problem is the extending file's problem."""
    (tmp_path / "base.toml").write_text("x = = 1", encoding="utf-8")
    file = tmp_path / "mine.toml"
    file.write_text('extends = "base.toml"', encoding="utf-8")
    with pytest.raises(SpecError, match=r"extends: syntax: Invalid value \(at line 1, column 5\)"):
        load_spec(file)


def test_merging_changes_neither_side():
    """The result is new data."""
    base = {"rules": [{"id": "A", "n": 1}], "t": {"x": 1}}
    over = {"rules": [{"id": "A", "n": 2}, {"id": "B"}], "t": {"y": 2}}
    result, problems = merged(base, over)
    assert ({"rules": [{"id": "A", "n": 2}, {"id": "B"}], "t": {"x": 1, "y": 2}}, []) == (result, problems)
    assert {"rules": [{"id": "A", "n": 1}], "t": {"x": 1}} == base


def test_the_speculative_spec_pads_with_the_sentinel():
    """R31, B7: with a drafter in the graph, pad rows point at the row that is never written."""
    assert Pad(sink="sentinel") == load_spec("speculative").buffers["request_pool"].pad
