"""Reading what an engine observed."""

import json

import pytest

from tsgraph import events
from tsgraph.dispatch.observations import parse_observations, read_observations
from tsgraph.errors import CallerError


def steps_of(text, **words):
    """The steps of a text, by variant and rows."""
    return parse_observations(text, **words).steps


def lines(*records):
    """One JSON object a line."""
    return "".join(f"{json.dumps(record)}\n" for record in records)


def test_a_histogram_in_json():
    """Steps by rows, flat or by variant, and the width of speculation."""
    flat = parse_observations('{"rows": {"7": 2, "1": 12}, "tokens_per_request": 4}')
    assert (4, {"default": {1: 12, 7: 2}}, ()) == (flat.tokens_per_request, flat.steps, flat.notes)
    assert {"default": {}, "greedy": {3: 1}} == steps_of('{"rows": {"greedy": {"3": 1}}}')


def test_the_callers_width_goes_before_the_files():
    """A width that is asked for takes the place of the one in the file."""
    assert (
        2 == parse_observations('{"rows": {"1": 1}, "tokens_per_request": 4}', tokens_per_request=2).tokens_per_request
    )


def test_a_histogram_in_csv():
    """A header and lines, with variants where they matter; a line without a number of steps is one step."""
    assert {"default": {1: 120, 7: 31}} == steps_of("rows,steps\n1,120\n7,31\n")
    assert {"default": {2: 1}, "b": {2: 2}} == steps_of("variant, rows\nb, 2\n, 2\nb, 2\n")


def test_a_log_of_steps():
    """Each line of a scheduler's log that has rows is one step, whatever else it says."""
    text = lines({"rows": 3, "event": "step", "level": "info"}, {"rows": 3, "variant": "b"}, {"rows": 9, "steps": 5})
    assert {"default": {3: 1, 9: 5}, "b": {3: 1}} == steps_of(text)
    assert steps_of(text) == steps_of(json.dumps([json.loads(line) for line in text.splitlines()]))
    assert {"default": {3: 1}} == steps_of('{"rows": 3}')
    assert {"default": {3: 2}} == steps_of('{"rows": 3}\n\n{"rows": 3}\n')


def test_only_decode_steps_count():
    """Other modes have no slots; lines without rows are no steps. How many were left out is told."""
    seen = parse_observations(lines({"rows": 3, "mode": "decode"}, {"rows": 500, "mode": "extend"}, {"event": "start"}))
    assert {"default": {3: 1}} == seen.steps
    assert ("left out: 2 records that are no decode step",) == seen.notes


@pytest.mark.parametrize("event", [events.DISPATCH_REASON_CHANGED, events.CAPTURE_FINISHED, "slot.captured"])
def test_the_runtimes_own_events_are_no_steps(event):
    """They tell changes: one line for any number of steps."""
    assert {"default": {3: 1}} == steps_of(lines({"rows": 3}, {"event": event, "rows": 170}))
    with pytest.raises(CallerError, match="no decode step with its rows") as caught:
        parse_observations(lines({"event": event, "rows": 170}))
    assert "changes, not steps" in caught.value.hint


def test_tokens_are_rows_of_so_many_tokens():
    """A row that is not full counts, and the widest rank decides (R27)."""
    text = lines({"tokens": 9}, {"tokens": [4, 12, 0]}, {"rows": [2, 1]})
    assert {"default": {2: 1, 3: 2}} == steps_of(text, tokens_per_request=4)


def snapshot(steps, **rest):
    """What a runtime tells that has served `steps`."""
    return {"rows": steps, "slots": [], "tokens_per_request": 1, "ranks": 1, "counters": {}, **rest}


def test_a_snapshot_has_the_histogram():
    """Exactly, with the width of speculation, and what it tells of its slots, however it is laid out."""
    told = snapshot({"default": {"5": 2}, "b": {}}, tokens_per_request=4, slots=[{"size": 8}])
    for text in (json.dumps(told), json.dumps(told, indent=2), json.dumps([told]), json.dumps({"snapshot": told})):
        seen = parse_observations(text)
        assert ({"default": {5: 2}, "b": {}}, 4, ()) == (seen.steps, seen.tokens_per_request, seen.notes)
        assert ({"size": 8},) == seen.slots


def test_of_snapshots_in_a_log_the_last_one_counts():
    """Each tells all steps so far, so neither earlier ones nor single steps beside them are added."""
    early, late = snapshot({"default": {"5": 2}}), snapshot({"default": {"3": 1, "5": 4}})
    for log in (
        lines({"event": "stats", **early}, {"event": "stats", **late}),
        lines({"snapshot": early}, {"snapshot": late}),
    ):
        assert ({"default": {3: 1, 5: 4}}, ()) == (steps_of(log), parse_observations(log).notes)
    seen = parse_observations(lines({"rows": 5}, late, {"event": "start"}))
    assert {"default": {3: 1, 5: 4}} == seen.steps
    assert ("left out: records beside snapshots, which tell all steps: 2",) == seen.notes


def test_a_runtime_that_began_anew_adds_to_the_one_before():
    """A count that is less than before is another runtime's; that is told."""
    tables = ({"5": 2}, {"5": 9}, {"3": 1}, {"3": 2, "5": 9})
    seen = parse_observations(lines(*(snapshot({"default": table}) for table in tables)))
    assert {"default": {3: 2, 5: 18}} == seen.steps
    assert ("snapshots of 2 runtimes: where a count is less than before, another began",) == seen.notes


def test_one_rank_of_several_is_told():
    """Its own rows need not be those that picked the sizes (R27)."""
    (note,) = parse_observations(json.dumps(snapshot({"default": {"5": 2}}, ranks=2))).notes
    assert note.startswith("of one rank of 2: the widest picks the size")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no decode step with its rows (records: 0)"),
        ("{", "line 1 is no JSON"),
        ('{"rows": 1}\nstep rows=2\n', "line 2 is no JSON"),
        ("[1]", "record 1 is no JSON object: 1"),
        ("rows,count\n1,2\n", "known columns: count"),
        ("event='step' rows=3\n", "known columns: event"),
        ('{"rows": {"a": 1}}', "'a' is no count"),
        ('{"rows": {"b": {"1": 1}, "2": 3}}', "rows of variant '2': expected steps by rows, not 3"),
        ('{"rows": {"1": 1}, "widht": 4}', "but this one has widht"),
        ('{"replays": 3, "pad_rows": 2, "eager": {}}', "counters are totals"),
        ("rows,steps\n1,2,3\n", "line 2 has more cells than the header"),
        ('{"rows": 1, "variant": 3}', "line 1: 3 is no name of a variant"),
        ('{"rows": 1.5}', "line 1: 1.5 is no count"),
        ('{"rows": 0}', "no decode step with a row"),
        ('{"rows": {"1": 1}, "tokens_per_request": 0}', "tokens per request"),
        ('{"slots": [], "counters": []}', "no decode step"),
        ('{"slots": [], "rows": {"default": {}}}', "no decode step with a row"),
        ('{"slots": [], "rows": {"default": {"1": 1}, "b": 2}}', "the snapshot: rows of variant 'b': expected steps"),
        ('{"slots": [], "rows": {"1": 1}, "tokens_per_request": [4]}', "tokens per request"),
        (" \n", "no decode step with its rows (records: 0)"),
        ("[" * 100_000, "neither JSON nor CSV"),
        ('{"rows":' * 100_000, "line 1 is no JSON"),
        ('{"rows": {"1": ' + "9" * 400 + "}}", "are not two counts"),
        ('{"rows": {"' + "9" * 5000 + '": 1}}', "is no count"),
        ('{"rows": ' + "9" * 5000 + "}", "line 1 is no JSON"),
    ],
)
def test_what_cannot_be_read_is_named(text, says):
    """A typed error with the source, the place and what to give instead."""
    with pytest.raises(CallerError) as caught:
        parse_observations(text, source="seen.json")
    assert caught.value.what.startswith("seen.json: ")
    assert says in caught.value.what
    assert caught.value.hint


def test_a_file_is_read(tmp_path):
    """UTF-8, with or without a mark at its begin; what is no text is a typed error with the path."""
    (tmp_path / "seen.csv").write_text("\ufeffrows\n3\n", encoding="utf-8")
    assert {3: 1} == read_observations(tmp_path / "seen.csv").total
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    for name in ("raw", "nowhere"):
        with pytest.raises(CallerError, match=f"{name} cannot be read"):
            read_observations(tmp_path / name)
