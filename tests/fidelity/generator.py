"""Makes programs: which kinds there are, how often each comes, and one program of a seed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from tests.fidelity.builder import Builder
from tests.fidelity.choices import Choices, Seeded, pick
from tests.fidelity.kinds import memory, random_numbers, refusals, streams, values
from tests.fidelity.program import Program, Statement

Kind = Callable[[Builder], None]

# How often programs are of a kind, against the sum of these numbers.
KINDS: dict[str, tuple[int, Kind]] = {
    "operators": (30, values.operators),
    "modes": (3, values.modes),
    "autocast": (4, values.autocast),
    "rebinding": (3, values.rebinding),
    "host numbers": (4, values.host_numbers),
    "callables": (1, values.callables),
    "pools": (7, memory.pools),
    "in order": (4, memory.in_order),
    "reuse": (2, memory.reuse),
    "lifetimes": (3, memory.lifetimes),
    "pinned": (4, memory.pinned),
    "joined": (6, streams.joined),
    "unjoined": (2, streams.unjoined),
    "aside": (1, streams.aside),
    "events": (2, streams.events),
    "missing wait": (1, streams.missing_wait),
    "warm-up": (1, streams.warm_up),
    "host sync": (4, refusals.host_sync),
    "pageable": (4, refusals.pageable),
    "data dependent": (4, refusals.data_dependent),
    "caught": (1, refusals.caught),
    "exceptions": (1, refusals.exceptions),
    "misuse": (3, refusals.misuse),
    "threads": (2, refusals.threads),
    "gradients": (1, refusals.gradients),
    "draws": (4, random_numbers.draws),
    "generators": (1, random_numbers.generators),
    "two graphs": (1, random_numbers.two_graphs),
}
_INPUT = re.compile(r"(\w+) = torch\.tensor\(")
_BAG = [name for name, (weight, _) in KINDS.items() for _ in range(weight)]


def program(seed: int) -> Program:
    """The program of a seed: the same on every run with one version of torch."""
    return make(Seeded(seed), seed)


def make(choices: Choices, seed: int = 0, kind: str | None = None) -> Program:
    """A program of these choices, of a kind or of any."""
    kind = pick(choices, _BAG) if kind is None else kind
    builder = Builder(choices)
    KINDS[kind][1](builder)
    return Program(kind, seed, _pruned(builder.body))


def _pruned(body: list[Statement]) -> list[Statement]:
    """Without the inputs that nothing uses."""
    text = Program("", 0, body).source()
    used = {name for name, count in Counter(re.findall(r"\w+", text)).items() if count > 1}
    inputs = {each: made[1] for each in body if isinstance(each, str) and (made := _INPUT.match(each))}
    return [each for each in body if not isinstance(each, str) or inputs.get(each, "torch") in used]
