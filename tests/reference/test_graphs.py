"""The engine on real runtimes: captured slots give what eager gives, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tsgraph.keys import Decision, Mode, Reason, Step
from tsgraph.protocols.backend import Backend
from tsgraph.reference import DecoderConfig, EngineConfig, Parts, ReferenceEngine, Request, Sampling, graph_runtime
from tsgraph.reference.proof import MarginLog, ReplayProof
from tsgraph.runtime import GraphRuntime

CONFIG = EngineConfig(
    decoder=DecoderConfig(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=40), rows=5, pages=16, context=48
)
REQUESTS = [
    Request(
        prompt=tuple(range(60 + i, 65 + 3 * i)),
        max_tokens=4 + i,
        arrival=i // 3 * 12,
        sampling=Sampling(temperature=i % 3 / 2, top_k=[0, 20][i % 2], top_p=[1.0, 0.9][i % 2], seed=i),
    )
    for i in range(6)
]


def engine_on(backend: Backend, **options: Any) -> ReferenceEngine[GraphRuntime]:
    """A small engine on `backend`, with its slots captured."""
    config = attrs.evolve(CONFIG, device=str(backend.device))
    return ReferenceEngine(config, lambda parts: graph_runtime(parts, backend=backend, **options))


def test_replayed_steps_are_proved(backend: Backend):
    """Every decode step is replayed from a slot of the next size, and equals eager bit by bit at the padded shape."""
    engine = engine_on(backend)
    proof = ReplayProof(engine.runtime, engine.parts)
    decisions: list[Decision] = []

    def hook(rows: int, mode: Mode, sources: dict[str, Any], done: Step) -> None:
        proof(rows, mode, sources, done)
        decisions.append(done.decision)

    engine.generate(REQUESTS, hook)
    assert proof.holds, proof.faults
    assert proof.steps == len([d for d in decisions if d.reason in (Reason.EXACT, Reason.PADDED)]) > 5
    assert {Reason.EXACT, Reason.PADDED, Reason.NOT_DECODE} == {d.reason for d in decisions}


def test_texts_equal_those_of_a_runtime_that_never_captured(backend: Backend):
    """Slots change no text: a runtime without captures, and one used twice, give the same within rounding."""
    expected = engine_on(backend, capture=False).generate(REQUESTS, log := MarginLog())
    engine = engine_on(backend)
    for _ in range(2):
        assert all(flip.excused for flip in log.flips(expected, engine.generate(REQUESTS)))


def test_capturing_leaves_the_cache_alone(backend: Backend):
    """Warm-ups and recordings write to the dummy page and nowhere else."""
    cache = engine_on(backend).parts.cache
    assert not cache.keys[1:].any()
    assert not cache.values[1:].any()


def test_the_stand_in_agrees_with_the_runtime(eager_runtime: Callable[[Parts], Any]):
    """On the emulated backend the runtime's texts are those of the plain stand-in that the other tests use."""
    expected = ReferenceEngine(CONFIG, eager_runtime).generate(REQUESTS)
    engine = ReferenceEngine(CONFIG, lambda parts: graph_runtime(parts, backend="emulated"))
    assert [each.tokens for each in expected] == [each.tokens for each in engine.generate(REQUESTS)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_slots_follow_the_rows(size: int):
    """The engine's rows bound the sizes that the spec asks for."""
    config = attrs.evolve(CONFIG, rows=size)
    engine = ReferenceEngine(config, lambda parts: graph_runtime(parts, backend="emulated", capture=False))
    assert size == engine.runtime.sizes[-1]
