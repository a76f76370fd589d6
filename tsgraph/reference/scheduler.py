"""Continuous batching: requests join and leave a running batch between steps. Pure Python.

A request is admitted when a row is free and its whole page budget is: prompt and `max_tokens` together. So a decode
step never runs out of pages, and nobody is ever preempted. Admission is first come, first served: no request starves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

import attrs
from attrs.validators import ge, gt, instance_of, le, lt, min_len

from tsgraph.errors import BadBatch
from tsgraph.keys import Mode

if TYPE_CHECKING:
    from tsgraph.protocols.matching import Matcher
    from tsgraph.reference.cache import PageAllocator

NO_ROW = 0

Status = Literal["waiting", "running", "eos", "length"]


@attrs.frozen(kw_only=True)
class Sampling:
    """How a request samples: `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 are off, `seed` makes it its own.

    The penalties `repetition` (1: off) and `frequency` (0: off) push down what it has drawn before.
    """

    temperature: float = attrs.field(default=0.0, validator=ge(0.0))
    top_k: int = attrs.field(default=0, validator=[instance_of(int), ge(0)])
    top_p: float = attrs.field(default=1.0, validator=[gt(0.0), le(1.0)])
    seed: int = attrs.field(default=0, validator=[instance_of(int), ge(0), lt(2**63)])
    repetition: float = attrs.field(default=1.0, validator=gt(0.0))
    frequency: float = 0.0

    @property
    def penalised(self) -> bool:
        """Whether it asks for a penalty."""
        return self.repetition != 1 or self.frequency != 0


@attrs.frozen(kw_only=True)
class Request:
    """One prompt to complete with at most `max_tokens` tokens; it arrives at step `arrival` (0: the first).

    `constraint` makes the matcher of its text; without one it is free.
    """

    prompt: tuple[int, ...] = attrs.field(validator=[instance_of(tuple), min_len(1)])
    max_tokens: int = attrs.field(validator=[instance_of(int), ge(1)])
    sampling: Sampling = attrs.field(factory=Sampling)
    arrival: int = attrs.field(default=0, validator=[instance_of(int), ge(0)])
    constraint: Callable[[], Matcher] | None = None

    @property
    def budget(self) -> int:
        """Tokens that it may come to, prompt included."""
        return len(self.prompt) + self.max_tokens


@attrs.define(eq=False)
class Sequence:
    """A request on its way: `tokens` so far, how many of them are `cached`, and the row and pages it holds now.

    `drafts` are guesses at the tokens that come next. `status` "eos" and "length" say why it is finished. `matcher`:
    what its text must keep.
    """

    request: Request
    tokens: list[int]
    logprobs: list[float] = attrs.field(factory=list)
    drafts: tuple[int, ...] = ()
    cached: int = 0
    row: int = NO_ROW
    pages: tuple[int, ...] = ()
    status: Status = "waiting"
    matcher: Matcher | None = None

    @property
    def finished(self) -> bool:
        """Whether it has all its tokens."""
        return self.status in ("eos", "length")

    @property
    def generated(self) -> list[int]:
        """What was generated so far; an end-of-sequence token is the last of it."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def unread(self) -> list[int]:
        """What the model reads next, from position `cached` on: the whole prompt, then the last token and drafts."""
        return [*self.tokens[self.cached :], *self.drafts]

    @property
    def state_slot(self) -> int:
        """The slot of its recurrent state, 0 too; -1 while it holds no row."""
        return self.row - 1

    def append(self, token: int, logprob: float, eos: int | None) -> None:
        """Take in what the model made of the unread tokens."""
        self.cached = len(self.tokens)
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token == eos:
            self.status = "eos"
        elif len(self.tokens) == self.request.budget:
            self.status = "length"


@attrs.frozen
class Work:
    """One step: EXTEND reads one prompt, DECODE the last token of every running sequence, IDLE waits for arrivals."""

    mode: Mode
    sequences: tuple[Sequence, ...] = ()


@attrs.define(eq=False)
class Scheduler:
    """Who runs when. `rows`: most sequences at a time; they get the request-pool rows 1..rows, as row 0 is reserved.

    `lookahead`: tokens beyond its budget that each has pages for. Were drafts beyond it to lie in the dummy page, a row
    would see there what others wrote, and its logits would depend on its company.
    """

    allocator: PageAllocator
    rows: int = attrs.field(validator=[instance_of(int), ge(1)], kw_only=True)
    page_size: int = attrs.field(validator=[instance_of(int), ge(1)], kw_only=True)
    pages_per_request: int = attrs.field(validator=[instance_of(int), ge(1)], kw_only=True)
    eos: int | None = attrs.field(default=None, kw_only=True)
    lookahead: int = attrs.field(default=0, validator=[instance_of(int), ge(0)], kw_only=True)
    now: int = attrs.field(default=0, init=False)
    running: list[Sequence] = attrs.field(factory=list, init=False)
    _waiting: deque[Sequence] = attrs.field(factory=deque, init=False)
    _free_rows: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free_rows = list(range(self.rows, NO_ROW, -1))

    def submit(self, request: Request) -> Sequence:
        """Queue `request` behind all that arrive no later. Raises: BadBatch if it could never be admitted."""
        self._check_fits(request)
        matcher = None if request.constraint is None else request.constraint()
        sequence = Sequence(request, list(request.prompt), matcher=matcher)
        later = sum(other.request.arrival > request.arrival for other in self._waiting)
        self._waiting.insert(len(self._waiting) - later, sequence)
        return sequence

    def next(self) -> Work | None:
        """The next step's work, None when all is done. Prompts go first: the more rows decode together, the better."""
        if not self._waiting and not self.running:
            return None
        self.now += 1
        if self._can_admit():
            return Work(Mode.EXTEND, (self._admit(),))
        return Work(Mode.DECODE, tuple(self.running)) if self.running else Work(Mode.IDLE)

    def record(self, sequence: Sequence, token: int, logprob: float) -> None:
        """Give `sequence` its next token; one that is finished leaves, and its row and pages are free at once."""
        sequence.append(token, logprob, self.eos)
        if sequence.finished:
            self._leave(sequence)

    def accept(self, sequence: Sequence, gained: Iterable[tuple[int, float]], drafts: Iterable[int] = ()) -> None:
        """Give `sequence` the tokens and logprobs that it gained in a step, up to its end, and guesses at the next."""
        for token, logprob in gained:
            if not sequence.finished:
                self.record(sequence, token, logprob)
        sequence.drafts = tuple(drafts)

    def _check_fits(self, request: Request) -> None:
        most = min(self.pages_per_request, self.allocator.usable_pages)
        if self._pages(request) > most:
            what = f"a request of {request.budget} tokens needs {self._pages(request)} pages, one may have {most}"
            limit = most * self.page_size - self.lookahead
            hint = f"keep prompt and max_tokens within {limit} tokens together"
            raise BadBatch(what, hint=hint, tokens=request.budget, limit=limit)

    def _can_admit(self) -> bool:
        if not self._waiting or not self._free_rows:
            return False
        first = self._waiting[0].request
        return first.arrival < self.now and self._pages(first) <= self.allocator.free_pages

    def _admit(self) -> Sequence:
        sequence = self._waiting.popleft()
        sequence.pages = self.allocator.allocate(self._pages(sequence.request))
        sequence.row, sequence.status = self._free_rows.pop(), "running"
        self.running.append(sequence)
        return sequence

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.allocator.free(sequence.pages)
        self._free_rows.append(sequence.row)
        sequence.row, sequence.pages = NO_ROW, ()

    def _pages(self, request: Request) -> int:
        return -(-(request.budget + self.lookahead) // self.page_size)
