"""The generator: the same programs for the same seed, and all kinds of them."""

from __future__ import annotations

import pytest

from tests.fidelity.choices import Seeded
from tests.fidelity.generator import KINDS, make, program
from tests.fidelity.program import Program


def test_a_seed_gives_the_same_program_every_time() -> None:
    """Nothing but the seed decides: neither time nor what was generated before."""
    first = [program(seed).to_json() for seed in range(12)]
    assert first == [program(seed).to_json() for seed in reversed(range(12))][::-1]


def test_seeds_differ() -> None:
    """Another seed gives another program."""
    sources = [program(seed).source() for seed in range(12)]
    assert len(set(sources)) == len(sources)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_generated(kind: str) -> None:
    """A program of each kind is Python that observes something, and survives being stored."""
    made = make(Seeded(3), seed=3, kind=kind)
    compile(made.source(), kind, "exec")
    assert any(word in made.source() for word in ("see(", "fact(", "attempt("))
    assert made == Program.from_json(made.to_json())


def test_seeds_reach_every_kind() -> None:
    """Each kind comes now and then; operators, the most of all, do not crowd the others out."""
    weights = {kind: weight for kind, (weight, _) in KINDS.items()}
    assert min(weights.values()) > 0
    assert max(weights.values()) < sum(weights.values()) / 2
