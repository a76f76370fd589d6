"""The work behind the spec's steps. The spec says which, in what order and under which rules; this says how.

One method per step, named like it. A step may be listed, moved or dropped in a spec without touching this file; a step
that has no method here is refused when the runtime is built.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import chain
from typing import Any, Literal

import attrs
import torch

from tsgraph.buffers.arena import Arena
from tsgraph.buffers.audit import WriteAudit
from tsgraph.buffers.stagings import Stagings
from tsgraph.buffers.state import StateGuard
from tsgraph.capture.agreement import SETTLE_SECONDS, digest_of_recording
from tsgraph.capture.drafting import Drafting
from tsgraph.capture.laziness import Laziness
from tsgraph.capture.mode import set_capturing
from tsgraph.capture.setup import SetupWork
from tsgraph.dispatch.peers import Peers
from tsgraph.errors import ContractViolation, InternalError, SpecError
from tsgraph.grammar.tickets import require_claimed
from tsgraph.keys import Batch
from tsgraph.protocols.backend import Backend, Pool
from tsgraph.protocols.collaborators import Attention, Communication, Grammar, Ranks, Sampler
from tsgraph.receipts.heirs import Heir
from tsgraph.receipts.receipt import CaptureReceipt
from tsgraph.receipts.recorder import Recorder
from tsgraph.slots.outputs import OutputMarks
from tsgraph.slots.slot import Slot
from tsgraph.spec.model import Spec, Step


@attrs.define(eq=False, kw_only=True)
class Engine:
    """What a pipeline works with: the engine's step and collaborators, and the memory they share.

    `probing`: rows hold what they hold in the second recording of a probe.
    """

    step: Callable[[Batch], Any]
    backend: Backend
    arena: Arena
    guard: StateGuard
    marks: OutputMarks
    audit: Callable[[], WriteAudit] | None
    addresses: Callable[[], Mapping[str, int]]
    recorder: Recorder
    generations: Callable[[], Mapping[str, int]] = dict
    peers: Peers = attrs.field(factory=Peers)
    attention: Attention | None = None
    sampler: Sampler | None = None
    grammar: Grammar | None = None
    drafting: Drafting | None = None
    comm: Communication | None = None
    ranks: Ranks | None = None
    pool: Pool | None = None
    probing: bool = False
    stagings: Stagings = attrs.field(default=attrs.Factory(lambda self: Stagings(self.arena), takes_self=True))
    laziness: Laziness = attrs.field(factory=Laziness)

    def forward(self, batch: Batch) -> Any:
        """One call of the engine's step, in inference mode like every path of the runtime."""
        with torch.inference_mode():
            return self.step(batch)

    def collaborator(self, name: str) -> Any:
        """The collaborator called `name`. A spec whose step forgot its `needs` ends here."""
        part = getattr(self, name)
        if part is None:
            what = f"a step of the spec uses the {name}, but there is none"
            raise InternalError(what, hint=f'declare needs = "{name}" for it')
        return part


_GENERATIONS = {"young": 1, "all": 2}
"""Up to which generation the collector looks."""


@attrs.define(eq=False)
class SessionWork:
    """Does the steps around a run of captures (rule R43). `collect`: the policy's word."""

    collect: Literal["all", "young"] = attrs.field(default="all", kw_only=True)
    _thaw: Callable[[], None] = attrs.field(default=lambda: None, init=False)

    def perform(self, step: Step) -> str | None:
        """Do one step; returns its outcome where the step declares several."""
        work: Callable[[], str | None] = getattr(self, step.name)
        return work()

    def freeze_gc(self) -> None:
        """Collect, then keep the collector away: no old graph dies inside a recording (fault K1), garbage or not.

        What is frozen is beyond a collection that somebody else asks for, too. Where the application froze objects of
        its own, unfreezing would thaw those as well: the collector is then only switched off.
        """
        gc.collect(_GENERATIONS[self.collect])
        with ExitStack() as thaw:
            if gc.isenabled():
                thaw.callback(gc.enable)
                gc.disable()
            if not gc.get_freeze_count():
                gc.freeze()
                thaw.callback(gc.unfreeze)
            self._thaw = thaw.pop_all().close

    def thaw_gc(self) -> None:
        """Do what the collector left, then let it work as before.

        Nothing has aged since it was switched off, so a look at what is young is one at all that was made meanwhile.
        """
        gc.collect(_GENERATIONS["young"])
        self._thaw()


@attrs.define(eq=False)
class Pipeline(SessionWork):
    """Does the steps of one slot. A life calls `perform` for each step that its spec declares."""

    engine: Engine = attrs.field(kw_only=True)
    slot: Slot = attrs.field(kw_only=True)

    # -- warm ---------------------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait for all work of the device."""
        self.engine.backend.synchronize()

    def meet_ranks(self) -> None:
        """Wait for the other ranks."""
        self.engine.collaborator("ranks").meet()

    def prepare_sampler(self) -> None:
        """Fill RNG buffers, outside any recording (R11)."""
        self.engine.collaborator("sampler").prepare(self.slot.batch)

    def fill_lengths(self) -> None:
        """Give every row what rows hold in a warm-up (R7), or in a probe."""
        fill = self.engine.arena.fill_probe if self.engine.probing else self.engine.arena.fill_warm
        fill(self.slot.key.size)

    def bind_metadata(self) -> None:
        """Make the target's metadata views of static buffers, then the draft's."""
        for part in (self.engine.attention, self.engine.drafting):
            if part is not None:
                part.bind(self.slot.batch)

    def bind_mask(self) -> None:
        """Give the batch the mask that replays refill (R18)."""
        self.slot.batch.mask = self.engine.collaborator("grammar").bind(self.slot.batch)

    def push_grammar(self) -> None:
        """Push the entry of the next forward (R22)."""
        who = f"slot {self.slot.key}"
        ticket = self.engine.collaborator("grammar").push(self.slot.key.size, who=who, ahead=True)
        self.slot.tickets.append(ticket)

    def forward(self) -> None:
        """Run the step for real, on the capture stream; live state stays as it is (R12)."""
        with self.engine.backend.side_stream(), self.engine.guard.protected(), self._audited():
            self.engine.forward(self.slot.batch)
        self.slot.warmed = True
        self._consumed()

    def _consumed(self) -> None:
        """A warm-up has consumed its entry; one that did not is an error at once (R25)."""
        for ticket in self.slot.tickets:
            require_claimed(ticket)
        self.slot.tickets.clear()

    def _audited(self) -> AbstractContextManager[Any]:
        return self.engine.audit() if self.engine.audit else nullcontext()

    # -- bind and capture ---------------------------------------------------------------------------------------------

    def reset_sampler(self) -> None:
        """Forget what warm-ups accumulated (R10)."""
        self.engine.collaborator("sampler").reset()

    def arm_comm(self) -> None:
        """Put the communication library into its recorded mode."""
        self.engine.collaborator("comm").arm()

    def check_views(self) -> None:
        """Refuse a batch that holds copies instead of views (R19), or counts other than the dummies (R14, R15)."""
        views = self.engine.arena.views(self.slot.key.size)
        for name, held in self.slot.batch.buffers.items():
            if held is not views[name]:
                raise ContractViolation("Batch", name, "the view of its static buffer", "another tensor (R19)")
        self._check_counts()

    def _check_counts(self) -> None:
        uniform, held = self.engine.peers.uniform(self.slot.key.size), self.slot.batch.counts
        if held != uniform:
            hint = "what one rank brings now would be frozen into the graph; leave the batch's counts alone"
            raise ContractViolation("Batch", "counts", repr(uniform), f"{held!r} (R14, R15)", hint=hint)

    def enter_capture_mode(self) -> None:
        """Tell layers that a recording is being made (R20)."""
        set_capturing(True)

    def record(self) -> None:
        """Record the step, bind what it returned, and take the receipt of it: by a watch, or over from another slot.

        What looks like an address may be none. So a recording that nobody watched, and that seems to be handed what its
        model was not, is made again, watched, wherever the step can be called once more without anybody's knowing.
        """
        laziness, backend = self.engine.laziness, self.engine.backend
        self.slot.addresses.update(self.engine.addresses())
        self.slot.generations.update(self.engine.generations())
        allocated, model = backend.allocated, laziness.model(self.slot)
        returned = self._recorded(model)
        if model is not None and self._repeatable and laziness.doubts(self.slot):
            del returned
            self._drop_recording()
            returned = self._recorded(None)
        laziness.check(self.slot, returned, backend.allocated - allocated)

    @property
    def _repeatable(self) -> bool:
        """Whether neither another rank nor a queue of entries counts the forwards."""
        return self.engine.grammar is None and self.engine.peers.count == 1

    def _recorded(self, model: CaptureReceipt | None) -> Any:
        """What the step returned while it was recorded: watched, or else taken to touch what `model` says."""
        slot, pool, recorder = self.slot, self._pool(), self.engine.recorder
        staging, began = self.engine.stagings.of(slot.key.size), time.perf_counter()
        watch = recorder.watch(pool, slot.batch) if model is None else None
        with self.engine.backend.record(pool, reach=self.engine.laziness.asks) as graph, watch or nullcontext():
            staging.record()
            returned = self.engine.forward(slot.batch)
        slot.graph = graph
        slot.outputs = self.engine.marks.bind(returned, rows=slot.batch.rows, tokens=slot.batch.tokens)
        if watch is not None:
            slot.receipt = recorder.take(slot.key, watch, graph, returned)
            recorder.judge(slot.receipt)
        elif model is not None:
            heir = Heir(slot.key, graph, returned, time.perf_counter() - began, model)
            slot.receipt = heir.receipt(recorder.owners, pool)
        return returned

    def _drop_recording(self) -> None:
        """Give back a recording of which nobody knows yet."""
        graph, self.slot.graph, self.slot.outputs, self.slot.receipt = self.slot.graph, None, None, None
        if graph is not None:
            graph.release()

    def _pool(self) -> Pool:
        if self.engine.pool is None:
            self.engine.pool = self.engine.backend.pool()
        return self.engine.pool

    def leave_capture_mode(self) -> None:
        """Tell layers that it is over (R20)."""
        set_capturing(False)

    # -- drain and failure --------------------------------------------------------------------------------------------

    def check_addresses(self) -> None:
        """Refuse a recording whose memory has moved since (R21)."""
        now = self.engine.addresses()
        for name, address in self.slot.addresses.items():
            if now.get(name) != address:
                raise ContractViolation(
                    "step",
                    name,
                    f"the address it was recorded at, {address:#x}",
                    f"{now.get(name, 0):#x} (R21)",
                    hint="update tensors in place; a replay reads the address it recorded",
                )

    def drain_grammar(self) -> None:
        """Cancel the entries that only this slot still holds (R23)."""
        while self.slot.tickets:
            self.engine.collaborator("grammar").cancel(self.slot.tickets.pop())

    def reset_grammar(self) -> None:
        """Forget the entries of warm-up and recording (R23)."""
        self.engine.collaborator("grammar").reset()

    def settle_ranks(self) -> str:
        """Vote on the recording, well or badly ended, and take the verdict (R6)."""
        ok = self.slot.graph is not None
        digest = digest_of_recording(self.slot.key, self.slot.batch)
        verdict = self.engine.collaborator("ranks").settle(f"capture {self.slot.key}", ok, digest, SETTLE_SECONDS)
        return f"ranks_{verdict}"

    def release_graph(self) -> None:
        """Give back the recording and its memory."""
        self.slot.forget()


def check_steps(spec: Spec) -> None:
    """Refuse a spec with a step that nothing here does. Raises SpecError naming each.

    Serving steps do no work: they only feed the runtime scope.
    """
    serving = set(chain(*attrs.astuple(spec.serving)))
    work: dict[str, type] = dict.fromkeys((*spec.session.enter, *spec.session.leave), SessionWork)
    work |= dict.fromkeys(spec.setup.steps, SetupWork)
    workers = {name: work.get(name, Pipeline) for name in spec.steps if name not in serving}
    unknown = sorted(name for name, worker in workers.items() if not hasattr(worker, name))
    if unknown:
        raise SpecError(spec.source, tuple(f"steps.{name}: no work has this name" for name in unknown))
