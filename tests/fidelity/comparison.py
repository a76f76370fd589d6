"""Compares what was observed on a GPU with what was observed under emulation, and explains differences.

Integers and exact floats are compared bit by bit, other floats by tolerance, errors by class, stage and line; open
values (see `may_alias`) not at all, and indices of equal elements as far as torch says which (see `ties`). A difference
is explained only by an entry of `explained.toml`; what follows an explained error in a program is its consequence and
not compared, nor are the values of a call that draws other inputs, or is random on one side alone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.fidelity import samples, ties
from tests.fidelity.may_alias import open_lines
from tests.fidelity.program import Program
from tests.fidelity.verdicts import classify_words, coarse

Observation = Mapping[str, Any]
TOLERANCES = {"exact": 0.0, "float": 2e-5, "half": 2e-2}
LEAST_SIZE = 1e-2  # results this small are what numbers of size one left when they cancelled
EXPLAINED = Path(__file__).with_name("explained.toml")
NOTHING: Observation = {}
_OF_CUDA = ("AcceleratorError", "RuntimeError")  # an older recording may lack a class for their words
_DECIDING = ("inputs", "random")  # facts by which a sample's program goes on, or does not
_ENDINGS = ("observation", "error", *_DECIDING)


@attrs.frozen
class Difference:
    """One field of one observation, as each side has it; `code` is the line of the program that it is about."""

    kind: str
    of: str
    field: str
    cuda: str
    emulated: str
    code: str
    source: str = attrs.field(default="", repr=False)  # of the whole program
    task: str = ""  # which one it is

    def __str__(self) -> str:
        return f"{self.field} of {self.of!r}: {self.cuda} on CUDA, {self.emulated} emulated, at: {self.code}"


@attrs.frozen
class Explanation:
    """A difference that is meant or cannot be helped: patterns that it matches whole, and why."""

    name: str
    reason: str
    patterns: dict[str, re.Pattern[str]]

    def covers(self, difference: Difference) -> bool:
        """Whether it explains this difference."""
        return all(pattern.fullmatch(getattr(difference, field)) for field, pattern in self.patterns.items())


@attrs.define
class Outcome:
    """How one program compared."""

    equal: int = 0
    open: int = 0
    explained: list[tuple[str, Difference]] = attrs.field(factory=list)
    unexplained: list[Difference] = attrs.field(factory=list)


def explanations(path: Path = EXPLAINED) -> list[Explanation]:
    """The table of explained differences."""
    entries = tomllib.loads(path.read_text())["explained"]
    return [_explanation(**entry) for entry in entries]


def _explanation(name: str, reason: str, **patterns: str) -> Explanation:
    return Explanation(name, reason, {field: re.compile(each, re.DOTALL) for field, each in patterns.items()})


def compare(
    kind: str,
    program: Program | None,
    cuda: Sequence[Observation],
    emulated: Sequence[Observation],
    table: Sequence[Explanation],
    task: str = "",
) -> Outcome:
    """How two runs of a program compare; without one, of something else that was observed. `task` is its title."""
    outcome = Outcome()
    lines = program.source().splitlines() if program else []
    free = open_lines(program, cuda) if program else set()
    ours = {_key(each): each for each in emulated}
    theirs = {_key(each): each for each in cuda}
    for key in [*theirs, *(key for key in ours if key not in theirs)]:
        left, right = theirs.get(key, NOTHING), ours.get(key, NOTHING)
        if key[0] in free or key[1].startswith("may "):
            outcome.open += 1
            continue
        code = _code(lines, left, right)
        found = [Difference(kind, key[1], *each, code, "\n".join(lines), task) for each in _fields(left, right)]
        if [each.field for each in found] == ["values"] and _is_tie(task, key[1], cuda, emulated):
            outcome.open += 1
            continue
        if not found:
            outcome.equal += 1
        for difference in found:
            _note(outcome, difference, table)
        if any(each.field in _ENDINGS for each in found):
            break  # what follows is a consequence
    return outcome


def _is_tie(task: str, of: str, cuda: Sequence[Observation], emulated: Sequence[Observation]) -> bool:
    """Whether these are indices that differ, of which both sides' name elements of the values that they agree on."""
    kind, _, name = task.partition(" ")
    if kind != "sample" or of != ties.INDICES or name.partition(" ")[0] not in ties.OPERATORS:
        return False
    sample = samples.find(name)
    return sample is not None and all(ties.name_equal_elements(sample, observed) for observed in (cuda, emulated))


def _note(outcome: Outcome, difference: Difference, table: Sequence[Explanation]) -> None:
    name = next((each.name for each in table if each.covers(difference)), None)
    if name is None:
        outcome.unexplained.append(difference)
    else:
        outcome.explained.append((name, difference))


def _key(observation: Observation) -> tuple[int, str]:
    return observation["line"], observation["of"]


def _code(lines: Sequence[str], left: Observation, right: Observation) -> str:
    number = left.get("at") or right.get("at") or left.get("line") or right.get("line") or 0
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def _fields(left: Observation, right: Observation) -> Iterator[tuple[str, str, str]]:
    """The fields that differ, and what each side says."""
    if not left or not right or left["is"] != right["is"]:
        yield "observation", _brief(left), _brief(right)
    elif left["is"] == "value":
        yield from _values(left, right)
    elif left["is"] == "fact":
        if left["value"] != right["value"]:
            yield left["of"] if left["of"] in _DECIDING else "fact", str(left["value"]), str(right["value"])
    else:
        yield from _errors(left, right)


def _values(left: Observation, right: Observation) -> Iterator[tuple[str, str, str]]:
    for field in ("dtype", "shape"):
        if left.get(field) != right.get(field):
            yield field, str(left.get(field)), str(right.get(field))
            return
    if not _close(left["values"], right["values"], TOLERANCES[left.get("tolerance", "exact")]):
        yield "values", str(left["values"]), str(right["values"])


def _close(left: Any, right: Any, tolerance: float) -> bool:
    if isinstance(left, str) or isinstance(right, str) or len(left) != len(right):
        return bool(left == right)
    sizes = [abs(each) for each in left if isinstance(each, float)]
    slack = tolerance * max([LEAST_SIZE, *sizes])
    return all(_near(one, other, slack) for one, other in zip(left, right, strict=True))


def _near(one: Any, other: Any, slack: float) -> bool:
    if isinstance(one, str) or isinstance(other, str):  # not finite
        return bool(one == other)
    return bool(one == other) or abs(one - other) <= slack


def _errors(left: Observation, right: Observation) -> Iterator[tuple[str, str, str]]:
    if (left["first"] is None) != (right["first"] is None):
        yield "error", _brief(left), _brief(right)
        return
    if left["first"] is None:
        return
    for field in ("first", "last"):
        if _class(left, field) != _class(right, field):
            yield field, f"{left[field]} ({left['says']})", f"{right[field]} ({right['says']})"
    for field in ("stage", "at", "on_default_stream"):
        if left[field] != right[field]:
            yield field, str(left[field]), str(right[field])


def _class(observation: Observation, field: str) -> str:
    """The class that is compared; what has none of its own is told apart by the error's type."""
    name = str(observation[field])
    if name == "other":
        kind, _, words = observation["says"].partition(": ")
        found = classify_words(words) if kind in _OF_CUDA and observation["first"] == "other" else "other"
        name = f"other {kind}" if found == "other" else found
    return coarse(name)


def _brief(observation: Observation) -> str:
    if not observation:
        return "nothing"
    if observation["is"] == "error":
        return f"{observation['first']} ({observation['says']})" if observation["first"] else "no error"
    return f"{observation['is']} {observation.get('value', observation.get('values'))}"
