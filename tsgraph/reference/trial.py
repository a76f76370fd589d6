"""A trial: the same requests served with slots and without, timed, and compared step by step and text by text.

Two engines of equal weights. The one with slots serves the requests twice: once as it would in production, once with
every replayed step run again eagerly. Everything is in float32: there rounding is far below the margin of nearly
every draw, and what still differs can be shown to be rounding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import attrs
from torch import Tensor

from tsgraph.keys import Mode, Step
from tsgraph.reference.engine import Completion, EngineConfig, ReferenceEngine, graph_runtime
from tsgraph.reference.proof import Flip, MarginLog, ReplayProof
from tsgraph.reference.scheduler import Request, Sampling
from tsgraph.reference.text import decode, encode

SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.2},
)


@attrs.define
class Meter:
    """A runtime that counts and times the decode steps of another, each to its end on the device."""

    runtime: Any
    seconds: float = 0.0
    tokens: int = 0

    def step(self, *, rows: int, mode: Mode, **sources: Tensor) -> Step:
        """Run one step."""
        start = time.perf_counter()
        done: Step = self.runtime.step(rows=rows, mode=mode, **sources)
        done.ready.wait()
        if mode is Mode.DECODE:
            self.seconds += time.perf_counter() - start
            self.tokens += rows
        return done

    @property
    def speed(self) -> float:
        """Decoded tokens per second so far; 0.0 where there was no decode step."""
        return self.tokens / self.seconds if self.tokens else 0.0


@attrs.frozen(kw_only=True)
class Trial:
    """What came of it: texts, slots, speeds in decoded tokens per second, and all that differed."""

    completions: Sequence[Completion]
    table: str
    snapshot: dict[str, Any]
    replayed_speed: float
    eager_speed: float
    proof: ReplayProof
    flips: Sequence[Flip]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether steps were replayed, and these and all texts agree with eager within rounding."""
        return self.proof.steps > 0 and self.proof.holds and all(flip.excused for flip in self.flips)

    def as_json(self) -> dict[str, Any]:
        """All figures as plain data."""
        return {
            **self.snapshot,
            "tokens_per_second": {"replayed": self.replayed_speed, "eager": self.eager_speed},
            "verified": {
                "holds": self.holds,
                "steps": self.proof.steps,
                "largest_logit_difference": self.proof.furthest,
                "faults": list(self.proof.faults),
                "step_flips": [_flip_as_json(flip) for flip in self.proof.flips],
                "text_flips": [_flip_as_json(flip) for flip in self.flips],
            },
            "completions": [_completion_as_json(each) for each in self.completions],
            "seconds": self.seconds,
        }


def run_trial(requests: Sequence[Request], config: EngineConfig, *, backend: str = "auto") -> Trial:
    """Serve `requests`, whose seeds must differ, with slots and without, and compare."""
    start = time.perf_counter()
    engine = ReferenceEngine(config, lambda parts: Meter(graph_runtime(parts, backend=backend)))
    runtime, completions = engine.runtime.runtime, engine.generate(requests)
    table, snapshot, speed = runtime.table(), runtime.snapshot(), engine.runtime.speed
    proof = ReplayProof(runtime, engine.parts.cache)
    again = engine.generate(requests, proof)
    eager = ReferenceEngine(config, lambda parts: Meter(graph_runtime(parts, backend=backend, capture=False)))
    expected = eager.generate(requests, log := MarginLog())
    return Trial(
        completions=completions,
        table=table,
        snapshot=snapshot,
        replayed_speed=speed,
        eager_speed=eager.runtime.speed,
        proof=proof,
        flips=[*log.flips(expected, completions), *log.flips(expected, again)],
        seconds=time.perf_counter() - start,
    )


def requests_for(prompts: Sequence[str], count: int) -> list[Request]:
    """`count` requests over `prompts`: one arrives every second step, lengths and samplings vary, seeds are unique."""
    return [
        Request(
            prompt=encode(prompts[i % len(prompts)]),
            max_tokens=12 + 7 * i % 29,
            sampling=Sampling(seed=i, **SAMPLINGS[i % len(SAMPLINGS)]),
            arrival=2 * i,
        )
        for i in range(count)
    ]


def config_for(requests: Sequence[Request], device: str) -> EngineConfig:
    """The default engine, with page tables as wide as the longest request needs, and pages for a full house of such."""
    sized = EngineConfig(context=max(request.budget for request in requests), device=device)
    return attrs.evolve(sized, pages=1 + sized.rows * sized.pages_per_request)


def _flip_as_json(flip: Flip) -> dict[str, Any]:
    return {**attrs.asdict(flip), "excused": flip.excused}


def _completion_as_json(completion: Completion) -> dict[str, Any]:
    return {
        "prompt": decode(completion.request.prompt),
        "text": decode(completion.tokens),
        "tokens": list(completion.tokens),
        "ended": completion.ended,
    }
