"""Drafts, recurrent layers and variants through captured slots: each replay is proved, each planted fault is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from tsgraph.errors import ContractViolation
from tsgraph.keys import Mode, Step
from tsgraph.protocols.backend import Backend
from tsgraph.reference import DecoderConfig, EngineConfig, Parts, ReferenceEngine, Request, Sampling, graph_runtime
from tsgraph.reference import engine as reference
from tsgraph.reference.proof import MarginLog, ReplayProof
from tsgraph.reference.recurrent import RecurrentMemory
from tsgraph.reference.variants import VariantSampler
from tsgraph.runtime import GraphRuntime
from tsgraph.spec.load import load_spec

HYBRID = DecoderConfig(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=40, recurrent=(1,))
FULL = EngineConfig(decoder=HYBRID, rows=4, pages=40, page_size=8, context=40, tokens_per_request=3, variants=True)
PLAIN = attrs.evolve(HYBRID, recurrent=())
VARIANTS = ("default", "greedy", "penalties")
SAMPLINGS: list[dict[str, Any]] = [{}, {}, {"temperature": 0.8}, {"frequency": 0.4}, {"temperature": 1.0, "top_k": 30}]
REQUESTS = [
    Request(
        prompt=tuple(range(60 + i, 65 + 3 * i)),
        max_tokens=6 + i % 3,
        arrival=5 * (i // 2),
        sampling=Sampling(seed=i, **SAMPLINGS[i % len(SAMPLINGS)]),
    )
    for i in range(6)
]
DRAWN = [attrs.evolve(each, sampling=Sampling(seed=i, temperature=0.9)) for i, each in enumerate(REQUESTS[:3])]
"""Requests that the default variant alone serves."""

CASES = {
    "drafts": (attrs.evolve(FULL, decoder=PLAIN), VARIANTS[:1], DRAWN),
    "recurrent layers": (attrs.evolve(FULL, tokens_per_request=1), VARIANTS[:1], DRAWN),
    "all": (FULL, VARIANTS, REQUESTS),
}
SIZE = 4
"""One slot for each variant: all steps but the fullest are padded."""


def engine_on(
    backend: Backend | str, config: EngineConfig = FULL, variants: tuple[str, ...] = VARIANTS[:1]
) -> ReferenceEngine[GraphRuntime]:
    """A small engine on `backend`, with the slots of `variants` captured."""
    device = "cpu" if isinstance(backend, str) else str(backend.device)

    def make(parts: Parts) -> GraphRuntime:
        runtime = graph_runtime(parts, backend=backend, sizes=(SIZE,), capture=False)
        if variants:
            runtime.capture(*((variant, SIZE) for variant in variants))
        return runtime

    return ReferenceEngine(attrs.evolve(config, device=device), make)


@attrs.define
class Gains:
    """A hook that keeps what rows gained, step by step."""

    tokens: list[int] = attrs.field(factory=list)

    def __call__(self, rows: int, mode: Mode, sources: dict[str, Any], done: Step) -> None:
        if mode is Mode.DECODE and "accept_lengths" in done.outputs:
            self.tokens.extend(done.outputs["accept_lengths"].tolist())


@pytest.mark.parametrize(("config", "variants", "requests"), CASES.values(), ids=CASES)
def test_replayed_steps_are_proved(
    backend: Backend, config: EngineConfig, variants: tuple[str, ...], requests: list[Request]
):
    """Every decode step is replayed and equals eager bit by bit: draws, gains and drafts, caches, states and counts.

    Each variant serves some steps, padded ones among them. The texts are those of an engine that has no slots and
    decodes token by token; rows gain, step by step, what they gain in an engine of this kind without slots.
    """
    engine = engine_on(backend, config, variants)
    proof, used, gains = ReplayProof(engine.runtime, engine.parts), set(), Gains()

    def hook(rows: int, mode: Mode, sources: dict[str, Any], done: Step) -> None:
        proof(rows, mode, sources, done)
        gains(rows, mode, sources, done)
        if mode is Mode.DECODE:
            assert done.decision.key is not None
            used.add((done.decision.key.variant, rows < SIZE))

    texts = engine.generate(requests, hook)
    assert proof.holds, proof.faults
    assert set(variants) == {variant for variant, padded in used if padded}
    engine_on(backend, config, ()).generate(requests, expected_gains := Gains())
    assert expected_gains == gains
    assert (config.drafts > 0) == (max(gains.tokens, default=1) > 1)
    singly = engine_on(backend, attrs.evolve(config, tokens_per_request=1), ())
    expected = singly.generate(requests, log := MarginLog())
    assert all(flip.excused for flip in log.flips(expected, texts))


def test_capturing_leaves_all_state_alone(backend: Backend):
    """Warm-ups and recordings leave caches, states and counts as they were, sinks and sentinel too (R10, R12)."""
    parts = engine_on(backend, variants=("penalties",)).parts
    for name, state in parts.states.items():
        assert not state.tensor.any(), name


def test_a_pad_row_leaves_nothing_behind(backend: Backend):
    """A step of one row in a slot of four counts, caches and keeps state for that row alone."""
    engine = engine_on(backend, attrs.evolve(FULL, tokens_per_request=1), ("penalties",))
    engine.generate([attrs.evolve(REQUESTS[3], arrival=0)])
    parts = engine.parts
    assert parts.sampler is not None
    assert parts.memory is not None
    assert [1] == parts.sampler.counts[: parts.sampler.sentinel].any(1).nonzero().flatten().tolist()
    assert [0] == parts.memory.states[: parts.memory.sink].flatten(1).any(1).nonzero().flatten().tolist()


# -- planted faults ---------------------------------------------------------------------------------------------------

Spoil = Callable[[Parts, dict[str, Tensor]], None]


def failure_of(engine: ReferenceEngine[GraphRuntime]) -> str:
    """Why the first slot could not be captured."""
    slot = engine.runtime.slots["penalties", SIZE]
    assert "failed" == slot.state
    assert slot.cause is not None
    return slot.cause.summary


def test_pads_in_a_live_state_are_refused(monkeypatch: pytest.MonkeyPatch):
    """Planted: a pad row's slot of -1 is taken for slot 0, which is live. The first warm-up is refused (R12, R33)."""
    monkeypatch.setattr(RecurrentMemory, "locate", lambda self, slots: slots.long().clamp(min=0))
    why = failure_of(engine_on("emulated", attrs.evolve(FULL, tokens_per_request=1), ("penalties",)))
    assert "recurrent states" in why
    assert "rows 0" in why


def test_pads_counted_for_a_request_are_refused(monkeypatch: pytest.MonkeyPatch):
    """Planted: tokens of dummy rows are counted into a live pool row. The first warm-up is refused (R10, R12)."""
    right = VariantSampler.count
    monkeypatch.setattr(
        VariantSampler, "count", lambda self, rows, drawn, gained: right(self, rows.clamp(max=1), drawn, gained)
    )
    why = failure_of(engine_on("emulated", variants=("penalties",)))
    assert "counts" in why
    assert "rows 1" in why


def changed_spec(monkeypatch: pytest.MonkeyPatch, name: str, **words: Any) -> None:
    """Let engines be built over a spec whose buffer `name` is declared otherwise."""
    spec = load_spec("reference_full")
    buffers = {**spec.buffers, name: attrs.evolve(spec.buffers[name], **words)}
    changed = attrs.evolve(spec, buffers=buffers)
    monkeypatch.setattr(reference, "GraphRuntime", lambda _, *args, **rest: GraphRuntime(changed, *args, **rest))


@pytest.mark.parametrize(
    ("name", "pad", "part"),
    [("state_write_pool", 0, "sampler"), ("draft_seq_lens", 0, "drafter"), ("recurrent_slots", 0, "recurrent")],
)
def test_a_pad_that_a_part_cannot_bear_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, pad: int, part: str):
    """A spec whose pads mean something to a part is refused when the runtime is built, naming both."""
    from tsgraph.spec.model import Pad

    changed_spec(monkeypatch, name, pad=Pad(value=pad))
    with pytest.raises(ContractViolation, match=name) as caught:
        engine_on("emulated", variants=())
    assert part in str(caught.value)


def test_draft_lengths_that_are_not_staged_anew_are_found(monkeypatch: pytest.MonkeyPatch):
    """Planted: the drafter's lengths keep what the step before left there, so its drafts are those of other places."""
    changed_spec(monkeypatch, "draft_seq_lens", mirrors=None, source="engine")
    engine = engine_on("emulated", attrs.evolve(FULL, decoder=PLAIN))
    proof = ReplayProof(engine.runtime, engine.parts)
    engine.generate(DRAWN, proof)
    assert any("draft" in fault for fault in proof.faults)


def _gain(parts: Parts, outputs: dict[str, Tensor]) -> None:
    outputs["accept_lengths"] += 1


def _state(parts: Parts, outputs: dict[str, Tensor]) -> None:
    assert parts.memory is not None
    parts.memory.states[0] *= 1.5


def _draft_key(parts: Parts, outputs: dict[str, Tensor]) -> None:
    assert parts.draft is not None
    parts.draft.cache.keys[1:] = 0


def _count(parts: Parts, outputs: dict[str, Tensor]) -> None:
    assert parts.sampler is not None
    parts.sampler.counts[2, 7] += 1


FAULTS = {
    "accepted tokens": (_gain, "accept_lengths differ from eager at the padded shape"),
    "a state": (_state, "the recurrent states differ"),
    "keys of the draft": (_draft_key, "the draft keys differ"),
    "a count": (_count, "the counts differ"),
}


@pytest.fixture(scope="module")
def emulated_engine() -> ReferenceEngine[GraphRuntime]:
    """An engine with everything, captured once."""
    return engine_on("emulated")


@pytest.mark.parametrize(("spoil", "says"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_a_replay_is_found(
    emulated_engine: ReferenceEngine[GraphRuntime], monkeypatch: pytest.MonkeyPatch, spoil: Spoil, says: str
):
    """Whatever a replay leaves that eager does not, the proof fails and names it."""
    right = emulated_engine.runtime.step

    def step(**words: Any) -> Step:
        done = right(**words)
        if done.decision.key is None:
            return done
        outputs = {name: leaf.clone() for name, leaf in done.outputs.items()}
        with torch.inference_mode():
            spoil(emulated_engine.parts, outputs)
        return attrs.evolve(done, outputs=outputs)

    monkeypatch.setattr(emulated_engine.runtime, "step", step)
    proof = ReplayProof(emulated_engine.runtime, emulated_engine.parts)
    emulated_engine.generate([attrs.evolve(DRAWN[0], max_tokens=3)], proof)
    assert not proof.holds
    assert any(says in fault for fault in proof.faults)
