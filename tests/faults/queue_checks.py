"""What must hold of grammar entries, whatever an engine does: each is taken by its own forward, or taken back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.faults.rig import require
from tests.faults.shape import shipped_law
from tsgraph.errors import BadBatch, RuleViolation
from tsgraph.grammar.tickets import Ticket, TicketQueue
from tsgraph.keys import Batch, Geometry, Mode
from tsgraph.protocols.null import NullGrammar
from tsgraph.runtime import GraphRuntime

SIZES, MOST = (1, 2, 4), 6
Burning = Literal["", "early", "late", "recording"]
LATER = (Mode.DECODE, Mode.EXTEND, Mode.IDLE)


class Burst(Exception):
    """A step that was told to fail."""


@attrs.define(eq=False)
class Queue(NullGrammar):
    """A grammar without grammars: each forward takes its entry by a host function, as `fork` has it."""

    queue: TicketQueue = attrs.field(factory=TicketQueue)
    taken: list[Ticket] = attrs.field(factory=list)
    words: Tensor = attrs.field(factory=lambda: torch.full((MOST, 2), -1, dtype=torch.int32))

    def bind(self, batch: Batch) -> Tensor:
        return self.words[: batch.rows]

    def push(self, rows: int, *, who: str = "", ahead: bool = False) -> Ticket:
        return self.queue.push(rows, who=who, ahead=ahead)

    def claim(self, ticket: Any) -> None:
        self.queue.claim_for(ticket)

    def cancel(self, ticket: Any) -> None:
        self.queue.cancel(ticket)

    abandon = cancel

    def fork(self, backend: Any) -> None:
        """Take the entry of this forward, and at each replay that of the replay."""
        if not backend.recording:
            self.queue.claim()
        backend.host_function(lambda: self.taken.append(self.queue.consume()))


@attrs.define(eq=False)
class Engine:
    """A runtime over such a queue. `bursts`: where its next step of this mode fails: before or after it forks."""

    grammar: Queue = attrs.field(factory=Queue)
    bursts: Burning = ""
    runtime: GraphRuntime = attrs.field(init=False)

    @runtime.default
    def _build(self) -> GraphRuntime:
        law = attrs.evolve(shipped_law("decode"), outputs={})
        ids = attrs.evolve(law.buffers["input_ids"], per="request", rules=())
        return GraphRuntime(
            attrs.evolve(law, buffers={"ids": attrs.evolve(ids, name="ids")}),
            self.step,
            geometry=Geometry(rows=max(SIZES)),
            sizes=SIZES,
            outputs="request",
            grammar=self.grammar,
            backend="emulated",
            observers=(),
        )

    def step(self, batch: Batch) -> Tensor:
        """Ids plus one, under the mask."""
        backend = self.runtime.backend
        if self.bursts == "recording" and backend.recording:
            raise Burst
        if self.bursts == "early":
            raise Burst
        self.grammar.fork(backend)
        if self.bursts == "late":
            raise Burst
        require(batch.mask is not None, "a step has no mask (R18)")
        ids: Tensor = batch.ids
        return ids + 1

    # -- what an engine does --

    def call(self, rows: int, mode: Mode = Mode.DECODE) -> None:
        """One step; its outputs must be its own."""
        outputs = self.runtime(rows=rows, mode=mode, ids=torch.arange(rows, dtype=torch.int32))
        require(outputs.tolist() == [row + 1 for row in range(rows)], "outputs are not those of the live rows")

    def serve(self, rows: int, ticket: Ticket, mode: Mode = Mode.DECODE) -> None:
        """One step, that takes this ticket."""
        before = len(self.grammar.taken)
        self.call(rows, mode)
        self.runtime.backend.synchronize()
        taken = self.grammar.taken[before:]
        require(taken == [ticket], f"a forward took {[str(each) for each in taken]}, and not {ticket}")
        require(not self.runtime.cancel(ticket), "an entry that a forward has taken was cancelled")

    def push(self, rows: int) -> Ticket:
        """The entry of a forward to come."""
        ticket = self.runtime.push(rows, who="the engine")
        assert isinstance(ticket, Ticket)
        return ticket

    def refused(self, rule: str, call: Any, *args: Any) -> None:
        """A call that must be refused by a rule at once, naming who pushed what waits."""
        waits = self.grammar.queue.waiting
        try:
            call(*args)
        except RuleViolation as refusal:
            require(rule == refusal.rule, f"refused by {refusal.rule}, not {rule}")
            named = not waits or any(each.who in str(refusal) for each in waits)
            require(named, f"nobody is named: {refusal}")
        else:
            raise AssertionError(f"{rule} refused nothing")
        require(waits == self.grammar.queue.waiting, "what was refused changed the queue")


def check_queue(history: tuple[tuple[str, int], ...]) -> None:
    """Pushes are pops, drained and cancelled entries, and each forward has its own, whatever is done in which order."""
    engine = Engine()
    engine.runtime.capture()
    for deed, rows in history:
        DEEDS[deed](engine, rows)
        queue, law = engine.grammar.queue, engine.runtime._parts.lifecycle
        counters = dict(zip(law.law.layout.counters, law.runtime_scope.counters, strict=True))
        require(not queue.waiting and not queue.claimed, f"after {deed!r} entries are left: {queue}")
        require(queue.pushed == queue.consumed + queue.cancelled, f"after {deed!r} pushes and pops differ")
        require(counters["waiting"] == counters["held"] == 0, f"after {deed!r} the ledger says {counters}")


def _serve(engine: Engine, rows: int) -> None:
    """In every mode; without rows a decode step is an idle one, too."""
    for mode in LATER if rows else LATER[::2]:
        engine.serve(rows, engine.push(rows), mode)


def _serve_unpushed(engine: Engine, rows: int) -> None:
    engine.refused("R24", engine.call, rows)
    engine.refused("R24", engine.call, rows, Mode.EXTEND)


def _take_of_none(engine: Engine, _rows: int) -> None:
    engine.refused("R24", engine.grammar.queue.claim)
    engine.refused("R24", engine.grammar.queue.consume)


def _push_twice(engine: Engine, rows: int) -> None:
    ticket = engine.push(rows)
    engine.refused("R22b", engine.runtime.push, rows)
    engine.serve(rows, ticket)


def _cancel(engine: Engine, rows: int) -> None:
    ticket = engine.push(rows)
    require(engine.runtime.cancel(ticket), "an entry that waits was not cancelled")
    require(not engine.runtime.cancel(ticket), "an entry was cancelled twice")


def _refused_then_served(engine: Engine, rows: int) -> None:
    ticket = engine.push(rows)
    _raises(BadBatch, lambda: engine.runtime(rows=rows, nobody=torch.zeros(rows)))
    engine.serve(rows, ticket)


def _refused_then_cancelled(engine: Engine, rows: int) -> None:
    ticket = engine.push(rows)
    _raises(BadBatch, lambda: engine.runtime(rows=rows, nobody=torch.zeros(rows)))
    require(engine.runtime.cancel(ticket), "an entry whose step was refused was not left to be cancelled")


def _burst(engine: Engine, rows: int, when: Burning) -> None:
    """A step that raises, before it takes its entry or after."""
    ticket, engine.bursts = engine.push(rows), when
    _raises(Burst, lambda: engine.call(rows, Mode.EXTEND))
    engine.bursts = ""
    require(engine.runtime.cancel(ticket), "an entry whose step failed was not left to be cancelled")


def _recapture(engine: Engine, rows: int, *, waiting: bool, when: Burning = "") -> None:
    """Slots are captured again, well or badly, perhaps while the entry of a live request waits."""
    ticket = engine.push(rows) if waiting else None
    engine.runtime.invalidate("moved")
    engine.bursts = when
    engine.runtime.wake()
    engine.bursts = ""
    if ticket is not None:
        require(engine.grammar.queue.waiting == (ticket,), "a recapture did not leave the live entry where it was")
        engine.serve(rows, ticket)
    engine.runtime.wake()
    states = {slot.state for slot in engine.runtime.slots.values()}
    require(states == {"replayable"}, f"slots are {states}")


def _half(engine: Engine, rows: int, sizes: tuple[int, ...]) -> None:
    """Slots whose recordings are not drained yet: the entries that they left would go to the next forward."""
    keys = [("default", size) for size in sizes]
    engine.runtime.invalidate("moved", *keys)
    engine.runtime.reset(*keys)
    for key in keys:
        for trigger in ("warm", "bind", "capture"):
            engine.runtime.fire(key, trigger)
    ticket = engine.push(rows)
    engine.refused("R22c", engine.call, rows)
    for key in keys:
        engine.runtime.fire(key, "drain")
    engine.serve(rows, ticket)


def _raises(expected: type[Exception], call: Any, *args: Any) -> None:
    try:
        call(*args)
    except expected:
        return
    raise AssertionError(f"no {expected.__name__}")


DEEDS: dict[str, Callable[[Engine, int], None]] = {
    "serve": _serve,
    "serve unpushed": _serve_unpushed,
    "take of none": _take_of_none,
    "push twice": _push_twice,
    "cancel": _cancel,
    "refused, served": _refused_then_served,
    "refused, cancelled": _refused_then_cancelled,
    "burst early": partial(_burst, when="early"),
    "burst late": partial(_burst, when="late"),
    "recapture": partial(_recapture, waiting=False),
    "recapture, waiting": partial(_recapture, waiting=True),
    "recapture, failing": partial(_recapture, waiting=True, when="recording"),
    "half captured": partial(_half, sizes=SIZES[:1]),
    "two half captured": partial(_half, sizes=SIZES[:2]),
}
histories = st.lists(st.tuples(st.sampled_from(tuple(DEEDS)), st.integers(0, MOST)), min_size=1, max_size=6).map(tuple)
