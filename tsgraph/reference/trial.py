"""A trial: the same requests served with slots and without, timed, and compared step by step and text by text.

Engines of equal weights. The one with slots serves the requests twice: once as it would in production, once with every
replayed step run again eagerly; one without slots serves them, too, and where there are drafts another one serves them
token by token. Where some texts are to keep a grammar, one without grammars serves all freely: the free texts must
be the same. Everything is in float32: there rounding is far below the margin of nearly every draw, and what still
differs can be shown to be rounding. Where it is asked for, each slot is then verified by itself, over garbage and after
replays of others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from torch import Tensor

from tsgraph.keys import Mode, Step
from tsgraph.reference.config import EngineConfig
from tsgraph.reference.constraint import JsonGrammar
from tsgraph.reference.engine import Completion, ReferenceEngine, graph_runtime
from tsgraph.reference.model import DecoderConfig
from tsgraph.reference.proof import Flip, MarginLog, ReplayProof
from tsgraph.reference.rows import RunningRows
from tsgraph.reference.scheduler import Request, Sampling
from tsgraph.reference.text import decode, encode

if TYPE_CHECKING:
    from tsgraph.replay.verification.report import VerifyReport

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

    def push(self, rows: int, *entry: Any) -> Any:
        """Push the grammar entry of the next step."""
        return self.runtime.push(rows, *entry)

    def cancel(self, ticket: Any) -> bool:
        """Take it back."""
        cancelled: bool = self.runtime.cancel(ticket)
        return cancelled

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

    A speed is in decoded tokens per second; a gain is the tokens of a row in a decode step, on average. `verification`
    is there where it was asked for.
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
    grammar: JsonGrammar | None = None
    verification: VerifyReport | None = None

    @property
    def constrained(self) -> list[Completion]:
        """The completions that were to keep the grammar."""
        return [each for each in self.completions if each.request.constraint is not None]

    @property
    def invalid(self) -> list[str]:
        """What is wrong with those, one line for each that is not valid."""
        if self.grammar is None:
            return []
        told = [(each, self.grammar.fault(each.tokens, each.ended)) for each in self.constrained]
        return [f"seed {each.request.sampling.seed}: {fault}" for each, fault in told if fault]

    @property
    def holds(self) -> bool:
        """Whether steps were replayed, these and all texts agree with eager within rounding, and grammars are kept.

        A verification, too, has found nothing.
        """
        agree = self.proof.holds and all(flip.excused for flip in self.flips)
        verified = self.verification is None or self.verification.ok
        return self.proof.steps > 0 and agree and verified and not self.invalid

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
            **self._grammar_as_json(),
            **({} if self.verification is None else {"verification": self.verification.as_json()}),
            "completions": [_completion_as_json(each) for each in self.completions],
            "seconds": self.seconds,
        }

    def _grammar_as_json(self) -> dict[str, Any]:
        if self.grammar is None:
            return {}
        return {
            "grammar": {"by": self.grammar.by, "constrained": len(self.constrained), "invalid": self.invalid},
        }


def run_trial(
    requests: Sequence[Request],
    config: EngineConfig,
    *,
    backend: str = "auto",
    grammar: JsonGrammar | None = None,
    verify: bool = False,
) -> Trial:
    """Serve `requests`, whose seeds must differ, with slots and without, and compare.

    `grammar`: what those of them must keep that have a constraint. `verify`: afterwards every slot is verified, too, by
    rows in the middle of their texts.
    """
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
    if grammar is not None:
        flips += _free_texts(completions, config, backend)
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
        verification=runtime.verify(RunningRows(engine.parts)) if verify else None,
        seconds=time.perf_counter() - start,
        grammar=grammar,
    )


def _without_slots(
    requests: Sequence[Request], config: EngineConfig, backend: str, texts: Sequence[Sequence[Completion]]
) -> tuple[Meter, list[Flip]]:
    """The meter of an engine of `config` that never captured, and where `texts` differ from what it makes."""
    eager = ReferenceEngine(config, lambda parts: Meter(graph_runtime(parts, backend=backend, capture=False)))
    expected = eager.generate(requests, log := MarginLog())
    return eager.runtime, [flip for each in texts for flip in log.flips(expected, each)]


def _free_texts(texts: Sequence[Completion], config: EngineConfig, backend: str) -> list[Flip]:
    """Where the free ones of `texts` differ from what an engine makes that knows of no grammar."""
    requests = [attrs.evolve(text.request, constraint=None) for text in texts]
    free = attrs.evolve(config, constrained=False)
    engine = ReferenceEngine(free, lambda parts: graph_runtime(parts, backend=backend, capture=False))
    expected = engine.generate(requests, log := MarginLog())
    pairs = [pair for pair in zip(expected, texts, strict=True) if pair[1].request.constraint is None]
    return log.flips(*zip(*pairs, strict=True)) if pairs else []


def requests_for(
    prompts: Sequence[str], count: int, *, penalties: bool = False, grammar: JsonGrammar | None = None
) -> list[Request]:
    """`count` requests over `prompts`: one arrives every second step, lengths and samplings vary, seeds are unique.

    With `penalties` the first third is greedy, the second sampled, and the last penalised. With a `grammar` every other
    text is to keep it, with as many tokens as it needs at least, and some more.
    """
    phases = [PHASES[i * len(PHASES) // count] if penalties else SAMPLINGS for i in range(count)]
    return [
        _constrained(
            Request(
                prompt=encode(prompts[i % len(prompts)]),
                max_tokens=12 + 7 * i % 29,
                sampling=Sampling(seed=i, **phase[i // 2 % len(phase) if grammar else i % len(phase)]),
                arrival=2 * i,
            ),
            grammar if i % 2 == 0 else None,
        )
        for i, phase in enumerate(phases)
    ]


def _constrained(request: Request, grammar: JsonGrammar | None) -> Request:
    if grammar is None:
        return request
    most = grammar.least + request.max_tokens
    return attrs.evolve(request, max_tokens=most, constraint=partial(grammar.matcher, most))


def config_for(
    requests: Sequence[Request], device: str, *, speculative: bool = False, recurrent: bool = False
) -> EngineConfig:
    """The default engine, with page tables as wide as the longest request needs, and pages for a full house of such.

    With a draft model or recurrent layers it has sampler variants, too; with requests that have grammars it knows them.
    """
    sized = EngineConfig(
        decoder=DecoderConfig(recurrent=RECURRENT if recurrent else ()),
        context=max(request.budget for request in requests),
        tokens_per_request=TOKENS_PER_REQUEST if speculative else 1,
        variants=speculative or recurrent,
        constrained=any(request.constraint is not None for request in requests),
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
