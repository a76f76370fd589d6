"""The front doors: `GraphRuntime.for_step` for any function over batch rows, `GraphRuntime` for a whole engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch

from tsgraph.assembly import Collaborators, Declaration, assemble
from tsgraph.buffers.contract import Fixed, Rows, State, as_buffers
from tsgraph.errors import BadBatch, CallerError
from tsgraph.events import Observer
from tsgraph.grammar.door import callers_line
from tsgraph.introspect import count_replays, describe_runtime, slot_table
from tsgraph.keys import Batch, Decision, Geometry, Mode, RankCounts, Step
from tsgraph.observe.logs import write_log
from tsgraph.replay.verification.verifier import Wish
from tsgraph.slots.fetch import Fetched, fetch
from tsgraph.slots.leases import copied
from tsgraph.slots.outputs import Marks
from tsgraph.spec.load import load_spec, with_policy
from tsgraph.spec.model import Spec
from tsgraph.upkeep import Upkeep

if TYPE_CHECKING:
    from tsgraph.grammar.door import Door
    from tsgraph.protocols.backend import Backend
    from tsgraph.replay.verification.report import VerifyReport


class GraphRuntime(Upkeep):
    """Captures the slots of one engine and serves its steps through them.

    One entry point serves every step: a decode step that a slot fits is replayed, any other runs eagerly, and both give
    outputs at live size. Outputs of a replay are views of static memory: read or copy them before the next call (R40).
    """

    def __init__(
        self,
        spec: Spec | str,
        step: Callable[[Batch], Any],
        *,
        geometry: Geometry,
        sizes: Sequence[int] | None = None,
        outputs: Marks = None,
        modules: Iterable[torch.nn.Module] = (),
        state: Mapping[str, State] | None = None,
        fixed: Mapping[str, Fixed] | None = None,
        memory: Mapping[str, torch.Tensor] | None = None,
        attention: Any = None,
        sampler: Any = None,
        grammar: Any = None,
        drafter: Any = None,
        recurrent: Any = None,
        comm: Any = None,
        ranks: Any = None,
        backend: str | Backend = "auto",
        device: str | torch.device | None = None,
        policy: Mapping[str, Any] | None = None,
        memory_budget: int | None = None,
        observers: Iterable[Observer] = (write_log,),
    ) -> None:
        """Build the runtime of `step`, a function from a `Batch` to any pytree of tensors. Nothing is captured yet.

        `sizes` replaces the spec's; `outputs` replaces its marks. `state` declares the mutable tensors that `step`
        writes, `fixed` tensors that it gets as they are, `memory` tensors of the engine's own that are to be static
        buffers, by name. `device` matters only where no module or state lives anywhere. `policy` replaces words of the
        spec's: `{"outputs": "leased"}`. `memory_budget`: the most bytes that graphs may hold (None: any number).

        Raises: SpecError, BadBatch or ContractViolation where spec, geometry and collaborators do not fit together.
        """
        law = load_spec(spec) if isinstance(spec, str) else spec
        declared = Declaration(
            spec=law if policy is None else with_policy(law, policy),
            step=step,
            geometry=geometry,
            collaborators=Collaborators(attention, sampler, grammar, drafter, recurrent, comm, ranks),
            sizes=sizes,
            outputs=outputs,
            modules=tuple(modules),
            state=dict(state or {}),
            fixed={name: declared.tensor for name, declared in (fixed or {}).items()},
            memory=dict(memory or {}),
            backend=backend,
            device=device,
            observers=observers,
            memory_budget=memory_budget,
        )
        self._parts = assemble(declared)
        self._server = self._parts.server()
        self._serve: Callable[..., tuple[Any, Decision]] = self._server.serve
        self._turnstile = self._server.turnstile
        self._keeper = self._parts.keeper(self._publish)
        self._server.want, self._server.stale = self._keeper.want, self._keeper.invalidate
        self.spec = self._parts.spec
        self.geometry = geometry
        self.backend = self._parts.engine.backend
        self.slots = self._parts.slots
        self._enabled = True
        self._publish()

    @classmethod
    def for_step(
        cls,
        step: Callable[..., Any],
        *,
        inputs: Mapping[str, Rows | Fixed],
        sizes: Sequence[int],
        outputs: Marks = None,
        tokens_per_request: int = 1,
        spec: Spec | str = "decode",
        **rest: Any,
    ) -> GraphRuntime:
        """The short door: `step` gets its `inputs` by keyword, each cut to the step's rows.

        The lifecycle, rules and policies are those of `spec`; buffers and outputs are declared here. `rest` goes to
        the constructor: `modules`, `state`, `device`, `backend`, collaborators.
        """
        law = load_spec(spec) if isinstance(spec, str) else spec
        rows = {name: declared for name, declared in inputs.items() if isinstance(declared, Rows)}
        fixed = {name: declared for name, declared in inputs.items() if isinstance(declared, Fixed)}
        unknown = inputs.keys() - rows.keys() - fixed.keys()
        if unknown:
            raise BadBatch(f"inputs {', '.join(sorted(unknown))} are neither Rows nor Fixed")
        cap = max((law.sizes.cap, *sizes))  # sizes asked for by name are not capped by a default
        return cls(
            attrs.evolve(law, buffers=as_buffers(rows), outputs={}, sizes=attrs.evolve(law.sizes, cap=cap)),
            _by_keyword(step, tuple(inputs)),
            geometry=Geometry(rows=max(sizes, default=1), tokens_per_request=tokens_per_request),
            sizes=sizes,
            outputs=outputs,
            fixed=fixed,
            **rest,
        )

    # -- serving ------------------------------------------------------------------------------------------------------

    def __call__(
        self,
        *,
        rows: int | None = None,
        mode: Mode = Mode.DECODE,
        variant: str | None = None,
        counts: RankCounts | None = None,
        clone: bool = False,
        **sources: Any,
    ) -> Any:
        """Serve one step; returns its outputs at live size.

        `rows`: live rows (None: taken from the sources). `sources`: one tensor per declared buffer, host or device,
        `rows` (or rows · tokens per request) leading entries. `counts`: what all ranks bring, if several. `clone`:
        the outputs are copies, to be kept as long as you like.

        Raises: BadBatch, with nothing changed, where a source does not fit; ReplayFailed where the device fails.
        """
        return self._serve(rows, mode, variant, counts, clone, sources)[0]

    def step(
        self,
        *,
        rows: int | None = None,
        mode: Mode = Mode.DECODE,
        variant: str | None = None,
        counts: RankCounts | None = None,
        clone: bool = False,
        **sources: Any,
    ) -> Step:
        """As calling the runtime, with the decision and a mark to wait for. `clone`: as for a call."""
        outputs, decision = self._serve(rows, mode, variant, counts, clone, sources)
        return Step(outputs, decision, self.backend.ready())

    def fetch(self, outputs: Any) -> Fetched:
        """Begin to copy a step's outputs to the host, without waiting: `.result()` waits, and has them (fault D5).

        The copies are the caller's own: later replays leave them as they are.
        """
        return fetch(outputs, self.backend)

    def explain(
        self,
        rows: int,
        *,
        mode: Mode = Mode.DECODE,
        variant: str | None = None,
        counts: RankCounts | None = None,
    ) -> Decision:
        """Where such a step would go, and why. Pure: nothing is run or counted."""
        return self._server.explain(rows, mode, variant, counts)

    def eager(
        self,
        *,
        rows: int | None = None,
        mode: Mode = Mode.DECODE,
        variant: str | None = None,
        counts: RankCounts | None = None,
        padded_to: int | None = None,
        clone: bool = False,
        **sources: Any,
    ) -> Any:
        """Run one step eagerly, whatever slots there are; returns its outputs at live size.

        `padded_to`: do all that a replay of so many rows does, but run the step: what it must equal bitwise (at another
        shape, products round differently). Then `counts` are those of a recording. `clone`: as for a call.
        """
        with self._turnstile.passing("an eager step", recorded=True):
            if padded_to is not None:
                outputs = self._server.eager_padded(padded_to, rows, variant, sources)
            else:
                outputs = self._server.eager(rows, mode, variant, counts, sources)
            return copied(outputs) if clone else outputs

    # -- grammar ------------------------------------------------------------------------------------------------------

    def push(
        self, rows: int, *entry: Any, who: str | None = None, by: Callable[..., Any] | None = None, **words: Any
    ) -> Any:
        """Push the grammar entry of the next forward, of `rows` live rows; returns its ticket.

        Every forward takes exactly one, an idle one (0 rows) included. Where serving raises before its graph was
        launched, or its step raises, the entry is left: `cancel` it, or serve again if the step had not taken it yet.
        `entry` and `words` are further arguments of the grammar's `push`, or of `by` in its place. `who` pushes, for
        errors (None: the caller's line).

        Raises: RuleViolation while another entry waits (R22), naming who pushed it; CallerError without a grammar; what
        the grammar raises. Nothing is pushed then.
        """
        who = who or callers_line()
        with self._turnstile.passing("push", recorded=True):
            return self._entrance().push(rows, *entry, who=who, by=by, **words)

    def cancel(self, ticket: Any) -> bool:
        """Take back the entry of `ticket`, if no forward was served with it; whether it waited.

        A step that raised was not served: what it drew is never accepted.
        """
        with self._turnstile.passing("cancel", recorded=True):
            return self._entrance().cancel(ticket)

    def _entrance(self) -> Door:
        if self._parts.door is None:
            raise CallerError("there is no grammar to push entries for", hint="pass grammar= to the runtime")
        return self._parts.door

    # -- introspection ------------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> tuple[int, ...]:
        """The capture sizes, in rows, increasing."""
        return self._parts.sizes

    @property
    def variants(self) -> tuple[str, ...]:
        """The sampler variants, the default first."""
        return self._parts.variants

    @property
    def enabled(self) -> bool:
        """Whether slots are used; switch it off and every step runs eagerly."""
        return self._enabled

    @enabled.setter
    def enabled(self, on: bool) -> None:
        with self._turnstile.passing("enabled", recorded=True):
            self._enabled = on
            self._publish()

    def observe(self, observer: Observer) -> None:
        """Tell `observer` every event from now on: captures, refusals, failures, changed reasons. Never a replay."""
        self._parts.observers.add(observer)

    def counters(self) -> dict[str, Any]:
        """Replays, pad rows that they computed, and eager steps by reason."""
        return {**count_replays(self.slots.values()), "eager": self._server.reasons.by_name()}

    def verify(
        self,
        inputs: Callable[[int], Mapping[str, Any]] | None = None,
        *,
        slots: Iterable[tuple[str, int]] = (),
        rows: Iterable[int] = (),
        tolerance: float | None = None,
        alike: bool = True,
        hostile: bool | None = None,
        seed: int = 0,
        seconds: float | None = None,
    ) -> VerifyReport:
        """Hold replays against eager steps, over dirty buffers and after other replays; see the report for the proof.

        Each replayable slot (or those of `slots`) serves 1, size - 1, size and 0 live rows (or `rows`) after every
        history. May be called between two steps of a live engine: state, recurrent state, random generators, grammar
        queue and counters are then as before; as in any call, outputs handed out earlier are overwritten (R40).

        `inputs`: what a call passes for so many rows; it may do whatever the engine does before such a step, and must
        give the same each time. None: dummy rows, drawn by `seed`, which show little. `tolerance`: how far floats
        may be from eager at the slot's size, as a part of the largest in the tensor (None: not a bit). `alike`: live
        rows do not depend on how many there are. `hostile`: integers that nobody may read are huge ones; a graph that
        reads them may end the process on a GPU (None: only where it would not). `seconds`: stop when they are over.

        Raises: BadBatch for wrong inputs; CallerError for a slot that cannot be replayed; RuleViolation where rules
        refuse to serve; OutOfBudget for a state of which no copy can be kept.
        """
        wish = Wish(inputs, tuple(slots), tuple(rows), tolerance, alike, hostile, seed, seconds)
        with self._turnstile.passing("verify"):
            return self._parts.verifier(self._server, wish).verify()

    def snapshot(self) -> dict[str, Any]:
        """Everything about the runtime as plain JSON data."""
        return describe_runtime(self)

    def table(self, width: int = 100) -> str:
        """The slots as a table of `width` columns."""
        return slot_table(self.slots.values(), width)

    def __repr__(self) -> str:
        return f"<GraphRuntime {self.spec.name} on {self.backend.device} ({self.backend.name}), {self.slots!r}>"


def _by_keyword(step: Callable[..., Any], names: tuple[str, ...]) -> Callable[[Batch], Any]:
    def step_of_batch(batch: Batch) -> Any:
        return step(**{name: batch[name] for name in names})

    return step_of_batch
