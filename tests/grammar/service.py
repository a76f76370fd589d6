"""A service to try executors on: requests with grammars come, go, are retracted and come back, slots are captured.

It knows by itself what each row must draw and see: the draws of a request depend on its seed and the position alone,
and its masks on what it has drawn. Whatever a step does otherwise is noted in `problems`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import attrs
import numpy as np
import torch

from tsgraph import GraphRuntime, Rows
from tsgraph.buffers.contract import as_buffers
from tsgraph.grammar.bitmask import allowed_by, apply_mask, words_for
from tsgraph.grammar.capturable import CapturableGrammar
from tsgraph.grammar.dfa import Automaton, DfaMatcher
from tsgraph.grammar.eager import EagerGrammar
from tsgraph.keys import Batch, Geometry
from tsgraph.protocols.backend import Backend
from tsgraph.spec.load import load_spec

TOKENS = [bytes([97 + letter]) for letter in range(70)] + [None]
STOP = len(TOKENS) - 1
EXPRESSIONS = ("(?:ab|cd*)*", "[a-d]{2}e+(?:[^a-e]|a)*", "a(?:b(?:c(?:d)?)?)?")
AUTOMATA = [Automaton.of(expression, TOKENS, STOP) for expression in EXPRESSIONS]
ALL = np.ones(len(TOKENS), dtype=np.bool_)


@attrs.define(eq=False)
class NotedMatcher:
    """A matcher that keeps the tokens it has accepted and not rolled back."""

    inner: DfaMatcher
    tokens: list[int] = attrs.field(factory=list)

    @property
    def terminated(self) -> bool:
        return self.inner.terminated

    def fill(self, words: Any) -> None:
        self.inner.fill(words)

    def accept(self, token: int) -> bool:
        accepted = self.inner.accept(token)
        if accepted:
            self.tokens.append(token)
        return accepted

    def rollback(self, count: int) -> None:
        self.inner.rollback(count)
        del self.tokens[len(self.tokens) - count :]


@attrs.define(eq=False)
class Request:
    """A request, and the texts it must draw. `kind`: which automaton, None for a free one."""

    seed: int
    kind: int | None
    drawn: list[int] = attrs.field(factory=list)
    matcher: NotedMatcher | None = None

    @classmethod
    def of(cls, seed: int) -> Request:
        kind = None if seed % 3 == 0 else seed % len(AUTOMATA)
        matcher = None if kind is None else NotedMatcher(DfaMatcher(AUTOMATA[kind]))
        return cls(seed, kind, matcher=matcher)

    @property
    def finished(self) -> bool:
        return STOP in self.drawn

    def logits(self, position: int) -> np.ndarray:
        logits = np.random.default_rng((self.seed, position)).standard_normal(len(TOKENS)).astype(np.float32)
        logits[STOP] -= 2  # texts are to last a while
        return logits

    def allowed(self, drawn: Sequence[int]) -> np.ndarray | None:
        """What may follow `drawn`: its own, separate account; None where nothing is asked."""
        if self.kind is None:
            return ALL
        own = DfaMatcher(AUTOMATA[self.kind])
        if not all(own.accept(token) for token in drawn):
            return None
        words = np.zeros(words_for(len(TOKENS)), dtype=np.int32)
        own.fill(words)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(TOKENS)].astype(np.bool_)
        return ALL if own.terminated else bits

    def next(self, drawn: Sequence[int]) -> int:
        """What it draws after `drawn`."""
        allowed = self.allowed(drawn)
        return int(np.where(ALL if allowed is None else allowed, self.logits(len(drawn)), -np.inf).argmax())

    def drafts(self, count: int) -> list[int]:
        """Guesses at what comes next: some right, some not even allowed."""
        guesses: list[int] = []
        for _ in range(count):
            drawn = [*self.drawn, *guesses]
            right = self.next(drawn) if self.allowed(drawn) is not None else 0
            guesses.append((right + (self.seed + len(drawn)) % 4 // 3) % len(TOKENS))
        return guesses


class Service:
    """Serves requests with an executor, on `backend`, with `draws` draws a row and up to `rows` rows."""

    def __init__(self, backend: Backend, *, draws: int = 1, rows: int = 4, kind: str = "capturable") -> None:
        self.draws, self.rows = draws, rows
        make = CapturableGrammar if kind == "capturable" else EagerGrammar
        self.grammar: Any = make(backend, rows=rows, vocabulary=len(TOKENS), draws=draws, closed=(STOP,))
        self.backend = backend
        self.runtime = _runtime(backend, self._step, rows, draws, self.grammar)
        self.running: list[Request] = []
        self.retracted: list[Request] = []
        self.ended: list[Request] = []
        self.problems: list[str] = []
        self.last: Any = None

    # -- the step -----------------------------------------------------------------------------------------------------

    def _step(self, batch: Batch) -> dict[str, torch.Tensor]:
        read = batch.ids.view(batch.rows, self.draws)
        self.grammar.fork(batch, read[:, 1:] if self.draws > 1 else None)
        logits = batch.logits * 1.0
        mask = self.grammar.mask(batch)
        drawn = apply_mask(logits, mask).argmax(-1)
        sampled = drawn.view(batch.rows, self.draws)
        gained = 1 + (read[:, 1:] == sampled[:, :-1]).long().cumprod(dim=1).sum(dim=1)
        self.grammar.finish(drawn, gained if self.draws > 1 else None)
        return {"tokens": drawn, "gained": gained, "seen": allowed_by(mask, len(TOKENS))}

    # -- what may happen ----------------------------------------------------------------------------------------------

    def arrive(self, seed: int) -> None:
        if len(self.running) < self.rows:
            self.running.append(Request.of(seed))

    def abort(self, index: int) -> None:
        if self.running:
            self.ended.append(self.running.pop(index % len(self.running)))

    def retract(self, index: int) -> None:
        if self.running:
            self.retracted.append(self.running.pop(index % len(self.running)))

    def come_back(self, index: int) -> None:
        if self.retracted and len(self.running) < self.rows:
            self.running.insert(0, self.retracted.pop(index % len(self.retracted)))

    def recapture(self, index: int) -> None:
        """Capture at any time: all slots anew, or one."""
        keys = list(self.runtime.slots)
        ready = [key for key in keys if self.runtime.slots[key].state in self.runtime.spec.lifecycle.replays_in]
        if ready:
            self.runtime.invalidate("asked", ready[index % len(ready)])
        self.runtime.wake()

    def fail_capture(self, index: int) -> None:
        """A capture that ends before its first forward, while what requests drew last is not accepted yet."""
        with patch.object(self.grammar, "bind", side_effect=ValueError("planted")):
            self.recapture(index)

    def switch(self, _index: int) -> None:
        """Slots, or eager steps only, from now on."""
        self.runtime.enabled = not self.runtime.enabled

    def settle(self, _index: int) -> None:
        """The host lets matchers accept what the last step drew, before the next build can."""
        if self.last is not None:
            self.grammar.settle(*self.last)

    def fail(self, _index: int) -> None:
        """The engine pushes, and something raises before the forward."""
        self.runtime.cancel(self.push(self.running))

    def step(self, _index: int) -> None:
        """Serve one step of all that run, and look at every row of it."""
        batch = list(self.running)
        drafts = [request.drafts(self.draws - 1) for request in batch]
        ticket = self.push(batch)
        if not isinstance(self.grammar, CapturableGrammar):
            self.grammar.prepare(
                torch.tensor(drafts, dtype=torch.int64).view(len(batch), self.draws - 1) if self.draws > 1 else None
            )
        done = self.runtime.step(rows=len(batch), **self._sources(batch, drafts))
        done.ready.wait()
        outputs = {name: leaf.cpu() for name, leaf in done.outputs.items()}
        if not isinstance(self.grammar, CapturableGrammar):
            self.grammar.deliver(outputs["tokens"], outputs["gained"] if self.draws > 1 else None)
        self.last = (ticket, done.ready)
        self._look(batch, drafts, outputs)
        for request in [each for each in batch if each.finished and each.seed % 2]:
            self.running.remove(request)  # others stay a while after their end, as under overlap
            self.ended.append(request)

    def push(self, batch: Sequence[Request]) -> Any:
        return self.runtime.push(len(batch), [request.matcher for request in batch])

    def finish(self) -> list[str]:
        """All tokens must have been accepted by now, once each, by their own matchers. Returns the problems."""
        self.settle(0)
        for request in (*self.running, *self.retracted, *self.ended):
            if request.matcher is not None:
                expected = request.drawn[: request.drawn.index(STOP) + 1] if request.finished else request.drawn
                self._expect(f"accepted by request {request.seed}", expected, request.matcher.tokens)
        queue = self.grammar.queue
        self._expect("balance", queue.pushed, queue.consumed + queue.cancelled)
        self._expect("entries left", 0, len(queue))
        return self.problems

    # -- what must be -------------------------------------------------------------------------------------------------

    def _sources(self, batch: Sequence[Request], drafts: Sequence[Sequence[int]]) -> dict[str, Any]:
        newest = [[*request.drawn, 0][len(request.drawn) - 1] for request in batch]
        ids = [token for last, guess in zip(newest, drafts, strict=True) for token in (last, *guess)]
        rows = [request.logits(len(request.drawn) + draw) for request in batch for draw in range(self.draws)]
        logits = torch.from_numpy(np.array(rows, dtype=np.float32).reshape(-1, len(TOKENS)))
        return {"ids": torch.tensor(ids, dtype=torch.int64), "logits": logits}

    def _look(self, batch: Sequence[Request], drafts: Sequence[Sequence[int]], outputs: Any) -> None:
        tokens, seen = (
            outputs["tokens"].view(len(batch), self.draws),
            outputs["seen"].view(len(batch), self.draws, len(TOKENS)),
        )
        for row, request in enumerate(batch):
            for draw in range(self.draws):
                allowed = request.allowed([*request.drawn, *drafts[row][:draw]])
                if not request.finished and STOP not in drafts[row][:draw] and allowed is not None:
                    self._expect(f"mask of request {request.seed}", allowed.tolist(), seen[row, draw].tolist())
            gained = int(outputs["gained"][row])
            for token in tokens[row, :gained].tolist():
                if request.finished:
                    break
                self._expect(f"draw of request {request.seed}", request.next(request.drawn), token)
                request.drawn.append(token)

    def _expect(self, what: str, expected: Any, actual: Any) -> None:
        if expected != actual:
            self.problems.append(f"{what}: expected {expected}, got {actual}")


def _runtime(backend: Backend, step: Any, rows: int, draws: int, grammar: Any) -> GraphRuntime:
    law = load_spec("decode")
    buffers = as_buffers(
        {
            "ids": Rows(torch.int64, pad=0, per="token"),
            "logits": Rows(torch.float32, pad=0, shape=(len(TOKENS),), per="token"),
        }
    )
    runtime = GraphRuntime(
        attrs.evolve(law, buffers=buffers, outputs={}),
        step,
        geometry=Geometry(rows=rows, tokens_per_request=draws),
        sizes=[2, rows],
        outputs={"tokens": "token", "gained": "request", "seen": "token"},
        grammar=grammar,
        backend=backend,
        observers=(),
    )
    runtime.capture(("default", rows))
    return runtime


OPERATIONS = (
    "step",
    "arrive",
    "abort",
    "retract",
    "come_back",
    "recapture",
    "fail_capture",
    "switch",
    "settle",
    "fail",
)
Program = Sequence[tuple[str, int]]


def run(service: Service, program: Program) -> list[str]:
    """Run a program, then some steps more; returns the problems. What raises is one, and ends it."""
    try:
        for name, number in (*program, *[("step", 0)] * 3):
            getattr(service, name)(number)
        return service.finish()
    except Exception as error:  # noqa: BLE001 -- planted faults may end in anything
        return [*service.problems, f"{type(error).__name__}: {error}"]
