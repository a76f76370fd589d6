"""A trial: the same requests served with slots and without, timed, and compared step by step and text by text.

Engines of equal weights. The one with slots serves the requests twice: once as it would in production, once with every
replayed step run again eagerly; one without slots serves them, too, and where there are drafts another one serves them
token by token. Everything is in float32: there rounding is far below the margin of nearly every draw, and what still
differs can be shown to be rounding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import attrs
from torch import Tensor

from tsgraph.keys import Mode, Step
from tsgraph.reference.config import EngineConfig
from tsgraph.reference.engine import Completion, ReferenceEngine, graph_runtime
from tsgraph.reference.model import DecoderConfig
from tsgraph.reference.proof import Flip, MarginLog, ReplayProof
from tsgraph.reference.scheduler import Request, Sampling
from tsgraph.reference.text import decode, encode

SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.2},
)
PENALISED: tuple[dict[str, Any], ...] = (
    {"repetition": 1.3},
    {"temperature": 0.9, "frequency": 0.4},
    {"temperature": 1.0, "top_k": 40, "repetition": 1.2, "frequency": 0.1},
)
PHASES = (SAMPLINGS[:1], SAMPLINGS[1:], PENALISED)
"""One after the other, so that each variant serves some steps: a step needs one that serves all its rows."""

TOKENS_PER_REQUEST = 4
RECURRENT = (1, 3)


@attrs.define
class Meter:
    """A runtime that counts and times the decode steps of another, each to its end on the device.

    `rows`: those of all decode steps; `tokens`: what they gained.
    """

    runtime: Any
    seconds: float = 0.0
    rows: int = 0
    tokens: int = 0

    def step(self, *, rows: int, mode: Mode, variant: str | None = None, **sources: Tensor) -> Step:
        """Run one step."""
        start = time.perf_counter()
        done: Step = self.runtime.step(rows=rows, mode=mode, variant=variant, **sources)
        done.ready.wait()
        if mode is Mode.DECODE:
            self.seconds += time.perf_counter() - start
            self.rows += rows
            gained = done.outputs.get("accept_lengths")
            self.tokens += rows if gained is None else int(gained.sum())
        return done

    @property
    def speed(self) -> float:
        """Decoded tokens per second so far; 0.0 where there was no decode step."""
        return self.tokens / self.seconds if self.tokens else 0.0

    @property
    def gain(self) -> float:
        """Tokens that a row gained in a decode step, on average; 0.0 where there was none."""
        return self.tokens / self.rows if self.rows else 0.0


@attrs.frozen(kw_only=True)
class Trial:
    """What came of it: texts, slots, and all that differed.

    A speed is in decoded tokens per second; a gain is the tokens of a row in a decode step, on average.
    """

    config: EngineConfig
    completions: Sequence[Completion]
    table: str
    snapshot: dict[str, Any]
    replayed_speed: float
    eager_speed: float
    replayed_gain: float
    eager_gain: float
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
            "accepted_tokens_per_step": {"replayed": self.replayed_gain, "eager": self.eager_gain},
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
    table, snapshot, served = runtime.table(), runtime.snapshot(), attrs.evolve(engine.runtime)
    proof = ReplayProof(runtime, engine.parts)
    again = engine.generate(requests, proof)
    eager, flips = _without_slots(requests, config, backend, [completions, again])
    if config.drafts:
        singly = attrs.evolve(config, tokens_per_request=1)
        flips += _without_slots(requests, singly, backend, [completions])[1]
    return Trial(
        config=config,
        completions=completions,
        table=table,
        snapshot=snapshot,
        replayed_speed=served.speed,
        eager_speed=eager.speed,
        replayed_gain=served.gain,
        eager_gain=eager.gain,
        proof=proof,
        flips=flips,
        seconds=time.perf_counter() - start,
    )


def _without_slots(
    requests: Sequence[Request], config: EngineConfig, backend: str, texts: Sequence[Sequence[Completion]]
) -> tuple[Meter, list[Flip]]:
    """The meter of an engine of `config` that never captured, and where `texts` differ from what it makes."""
    eager = ReferenceEngine(config, lambda parts: Meter(graph_runtime(parts, backend=backend, capture=False)))
    expected = eager.generate(requests, log := MarginLog())
    return eager.runtime, [flip for each in texts for flip in log.flips(expected, each)]


def requests_for(prompts: Sequence[str], count: int, *, penalties: bool = False) -> list[Request]:
    """`count` requests over `prompts`: one arrives every second step, lengths and samplings vary, seeds are unique.

    With `penalties` the first third is greedy, the second sampled, and the last penalised.
    """
    phases = [PHASES[i * len(PHASES) // count] if penalties else SAMPLINGS for i in range(count)]
    return [
        Request(
            prompt=encode(prompts[i % len(prompts)]),
            max_tokens=12 + 7 * i % 29,
            sampling=Sampling(seed=i, **phase[i % len(phase)]),
            arrival=2 * i,
        )
        for i, phase in enumerate(phases)
    ]


def config_for(
    requests: Sequence[Request], device: str, *, speculative: bool = False, recurrent: bool = False
) -> EngineConfig:
    """The default engine, with page tables as wide as the longest request needs, and pages for a full house of such.

    With a draft model or recurrent layers it has sampler variants, too.
    """
    sized = EngineConfig(
        decoder=DecoderConfig(recurrent=RECURRENT if recurrent else ()),
        context=max(request.budget for request in requests),
        tokens_per_request=TOKENS_PER_REQUEST if speculative else 1,
        variants=speculative or recurrent,
        device=device,
    )
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
