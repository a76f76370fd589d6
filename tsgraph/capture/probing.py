"""Recording a step twice, under two circumstances, to see what is baked in that should not be (faults C3, C7, C10).

Each recording is a whole life: a slot that nobody serves is warmed, bound and captured along the spec, under rules and
monitors of its own, into a pool of its own, and released. Slots, live state, random numbers and the rows of buffers are
as before; so is the grammar queue, as after any late capture.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import attrs

from tsgraph.buffers.stagings import Stagings
from tsgraph.capture.pipeline import Engine
from tsgraph.capture.session import Capturer
from tsgraph.errors import CaptureFailed
from tsgraph.events import Observers
from tsgraph.keys import Batch, SlotKey
from tsgraph.lifecycle import Lifecycle
from tsgraph.receipts.probe import Probe
from tsgraph.receipts.receipt import CaptureReceipt
from tsgraph.slots.slot import Slot

Context = Callable[[], AbstractContextManager[object]]
"""Makes what a recording is made in: another temperature, say."""


def probe_constants(
    capturer: Capturer, batch: Batch, contexts: tuple[Context, Context] = (nullcontext, nullcontext)
) -> Probe:
    """What differs between two recordings of `batch`: a slot's own, or one like it over the static buffers.

    The first is made in `contexts[0]()`, its rows as in any warm-up; the second in `contexts[1]()`, with what buffers
    declare as `probe`. With several ranks, all of them probe.

    Raises: CaptureFailed, with nothing left, where one cannot be captured; what a context raises.
    """
    receipts = [_record(capturer, batch, context, second=bool(at)) for at, context in enumerate(contexts)]
    return Probe.of(*receipts)


def _record(capturer: Capturer, batch: Batch, context: Context, *, second: bool) -> CaptureReceipt:
    spec = attrs.evolve(capturer.spec, policy=attrs.evolve(capturer.spec.policy, on_capture_failure="raise"))
    lifecycle = Lifecycle(spec)
    lifecycle.set_up(lambda _: None)  # the parts are set up already
    slot = _slot(lifecycle, batch)
    engine = _scratch(capturer.engine, probing=second)
    try:
        with context():
            Capturer(spec, lifecycle, engine, Observers()).capture([slot])
        return _taken(slot)
    finally:
        slot.forget()
        engine.pool = None
        engine.backend.trim()


def _scratch(engine: Engine, *, probing: bool) -> Engine:
    """The same engine with a pool of its own, that tells nobody, and makes nothing ready for calls."""
    stagings, recorder = Stagings(engine.arena, "copies"), engine.recorder.quiet()
    return attrs.evolve(engine, pool=None, probing=probing, stagings=stagings, recorder=recorder)


def _slot(lifecycle: Lifecycle, batch: Batch) -> Slot:
    """A slot for a batch of its own: a capture binds the mask to it."""
    key = SlotKey(batch.variant, batch.rows)
    return Slot(key, lifecycle.begin(str(key), key.variant), attrs.evolve(batch, mask=None))


def _taken(slot: Slot) -> CaptureReceipt:
    """The receipt without the memory: nothing replays what it tells of."""
    if slot.receipt is None:
        raise CaptureFailed(f"the probe of slot {slot.key} took no receipt", hint="let the spec's route record")
    return attrs.evolve(slot.receipt, kept=())
