"""Random numbers in a recording: fresh at each replay, and the same again from the same seed, as CUDA's are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.graph import EmulatedGraph

Draw = Callable[[torch.Tensor, torch.Generator | None], torch.Tensor]
Drawn = Callable[..., tuple[EmulatedGraph, torch.Tensor]]

DRAWS: dict[str, Draw] = {
    "rand": lambda x, g: torch.rand(64, device=x.device, generator=g),
    "randn": lambda x, g: torch.randn(64, device=x.device, generator=g),
    "randint": lambda x, g: torch.randint(0, 1000, (64,), device=x.device, generator=g),
    "randperm": lambda x, g: torch.randperm(64, device=x.device, generator=g),
    "normal": lambda x, g: torch.normal(0.0, 1.0, (64,), device=x.device, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(x, generator=g),
    "multinomial": lambda x, g: torch.multinomial(x, 64, replacement=True, generator=g),
    "poisson": lambda x, g: torch.poisson(x * 100, generator=g),
    "normal_": lambda x, g: torch.empty_like(x).normal_(generator=g),
    "uniform_": lambda x, g: torch.empty_like(x).uniform_(generator=g),
    "random_": lambda x, g: torch.empty_like(x).random_(generator=g),
    "exponential_": lambda x, g: torch.empty_like(x).exponential_(generator=g),
    "out": lambda x, g: torch.rand(64, generator=g, out=torch.empty_like(x)),
}
UNSEEDED: dict[str, Draw] = {
    "rand_like": lambda x, g: torch.rand_like(x),
    "dropout": lambda x, g: functional.dropout(x, 0.5),
    "rrelu": lambda x, g: functional.rrelu(-x, training=True),
}


@pytest.fixture
def x() -> torch.Tensor:
    """Probabilities."""
    return torch.full((64,), 0.5)


@pytest.fixture
def drawn(x: torch.Tensor) -> Drawn:
    """Records a draw; gives the graph and what it fills."""
    backend = EmulatedBackend()
    backend.adopt([x])

    def drawn(draw: Draw, generator: torch.Generator | None = None) -> tuple[EmulatedGraph, torch.Tensor]:
        with backend.record(backend.pool()) as graph:
            made = draw(x, generator)
        return graph, made

    return drawn


def replays(graph: EmulatedGraph, made: torch.Tensor, times: int = 3) -> list[list[float]]:
    """What each of some replays fills it with."""
    filled = []
    for _ in range(times):
        graph.replay()
        filled.append(made.tolist())
    return filled


@pytest.mark.parametrize("name", [*DRAWS, *UNSEEDED])
def test_fresh_numbers_and_the_same_sequence_from_the_same_seed(drawn: Drawn, name: str) -> None:
    """No two replays are alike; after the same seed the sequence of replays is, after another seed it is not."""
    graph, made = drawn((DRAWS | UNSEEDED)[name])
    sequences = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        sequences.append(replays(graph, made))
    assert 3 == len(set(map(tuple, sequences[0])))
    assert sequences[0] == sequences[1]
    assert not [one for one, other in zip(sequences[0], sequences[2], strict=True) if one == other]


@pytest.mark.parametrize("name", DRAWS)
def test_a_given_generator_is_drawn_from_and_no_other(drawn: Drawn, name: str) -> None:
    """Its own seed starts its sequence again, and the default generator stays where it is."""
    generator = torch.Generator()
    graph, made = drawn(DRAWS[name], generator)
    before = torch.get_rng_state()
    sequences = []
    for seed in (3, 3, 4):
        generator.manual_seed(seed)
        sequences.append(replays(graph, made))
    assert (True, False) == (sequences[0] == sequences[1], sequences[0] == sequences[2])
    assert torch.equal(before, torch.get_rng_state())


def test_graphs_and_eager_code_draw_from_one_sequence(drawn: Drawn) -> None:
    """Whoever draws moves the generator on, so no two draw the same, and the whole repeats from the seed."""
    (one, made), (other, also) = drawn(DRAWS["rand"]), drawn(DRAWS["rand"])

    def run() -> list[list[float]]:
        torch.manual_seed(0)
        return [*replays(one, made), *replays(other, also), torch.rand(64).tolist(), *replays(one, made, 1)]

    first = run()
    assert 8 == len(set(map(tuple, first)))
    assert first == run()


def test_a_saved_state_brings_the_numbers_back(drawn: Drawn) -> None:
    """`get_rng_state` and `set_rng_state` around replays work as around eager code."""
    graph, made = drawn(DRAWS["randn"])
    graph.replay()
    state = torch.get_rng_state()
    expected = replays(graph, made)
    torch.set_rng_state(state)
    assert expected == replays(graph, made)


def test_forked_numbers_leave_no_trace(drawn: Drawn) -> None:
    """Replays inside `fork_rng` do not move the generator outside it."""
    graph, made = drawn(DRAWS["rand"])
    torch.manual_seed(5)
    expected = replays(graph, made)
    torch.manual_seed(5)
    with torch.random.fork_rng():
        graph.replay()
    assert expected == replays(graph, made)


def test_the_seed_at_recording_does_not_matter(drawn: Drawn) -> None:
    """Recordings under two seeds replay the same numbers from a third."""
    sequences = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        graph, made = drawn(DRAWS["bernoulli"])
        torch.manual_seed(9)
        sequences.append(replays(graph, made))
    assert sequences[0] == sequences[1]
