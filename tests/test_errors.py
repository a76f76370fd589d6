"""The tree of errors: the picture in the module's docstring, the classes, and what each of them carries."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from tsgraph import errors
from tsgraph.errors import (
    CallerError,
    ContractViolation,
    IllegalTransition,
    InternalError,
    RuleViolation,
    SpecError,
    TsgraphError,
)

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, TsgraphError)]
DRAWN = re.compile(r"^(?P<branch>[ │├└─]*)(?P<name>[A-Z]\w+)(?: \((?P<builtin>\w+)\))?", re.MULTILINE)


def _drawn_tree() -> dict[str, tuple[str, ...]]:
    """Each class of the docstring's picture, with its bases: the class it hangs from, and the builtin beside it."""
    picture = (inspect.getdoc(errors) or "").split("\n\n")[1]
    path: list[str] = []
    bases: dict[str, tuple[str, ...]] = {}
    for match in DRAWN.finditer(inspect.cleandoc(picture)):
        depth = len(match["branch"]) // 4
        path[depth:] = [match["name"]]
        parent = path[depth - 1] if depth else "Exception"
        bases[match["name"]] = (parent, match["builtin"]) if match["builtin"] else (parent,)
    return bases


def test_docstring_draws_the_classes():
    """The tree in the docstring is the tree of classes, down to the builtin that each can be caught as."""
    actual = {cls.__name__: tuple(base.__name__ for base in cls.__bases__) for cls in CLASSES}

    assert _drawn_tree() == actual


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_says_what_it_is(cls):
    """Every error has a docstring of its own."""
    assert cls.__dict__.get("__doc__")


def test_codes_tell_errors_apart():
    """No two errors share a code, so that a log line names one of them."""
    assert len(CLASSES) == len({cls.code for cls in CLASSES})


def test_message_ends_in_what_to_do():
    """The hint is part of the message and also stands alone; the facts are plain data."""
    error = IllegalTransition("no `drain` in state warmed", hint="capture first", state="warmed")

    assert "no `drain` in state warmed\n  fix: capture first" == str(error)
    assert ("capture first", {"state": "warmed"}) == (error.hint, error.context)


def test_message_without_hint_is_the_fact_alone():
    """Where there is nothing to do about it, the message promises nothing."""
    assert "broken" == str(InternalError("broken"))


def test_rule_violation_names_its_rule():
    """The rule's id is an attribute and a fact of the context."""
    error = RuleViolation("R9 refuses `capture`", rule="R9", hint="bind again", state="metadata_bound")

    assert "R9" == error.rule
    assert {"rule": "R9", "state": "metadata_bound"} == error.context


def test_spec_error_lists_every_problem():
    """All problems stand in the message, counted, each on a line of its own."""
    error = SpecError("decode.toml", ("rules.0.kind: unknown", "sizes.cap: not positive"))

    assert "decode.toml: 2 problems\n  rules.0.kind: unknown\n  sizes.cap: not positive" == str(error)
    assert "decode.toml: 1 problem\n  a: b" == str(SpecError("decode.toml", ("a: b",)))


def test_contract_violation_names_member_and_both_sides():
    """Protocol and member at fault, what was expected and what was got."""
    error = ContractViolation("Sampler", "variants", "a sequence of names", "None")

    assert "Sampler.variants: expected a sequence of names, got None" == str(error)
    assert ("Sampler", "variants") == (error.context["protocol"], error.context["member"])


def test_caller_errors_are_caught_as_one():
    """A caller that treats all its own mistakes alike needs one except clause."""
    with pytest.raises(CallerError):
        raise RuleViolation("no", rule="R9")


@pytest.mark.parametrize(
    "error",
    [
        SpecError("decode.toml", ("a: b",)),
        RuleViolation("no", rule="R9", hint="bind"),
        ContractViolation("Sampler", "variants", "names", "None", hint="return a list"),
        InternalError("broken", slot="default/16"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error):
    """An error crosses a process boundary (a worker, a data loader) with its facts."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 — our own bytes

    assert (str(error), vars(error)) == (str(copy), vars(copy))
