from __future__ import annotations

import pytest


def renamed(value, old, new):
    """`value` with every text and key `old` called `new`."""
    if isinstance(value, dict):
        return {renamed(key, old, new): renamed(inner, old, new) for key, inner in value.items()}
    if isinstance(value, list):
        return [renamed(inner, old, new) for inner in value]
    return new if value == old else value


NAMES = [
    ("gone", "class", "lifecycle.states: 'class' is no name in Python; use letters, digits and underscores"),
    ("gone", "all gone", "lifecycle.states: 'all gone' is no name in Python; use letters, digits and underscores"),
    ("gone", "state", "lifecycle.states: 'state' is taken; a slot has an attribute of that name"),
    ("gone", "is_gone", "lifecycle.states: 'is_gone' is taken; `transitions` makes names that begin like this"),
    ("expire", "history", "transitions[history].on: 'history' is taken; a slot has an attribute of that name"),
    ("expire", "trigger", "transitions[trigger].on: 'trigger' is taken; a slot has an attribute of that name"),
    ("expire", "may_go", "transitions[may_go].on: 'may_go' is taken; `transitions` makes names that begin like this"),
    ("expire", "if", "transitions[if].on: 'if' is no name in Python; use letters, digits and underscores"),
    ("expire", "go-on", "transitions[go-on].on: 'go-on' is no name in Python; use letters, digits and underscores"),
    ("ids", "rows", "buffers.rows: 'rows' is taken; a batch has an attribute of that name"),
    ("ids", "mask", "buffers.mask: 'mask' is taken; a batch has an attribute of that name"),
    ("ids", "_ids", "buffers._ids: '_ids' is taken; a name that begins with an underscore is private"),
    ("ids", "in", "buffers.in: 'in' is no name in Python; use letters, digits and underscores"),
    ("busy", "not-a-name", "modes.not-a-name: 'not-a-name' is no name in Python; use letters, digits and underscores"),
    ("serve", "def", "steps.def: 'def' is no name in Python; use letters, digits and underscores"),
]


@pytest.mark.parametrize(("old", "new", "expected"), NAMES)
def test_names_that_cannot_be_used_are_told(small, problems, old, new, expected):
    """Names are identifiers and hide no attribute of a slot or a batch."""
    assert (expected,) == problems(renamed(small, old, new))


@pytest.mark.parametrize(
    "word", ["rows", "tokens", "mode", "variant", "buffers", "fixed", "counts", "full_hidden", "mask"]
)
def test_no_buffer_hides_behind_a_word_of_the_batch(small, problems, word):
    """An attribute of the batch would be found in the buffer's place."""
    assert (f"buffers.{word}: {word!r} is taken; a batch has an attribute of that name",) == problems(
        renamed(small, "ids", word) if word != "tokens" else {**small, "buffers": {word: small["buffers"]["ids"]}}
    )
