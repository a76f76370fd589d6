"""Specs to break: a small sound one, and the shipped one as plain data."""

from __future__ import annotations

import copy
import tomllib
from typing import Any

import pytest

from tsgraph.errors import SpecError
from tsgraph.spec import parse_spec, shipped

SMALL = """
name = "small"
version = 1

[lifecycle]
initial = "fresh"
final = ["gone"]
states = ["fresh", "ready", "old", "broken", "gone"]
replays_in = ["ready"]
on_failure = "fail"
on_change = "expire"
on_release = "drop"
on_reset = "reset"

[[transitions]]
on = "make"
from = ["fresh"]
to = "ready"
steps = ["measure", "build"]
repeat = "warmup.forwards"

[[transitions]]
on = "expire"
from = ["ready"]
to = "old"

[[transitions]]
on = "fail"
from = ["fresh"]
to = "broken"
finally = ["tidy"]

[[transitions]]
on = "drop"
from = ["ready", "old", "broken"]
to = "gone"

[[transitions]]
on = "reset"
from = ["old", "broken"]
to = "fresh"

[counters]
held = { counts = "what it holds", floor = 0, needs = "grammar" }

[modes]
busy = { scope = "runtime" }

[steps]
measure = { event = "measured", needs = "sampler" }
build = { event = ["built", "rebuilt"], count = { held = 1 }, mode = { busy = true } }
tidy = { event = "tidied", set = { held = 0 }, mode = { busy = false } }
serve = { event = "served" }

[serving]
replay = ["serve"]

[session]

[[rules]]
id = "A"
needs = "sampler"
guards = ["build"]
kind = "after"
event = "measured"
than = "built"
because = "what is built has the measures"
fix = "measure first"

[[rules]]
id = "B"
guards = ["make"]
kind = "at_least"
event = "built"
n = "warmup.forwards"
because = "one build is not enough"
fix = "build again"

[[properties]]
id = "P"
says = "what is ready was built"
when = "ready"
holds = [{ at_least = ["built", 1] }, { counter = ["held", 1], needs = "grammar" }]

[warmup]
forwards = 2

[sizes]
default = [1, "2..4"]
default_without_padding = ["2..8 by 2"]
cap = 8

[buffers]
ids = { dtype = "int32", per = "token", pad = 1 }
places = { dtype = "int64", per = "request", pad = { sink = "nowhere" } }
again = { dtype = "int64", per = "request", pad = -1, mirrors = "places" }

[outputs]
tokens = { per = "token" }

[policy]
"""


@pytest.fixture
def small() -> dict[str, Any]:
    """A small sound spec as plain data."""
    return tomllib.loads(SMALL)


@pytest.fixture(scope="session")
def _decode() -> dict[str, Any]:
    return tomllib.loads(shipped()["decode"].read_text(encoding="utf-8"))


@pytest.fixture
def decode(_decode: dict[str, Any]) -> dict[str, Any]:
    """The shipped decode spec as plain data."""
    return copy.deepcopy(_decode)


def problems_of(data: dict[str, Any]) -> tuple[str, ...]:
    """The problems that loading `data` tells; none if it loads."""
    try:
        parse_spec(data)
    except SpecError as error:
        return error.problems
    return ()


@pytest.fixture
def problems():
    """`problems(data)`: what loading `data` tells."""
    return problems_of
