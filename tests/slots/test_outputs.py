"""Outputs: marks, ambiguity, and cutting to live rows (rule R40)."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from tsgraph.errors import ContractViolation
from tsgraph.slots.outputs import OutputMarks


class Pair(NamedTuple):
    """Outputs with names."""

    tokens: torch.Tensor
    lengths: torch.Tensor


def test_one_word_marks_every_leaf():
    """A word for all cuts every leaf of any nesting, and keeps the nesting."""
    returned = {"a": torch.arange(4), "b": (torch.zeros(4, 2), None)}
    cut = OutputMarks("request").bind(returned, rows=4, tokens=4).cut(3)
    assert (3, (3, 2), None) == (len(cut["a"]), tuple(cut["b"][0].shape), cut["b"][1])


def test_marks_nest_like_the_outputs():
    """Per-token, per-request and whole leaves are each cut in their own way, in tuples that name their fields too."""
    returned = Pair(torch.arange(8), torch.arange(4))
    cut = OutputMarks({"tokens": "token", "lengths": "request"}).bind(returned, rows=4, tokens=8).cut(3)
    assert (Pair, 6, 3) == (type(cut), len(cut.tokens), len(cut.lengths))


def test_whole_leaves_are_not_cut():
    """A leaf marked whole is given as it is."""
    whole = torch.arange(4)
    assert OutputMarks("whole").bind(whole, rows=4, tokens=4).cut(1) is whole


def test_cut_outputs_are_views_of_static_memory():
    """Cutting copies nothing: the next replay writes the same memory."""
    leaf = torch.arange(4)
    assert leaf.data_ptr() == OutputMarks("request").bind(leaf, rows=4, tokens=4).cut(2).data_ptr()


def test_an_unmarked_leaf_that_could_be_rows_is_refused():
    """Guessing would hand pad rows to the caller, so it is an error that names the leaf and says what to declare."""
    with pytest.raises(ContractViolation, match=r"output\['logits'\].*a mark.*\n.*outputs='request'"):
        OutputMarks(None).bind({"logits": torch.zeros(4, 9)}, rows=4, tokens=8)


def test_an_unmarked_leaf_that_cannot_be_rows_is_whole():
    """A leaf whose leading size is neither rows nor tokens needs no mark."""
    scalar = torch.tensor(1.0)
    assert OutputMarks(None).bind(scalar, rows=4, tokens=4).cut(2) is scalar


@pytest.mark.parametrize(
    ("marks", "returned", "text"),
    [
        ("request", torch.zeros(3), "4 leading entries, one per request, got shape \\(3,\\)"),
        ("row", torch.zeros(4), "a mark among request, token, whole"),
        ("request", {"a": 3}, "a tensor or None"),
        ({"a": "request"}, {"a": torch.zeros(4), "b": torch.zeros(4)}, "one that the marks"),
        ({"a": "request", "b": "request"}, {"a": torch.zeros(4)}, "got no b"),
    ],
)
def test_wrong_outputs_are_named(marks, returned, text):
    """A leaf of another shape, an unknown mark, a plain number, an undeclared or missing leaf: each a typed error."""
    with pytest.raises(ContractViolation, match=text):
        OutputMarks(marks).bind(returned, rows=4, tokens=8)


def test_an_optional_output_may_be_missing():
    """An output declared optional need not be returned."""
    marks = OutputMarks({"a": "request", "b": "token"}, optional=frozenset({"b"}))
    assert ["a"] == list(marks.bind({"a": torch.zeros(4)}, rows=4, tokens=4).cut(2))


@given(rows=st.integers(1, 8), tpr=st.integers(1, 4), data=st.data())
def test_live_rows_come_out_whatever_the_size(rows, tpr, data):
    """For any size, tokens per request and live count, exactly the live entries come out."""
    live = data.draw(st.integers(0, rows))
    returned = (torch.arange(rows), torch.arange(rows * tpr))
    requests, tokens = OutputMarks(("request", "token")).bind(returned, rows=rows, tokens=rows * tpr).cut(live)
    assert (list(range(live)), list(range(live * tpr))) == (requests.tolist(), tokens.tolist())


@pytest.mark.parametrize(
    "returned",
    [
        torch.zeros(4),
        (torch.zeros(4), None),
        Pair(torch.zeros(4), torch.zeros(4)),
        {"a": torch.zeros(4), "b": None},
        [torch.zeros(4), torch.zeros(4)],
        {"a": [torch.zeros(4)], "b": {"c": (torch.zeros(4),)}},
    ],
    ids=["leaf", "tuple", "named", "dict", "list", "nested"],
)
def test_each_call_gets_containers_of_its_own_with_the_same_views(returned):
    """What a caller does to a dict or list that it got, the next does not see; no view is made twice."""
    outputs = OutputMarks("request").bind(returned, rows=4, tokens=4)
    first, again = outputs.cut(3), outputs.cut(3)
    assert type(returned) is type(first)
    assert list(map(id, pytree.tree_leaves(first))) == list(map(id, pytree.tree_leaves(again)))
    for got in (first, first["b"] if isinstance(first, dict) else None):
        if isinstance(got, dict | list):
            got.clear()
    assert pytree.tree_structure(again) == pytree.tree_structure(outputs.cut(3))
    assert [len(leaf) for leaf in pytree.tree_leaves(outputs.cut(3)) if leaf is not None] == [
        3 for leaf in pytree.tree_leaves(returned) if leaf is not None
    ]
