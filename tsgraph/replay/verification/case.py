"""One case: one slot at one number of live rows. It is run eagerly, then replayed after each history, and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch

from tsgraph.errors import CallerError, ContractViolation, StaleSlot
from tsgraph.replay.verification.batches import Batches, litter
from tsgraph.replay.verification.comparisons import Comparisons
from tsgraph.replay.verification.memory import PUT_BACK, Memory
from tsgraph.replay.verification.runs import Run, Runs, Sources, unchanged
from tsgraph.replay.verification.suspicion import Check, History, Place
from tsgraph.slots.slot import Slot

HISTORIES: tuple[History, ...] = ("clean", "again", "dirty", "larger", "shuffled", "others")


@attrs.define(eq=False, kw_only=True)
class Case:
    """`others`: slots that are replayed before one of the replays. `late`: whether the time is up.

    `alike`: whether a live row must not notice how many rows there are, and what they hold. `hostile`: whether integers
    that nobody may read are huge ones.
    """

    slot: Slot
    live: int
    others: Sequence[Slot]
    runs: Runs
    memory: Memory
    batches: Batches
    comparisons: Comparisons
    alike: bool
    hostile: bool
    late: Callable[[], bool]
    _sources: Sources = attrs.field(factory=dict, init=False)
    _now: History = attrs.field(default="eager", init=False)
    _first: Run | None = attrs.field(default=None, init=False)

    def check(self) -> Sequence[History]:
        """Run all of it; the histories for which the time did not suffice.

        What a run raises is a finding, and ends the case.

        Raises: CallerError for wrong inputs, and where rules refuse to serve.
        """
        try:
            return self._check()
        except StaleSlot as error:
            self._stale(error)
        except CallerError:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever it is, the other cases are tried
            self._raised(error)
        return ()

    def _stale(self, error: StaleSlot) -> None:
        """The replay was refused: a refresh has made other memory than the graph reads, or a part says so by itself."""
        changes = [each for each in self.runs.server.guard.changes() if self.slot.key in each.slots]
        for change in changes:
            self.comparisons.findings.add(self.slot.key, "addresses", change.path, change.what, self._place)
        if not changes:
            self._raised(error)

    def _raised(self, error: Exception) -> None:
        """Where the step returns what the marks of its outputs do not know, its structure is another one."""
        check: Check = "structure" if isinstance(error, ContractViolation) and error.protocol == "step" else "errors"
        says = f"raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        self.comparisons.findings.add(self.slot.key, check, "the step", says, self._place)

    @property
    def _place(self) -> Place:
        return Place(self.live, self._now)

    @property
    def histories(self) -> tuple[History, ...]:
        """The histories that there are for this case, in order."""
        size = self.slot.key.size
        void = {"larger": self.live == size, "shuffled": size == 1, "others": not self.others}
        return tuple(history for history in HISTORIES if not void.get(history))

    def _check(self) -> Sequence[History]:
        self._begin()
        eager = self._eagerly()
        for at, history in enumerate(self.histories):
            if self.late():
                return self.histories[at:]
            self._now = history
            self._replayed(eager)
        self._finish(eager)
        return ()

    # -- eagerly ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """All runs begin with what the engine has prepared for a full slot, and then for these rows."""
        self.memory.restore()
        if self.live < self.slot.key.size:
            self.batches.of(self.slot.key.size)
            self.memory.rebase()
        self.batches.of(self.live)
        self.memory.rebase()

    def _eagerly(self) -> Run:
        """What the step makes of its rows at the slot's size, if they are staged as declared: twice the same."""
        self._stage()
        eager, again = self._padded(), self._padded()
        self.comparisons.repeatable(eager, again, self._place)
        return eager

    def _stage(self) -> None:
        size = self.slot.key.size
        declared = self.batches.declared(self.live, size)
        litter(self.runs.arena, (), hostile=self.hostile)
        self._prepare()
        now = self.runs.stage(self.slot, self.live, self._sources)
        self.comparisons.padded(declared, now, self._place)

    def _padded(self) -> Run:
        self.memory.restore()
        self._prepare()
        run = self.runs.padded(self.slot, self.live, self._sources)
        self.comparisons.declared(self._place)
        return run

    def _prepare(self) -> None:
        """Have the engine prepare the rows, and put back what that, or anything before, has changed of the state."""
        self._sources = self.batches.of(self.live)
        self.memory.restore(*PUT_BACK)

    # -- replayed -----------------------------------------------------------------------------------------------------

    def _replayed(self, eager: Run) -> None:
        full = self._lead_up()
        self._prepare()
        before = {label: tensor.clone() for label, tensor in self.runs.arena.tensors().items()}
        with unchanged(self._sources, self._changed_source):
            replay = self.runs.replay(self.slot, self.live, self._sources)
        self.comparisons.declared(self._place)
        self.comparisons.equal(eager, replay, self._place)
        self.comparisons.staged(eager, replay, before, self._place)
        self._first = self._first or replay
        self.comparisons.static(self._first, replay, self._place)
        if full is not None:
            self._compare_company(full)

    def _changed_source(self, names: Sequence[str]) -> None:
        self.comparisons.callers(names, self._place)

    def _lead_up(self) -> Run | None:
        """Make the history; the run of a full slot, if there was one."""
        if self._now == "clean":
            self.memory.restore("buffer")
        elif self._now == "dirty":
            litter(self.runs.arena, self._outputs_in_pool(), hostile=self.hostile)
        elif self._now == "larger":
            return self._full(self.slot)
        elif self._now == "shuffled":
            self._shuffled()
        elif self._now == "others":
            for other in self.others:
                self._full(other)
        return None  # right after the same replay: nothing comes between

    def _full(self, slot: Slot) -> Run:
        """A replay of as many rows as the slot has."""
        sources = self.batches.of(slot.key.size)
        self.memory.restore(*PUT_BACK)
        return self.runs.replay(slot, slot.key.size, sources)

    def _shuffled(self) -> None:
        """An eager step of as many rows as the slot has, in reverse order: metadata are then those of other rows."""
        size = self.slot.key.size
        sources = self.batches.reversed(size)
        self.memory.restore(*PUT_BACK)
        try:
            self.runs.padded(self.slot, size, sources)
        except Exception as error:  # noqa: BLE001 -- the host may know of another order
            self.comparisons.note(f"an eager step of rows in reverse order raised {type(error).__name__}: {error}")

    def _outputs_in_pool(self) -> list[torch.Tensor]:
        """Outputs of earlier replays: until the next one they are the caller's, then nobody's."""
        pool = self.runs.server.engine.pool
        held = [slot.outputs for slot in self.runs.server.slots.values() if slot.outputs is not None]
        leaves = [leaf for outputs in held for leaf in outputs.leaves if leaf is not None]
        return [leaf for leaf in leaves if pool is not None and pool.holds(leaf.data_ptr())]

    # -- pads, and other company --------------------------------------------------------------------------------------

    def _compare_company(self, full: Run) -> None:
        if not self.alike or self.live == 0 or self._first is None:
            return
        if self.batches.begin_alike(self.slot.key.size, self.live):
            self.comparisons.company(self._first, full, self._place)
        else:
            self.comparisons.note(NOT_NESTED)

    def _finish(self, eager: Run) -> None:
        """Beside the histories: the live rows without any pad, or pads without any live row."""
        if self.live and self.alike:
            self._now = "eager"
            self.memory.restore()
            self._prepare()
            alone = self.runs.alone(self.slot, self.live, self._sources)
            self.comparisons.declared(self._place)
            self.comparisons.isolated(alone, eager, self._place)
        if not self.live:
            self._idle()
        self.comparisons.declared(self._place, constants=True)

    def _idle(self) -> None:
        """Pad rows alone, over a state that is nudged, so that they cannot write what is there already."""
        self._now = "idle"
        self.memory.restore()
        self.memory.nudge()
        try:
            run = self.runs.replay(self.slot, 0, {})
            self.comparisons.pads_in_sinks(run.left, self._place)
        finally:
            self.memory.restore(*PUT_BACK)
            self.memory.nudge()


NOT_NESTED = (
    "a batch of more rows does not begin with the batch of fewer: that pads and other rows are the same to a live row "
    "was tried by rounding alone"
)
