"""A small complete engine: a decoder, a paged cache, a sampler and a scheduler around one `runtime.step`.

`graph_runtime` shows all that an engine tells tsgraph: the spec, the step, the numbers the spec leaves open, what the
step reads (the model) and writes (the cache), and the parts that captures and replays must involve. The engine itself
never asks which path a step took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import attrs

from tsgraph import keys
from tsgraph.backends.choice import choose_backend
from tsgraph.errors import BadBatch
from tsgraph.keys import Mode
from tsgraph.protocols.backend import Backend, Ready
from tsgraph.reference.cache import PageAllocator
from tsgraph.reference.config import EngineConfig
from tsgraph.reference.parts import Parts
from tsgraph.reference.recurrent import RecurrentUpdate
from tsgraph.reference.scheduler import Request, Scheduler, Sequence, Status
from tsgraph.reference.sources import Sources, extras_of, sources_of
from tsgraph.reference.speculation import DraftMetadata
from tsgraph.reference.variants import variant_for
from tsgraph.runtime import GraphRuntime

OnStep = Callable[[int, Mode, Sources, keys.Step], None]


class Runtime(Protocol):
    """What the engine needs of a runtime: `tsgraph.GraphRuntime` has it."""

    def step(self, *, rows: int, mode: Mode, variant: str | None = None, **sources: Any) -> keys.Step:
        """Run one step on host or device tensors of the live rows."""

    def push(self, rows: int, *entry: Any) -> Any:
        """Push the grammar entry of the next step; only asked of a constrained engine."""

    def cancel(self, ticket: Any) -> bool:
        """Take it back."""


def graph_runtime(
    parts: Parts, *, backend: str | Backend = "auto", capture: bool = True, sizes: Iterable[int] | None = None
) -> GraphRuntime:
    """A `GraphRuntime` over `parts`, with all its slots captured; without `capture` every step stays eager.

    `sizes` replaces the spec's.
    """
    models = [parts.model] if parts.draft is None else [parts.model, parts.draft.model]
    place = choose_backend(backend, list(parts.model.parameters()), None)
    runtime = GraphRuntime(
        parts.config.spec,
        parts.step,
        geometry=parts.geometry,
        sizes=None if sizes is None else list(sizes),
        modules=models,
        state=parts.states,
        sampler=parts.sampler,
        drafter=None if parts.draft is None else DraftMetadata(),
        recurrent=None if parts.memory is None else RecurrentUpdate(parts.memory),
        grammar=None if parts.constraints is None else parts.constraints.install(place),
        backend=place,
    )
    if capture:
        runtime.capture()
    return runtime


@attrs.frozen
class Completion:
    """What a request came to: its `tokens` (an end-of-sequence token included), their logprobs, and why it `ended`."""

    request: Request
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: Status

    @classmethod
    def of(cls, sequence: Sequence) -> Completion:
        """The completion of a finished sequence."""
        return cls(sequence.request, tuple(sequence.generated), tuple(sequence.logprobs), sequence.status)


R = TypeVar("R", bound=Runtime)


class ReferenceEngine(Generic[R]):
    """Serves requests with `make_runtime(parts)`, `graph_runtime` say; graphs are wholly the runtime's business."""

    def __init__(self, config: EngineConfig, make_runtime: Callable[[Parts], R]) -> None:
        self.config = config
        self.parts = Parts.build(config)
        self.runtime = make_runtime(self.parts)
        self._newest: tuple[Any, Ready] | None = None

    def generate(self, requests: Iterable[Request], on_step: OnStep | None = None) -> list[Completion]:
        """Complete `requests`, in their order. `on_step(rows, mode, sources, done)` is told every step that ran.

        Raises: BadBatch if a request can never fit, or asks for what the engine does not have, before anything runs.
        """
        scheduler = self._scheduler()
        sequences = [scheduler.submit(request) for request in self._checked(requests)]
        while work := scheduler.next():
            if work.sequences:
                self._run(scheduler, work.mode, work.sequences, on_step)
        self._settle()
        return [Completion.of(sequence) for sequence in sequences]

    def _checked(self, requests: Iterable[Request]) -> list[Request]:
        requests = list(requests)
        if not self.config.variants and any(request.sampling.penalised for request in requests):
            raise BadBatch("a request asks for penalties, and the engine has none", hint="EngineConfig(variants=True)")
        if not self.config.constrained and any(request.constraint is not None for request in requests):
            hint = "EngineConfig(constrained=True)"
            raise BadBatch("a request has a grammar, and the engine knows of none", hint=hint)
        return requests

    def _scheduler(self) -> Scheduler:
        return Scheduler(
            PageAllocator(self.config.pages),
            rows=self.config.rows,
            page_size=self.config.page_size,
            pages_per_request=self.config.pages_per_request,
            eos=self.config.eos,
            lookahead=self.config.lookahead,
        )

    def _run(self, scheduler: Scheduler, mode: Mode, sequences: tuple[Sequence, ...], on_step: OnStep | None) -> None:
        rows = len(sequences)
        sources = sources_of(sequences, self.config.page_size) | extras_of(sequences, self.config)
        with self._entry(sequences) as taken:
            done = self.runtime.step(rows=rows, mode=mode, variant=self._variant(sequences), **sources)
            taken(done)
        if on_step:
            on_step(rows, mode, sources, done)
        for sequence, (gained, drafts) in zip(sequences, gains_of(done.outputs, rows), strict=True):
            scheduler.accept(sequence, gained, drafts)

    @contextmanager
    def _entry(self, sequences: tuple[Sequence, ...]) -> Iterator[Callable[[keys.Step], None]]:
        """In a constrained engine, push what the step of the block is to take; it is taken back if the block raises.

        What is yielded waits for the step: where its masks failed, that raises before a token is accepted.
        """
        if self.parts.constraints is None:
            yield lambda done: None  # noqa: ARG005 -- nothing can have failed beside the step
            return
        ticket = self.runtime.push(len(sequences), [sequence.matcher for sequence in sequences])
        try:
            yield partial(self._take, ticket)
        except BaseException:
            self.runtime.cancel(ticket)
            raise

    def _take(self, ticket: Any, done: keys.Step) -> None:
        done.ready.wait()
        self._newest = ticket, done.ready

    def _settle(self) -> None:
        """Let matchers accept what the last step drew: no step comes that would."""
        if self.parts.constraints is not None and self._newest is not None:
            self.parts.constraints.executor.settle(*self._newest)

    def _variant(self, sequences: tuple[Sequence, ...]) -> str | None:
        return variant_for(s.request.sampling for s in sequences) if self.config.variants else None


Gain = tuple[list[tuple[int, float]], list[int]]


def gains_of(outputs: Sources, rows: int) -> list[Gain]:
    """What each of `rows` rows gains in a step: tokens with their logprobs, and drafts for the next."""
    tokens, logprobs = (outputs[name].view(rows, -1).tolist() for name in ("tokens", "logprobs"))
    drawn = [list(zip(*each, strict=True)) for each in zip(tokens, logprobs, strict=True)]
    if "drafts" not in outputs:
        return [(each, []) for each in drawn]
    gained, drafts = outputs["accept_lengths"].tolist(), outputs["drafts"].tolist()
    return [(each[:n], next_) for each, n, next_ in zip(drawn, gained, drafts, strict=True)]
