"""Problems that every kind of name can have: twice declared, never declared, not usable as a name."""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import attrs

from tsgraph.keys import Batch
from tsgraph.spec.model import COLLABORATORS, POLICIES, Spec
from tsgraph.spec.problems import suggestion

SLOT_WORDS = frozenset({
    "addresses", "batch", "bytes", "can", "cause", "counts", "diagram", "explain", "fire", "forget", "graph", "history",
    "key", "last_failure", "life", "name", "outputs", "scopes", "seconds", "spec", "state", "tickets", "trigger",
    "variant",
})  # fmt: skip
MACHINE_PREFIXES = ("is_", "may_", "to_", "on_enter_", "on_exit_")
BATCH_WORDS = frozenset(attrs.fields_dict(Batch))


def undeclared(at: str, kind: str, words: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """`at: unknown state 'captred'; did you mean 'captured'?` for each word that is not known."""
    for word in dict.fromkeys(words):
        if word not in known:
            yield f"{at}: unknown {kind} {word!r}{suggestion(word, known)}"


def repeated(at: str, words: Iterable[str]) -> Iterator[str]:
    """A problem for each word that stands there twice."""
    for word, times in Counter(words).items():
        if times > 1:
            yield f"{at}: {word!r} is declared {times} times"


def unneeded(at: str, needs: str | None) -> Iterator[str]:
    """A problem if `needs` names neither a collaborator nor a policy."""
    if needs is not None:
        yield from undeclared(f"{at}.needs", "collaborator or policy", [needs], (*COLLABORATORS, *POLICIES))


def check_names(spec: Spec) -> Iterator[str]:
    """Names are identifiers, and hide no attribute.

    Triggers and states stand beside a slot's own attributes (`transitions` skips one that is taken, silently), buffers
    beside a batch's, whose attributes come first.
    """
    for state in spec.lifecycle.states:
        yield from _unusable("lifecycle.states", state, SLOT_WORDS, "a slot")
    for trigger in (transition.on for transition in spec.lifecycle.transitions):
        yield from _unusable(f"transitions[{trigger}].on", trigger, SLOT_WORDS, "a slot")
    for buffer in spec.buffers:
        yield from _unusable(f"buffers.{buffer}", buffer, BATCH_WORDS, "a batch")
    for table in ("steps", "counters", "modes"):
        for name in getattr(spec, table):
            yield from _unusable(f"{table}.{name}", name, frozenset(), "")


def _unusable(at: str, name: str, taken: frozenset[str], whose: str) -> Iterator[str]:
    if not name.isidentifier() or keyword.iskeyword(name):
        yield f"{at}: {name!r} is no name in Python; use letters, digits and underscores"
    elif name.startswith("_"):
        yield f"{at}: {name!r} is taken; a name that begins with an underscore is private"
    elif name in taken:
        yield f"{at}: {name!r} is taken; {whose} has an attribute of that name"
    elif whose == "a slot" and name.startswith(MACHINE_PREFIXES):
        yield f"{at}: {name!r} is taken; `transitions` makes names that begin like this"
