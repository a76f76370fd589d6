"""Putting a runtime together: spec, geometry, memory, collaborators and slots, checked against each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Any, Protocol

import attrs
import torch

from tsgraph.backends.choice import choose_backend
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.audit import WriteAudit
from tsgraph.buffers.contract import Field, State, check_honoured, resolve_fields
from tsgraph.buffers.owners import Owners
from tsgraph.buffers.stagings import Stagings
from tsgraph.buffers.state import StateGuard
from tsgraph.capture.budget import Budget
from tsgraph.capture.drafting import Drafting
from tsgraph.capture.eviction import is_evicted
from tsgraph.capture.keeper import Keeper
from tsgraph.capture.laziness import Laziness
from tsgraph.capture.pipeline import Engine, check_steps
from tsgraph.capture.plan import plan_capture, with_default
from tsgraph.capture.session import Capturer
from tsgraph.capture.setup import SetupWork, check_capabilities
from tsgraph.dispatch.decision import Dispatch
from tsgraph.dispatch.peers import Peers
from tsgraph.dispatch.sizes import capture_sizes
from tsgraph.errors import BadBatch, ContractViolation
from tsgraph.events import Observer, Observers
from tsgraph.grammar.door import Door
from tsgraph.keys import Batch, Geometry, Mode, Reason
from tsgraph.lifecycle import Lifecycle
from tsgraph.protocols import collaborators as protocols
from tsgraph.protocols.backend import Backend
from tsgraph.receipts.recorder import Recorder
from tsgraph.replay.guard import Guard
from tsgraph.replay.reasons import EagerReasons
from tsgraph.replay.routes import Routes
from tsgraph.replay.server import Server
from tsgraph.replay.turnstile import Turnstile
from tsgraph.replay.verification.memory import Holdings
from tsgraph.replay.verification.verifier import Verifier, Wish
from tsgraph.slots.leases import Leases
from tsgraph.slots.outputs import Marks, OutputMarks
from tsgraph.slots.registry import Slots
from tsgraph.slots.slot import Slot
from tsgraph.spec.model import Output, Spec

PROTOCOLS = {
    "attention": protocols.Attention,
    "sampler": protocols.Sampler,
    "grammar": protocols.Grammar,
    "drafter": protocols.Drafter,
    "recurrent": protocols.Recurrent,
    "comm": protocols.Communication,
    "ranks": protocols.Ranks,
}


@attrs.frozen
class Collaborators:
    """The engine's parts, each there or None."""

    attention: protocols.Attention | None = None
    sampler: protocols.Sampler | None = None
    grammar: protocols.Grammar | None = None
    drafter: protocols.Drafter | None = None
    recurrent: protocols.Recurrent | None = None
    comm: protocols.Communication | None = None
    ranks: protocols.Ranks | None = None

    def present(self) -> dict[str, Any]:
        """Those that are there, by name."""
        return {name: part for name in PROTOCOLS if (part := getattr(self, name)) is not None}

    def check_members(self) -> None:
        """Refuse a part that lacks a member of its protocol."""
        for name, part in self.present().items():
            _check_members(PROTOCOLS[name], part)

    def check_ranks(self) -> None:
        """Refuse ranks that cannot be counted: wrong numbers would misread every step's counts."""
        if self.ranks is None:
            return
        count, index = self.ranks.count, self.ranks.index
        if type(count) is not int or count < 1:
            raise ContractViolation("Ranks", "count", "an integer, at least 1", repr(count))
        if type(index) is not int or index not in range(count):
            raise ContractViolation("Ranks", "index", f"an integer from 0 to {count - 1}", repr(index))

    def metadata(self) -> dict[str, protocols.Attention]:
        """Those that have metadata, by name: the target's first, then the draft's."""
        parts = {"Attention": self.attention, "Drafter": self.drafter}
        return {name: part for name, part in parts.items() if part is not None}

    def written(self) -> dict[str, torch.Tensor]:
        """The memory of parts that steps write: a part names it in `written`, if it has such."""
        parts = self.present().items()
        return {f"{name} {key}": each for name, part in parts for key, each in getattr(part, "written", {}).items()}

    def generations(self) -> dict[str, int]:
        """The generation of each part that counts how often it has replaced memory."""
        counts = {name: getattr(part, "generation", None) for name, part in self.present().items()}
        return {name: count for name, count in counts.items() if isinstance(count, int)}

    def check_pads(self, fields: Sequence[Field]) -> None:
        """Refuse a part that reads a buffer and does not honour its pad."""
        for name, part in self.present().items():
            honours = getattr(part, "honours", None)
            if honours is not None:
                check_honoured(fields, name, honours)


@attrs.frozen(kw_only=True)
class Declaration:
    """What a runtime is built from: the arguments of `GraphRuntime`, each in its final form."""

    spec: Spec
    step: Callable[[Batch], Any]
    geometry: Geometry
    collaborators: Collaborators
    sizes: Sequence[int] | None
    outputs: Marks
    modules: tuple[torch.nn.Module, ...]
    state: MutableMapping[str, State]
    fixed: MutableMapping[str, torch.Tensor]
    memory: Mapping[str, torch.Tensor]
    backend: str | Backend
    device: str | torch.device | None
    observers: Iterable[Observer]
    memory_budget: int | None = None

    def law(self) -> Spec:
        """The spec without what absent collaborators make void, every step of it one that the pipeline can do."""
        self.collaborators.check_members()
        self.collaborators.check_ranks()
        check_capabilities(self.geometry, self.collaborators.metadata())
        present = frozenset(self.collaborators.present()) | frozenset(self.geometry.conventions)
        law = self.spec.restricted_to(present)
        check_steps(law)
        return law

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The engine's own memory: what graphs may read and write besides the static buffers."""
        for index, module in enumerate(self.modules):
            for name, tensor in chain(module.named_parameters(), module.named_buffers()):
                yield f"module {index} {name}", tensor
        yield from ((f"state {name}", declared.tensor) for name, declared in self.state.items())
        yield from ((f"fixed {name}", tensor) for name, tensor in self.fixed.items())

    def replace(self, state: Mapping[str, State], fixed: Mapping[str, torch.Tensor]) -> None:
        """Take these for what was declared under their names. Raises: BadBatch for others, with nothing changed."""
        unknown = [f"state {name}" for name in state.keys() - self.state.keys()]
        unknown += [f"fixed {name}" for name in fixed.keys() - self.fixed.keys()]
        if unknown:
            what = f"{', '.join(sorted(unknown))} was never declared"
            raise BadBatch(what, hint="declare it when the runtime is built")
        self.state.update(state)
        self.fixed.update(fixed)

    def place(self) -> Backend:
        """The backend, told which tensors live on its device."""
        tensors = [*(tensor for _, tensor in self.named_tensors()), *self.memory.values()]
        place = choose_backend(self.backend, tensors, self.device)
        place.adopt(tensors)
        return place

    def arena(self, law: Spec, rows: int, place: Backend) -> Arena:
        """The static buffers, their pads honoured by every collaborator."""
        fields = resolve_fields(law.buffers, self.geometry)
        self.collaborators.check_pads(fields)
        return Arena(fields, rows, place, self.memory)

    def engine(self, law: Spec, arena: Arena, observers: Observers) -> Engine:
        """What pipelines and programs work with."""
        present, written = self.collaborators.present(), self.collaborators.written()
        owners = Owners(arena, self.state, self.modules, self.fixed, written, present, self.step)
        recorder = Recorder(spec=law.name, policy=law.policy, owners=owners, arena=arena, observers=observers)
        parts = {name: part for name, part in present.items() if name not in ("recurrent", "drafter")}
        return Engine(
            step=self.step,
            backend=arena.backend,
            arena=arena,
            guard=StateGuard(self.state, arena.backend),
            marks=_marks(law.outputs, self.outputs),
            audit=(lambda: WriteAudit(owners)) if law.policy.undeclared_writes == "refuse" else None,
            addresses=lambda: self._addresses(arena),
            recorder=recorder,
            generations=self.collaborators.generations,
            peers=self.peers(),
            drafting=self._drafting(arena),
            stagings=Stagings(arena, law.policy.staging),
            laziness=Laziness(law.policy.receipts, owners),
            **parts,
        )

    def _drafting(self, arena: Arena) -> Drafting | None:
        drafter = self.collaborators.drafter
        return None if drafter is None else Drafting.of(drafter, self.geometry, arena.fields)

    def set_up(self, law: Spec, arena: Arena, lifecycle: Lifecycle) -> None:
        """Take the spec's `[setup]` steps."""
        work = SetupWork(
            declared=law.setup,
            geometry=self.geometry,
            arena=arena,
            attention=self.collaborators.attention,
            drafter=self.collaborators.drafter,
        )
        lifecycle.set_up(work.perform)

    def _addresses(self, arena: Arena) -> dict[str, int]:
        buffers = {f"buffer {name}": address for name, address in arena.addresses().items()}
        return buffers | {name: tensor.data_ptr() for name, tensor in self.named_tensors()}

    def peers(self) -> Peers:
        """The ranks that serve together; one, where there is no collaborator for them."""
        ranks, tokens = self.collaborators.ranks, self.geometry.tokens_per_request
        count, index = (1, 0) if ranks is None else (ranks.count, ranks.index)
        return Peers(count=count, index=index, tokens_per_request=tokens)

    def batch(self, rows: int, variant: str, arena: Arena) -> Batch:
        """A decode batch of `rows` rows. Full hidden states exactly when there is a drafter (rule R17).

        Where there are several ranks, it has as many rows on each of them (R14, R15).
        """
        views = arena.views(rows) if rows <= arena.rows else {}
        tokens, full_hidden = rows * self.geometry.tokens_per_request, self.collaborators.drafter is not None
        counts = self.peers().uniform(rows)
        return Batch(rows, tokens, Mode.DECODE, variant, views, self.fixed, counts=counts, full_hidden=full_hidden)

    def variants(self) -> tuple[str, ...]:
        """The sampler's variants, the default first."""
        sampler = self.collaborators.sampler
        return with_default(sampler.variants(self.geometry.tokens_per_request) if sampler is not None else ())


@attrs.define(eq=False, kw_only=True)
class Parts:
    """A runtime's parts, fitted together."""

    declared: Declaration
    spec: Spec
    engine: Engine
    lifecycle: Lifecycle
    slots: Slots
    capturer: Capturer
    observers: Observers
    sizes: tuple[int, ...]
    variants: tuple[str, ...]
    peers: Peers
    door: Door | None

    def padded_batch(self, rows: int, variant: str) -> Batch:
        """The batch of `rows` rows over the static buffers: a slot's own where one has that size."""
        slot = self.slots.get((variant, rows))
        return slot.batch if slot is not None else self.declared.batch(rows, variant, self.engine.arena)

    def reason(self, slot: Slot) -> Reason:
        """Why a slot that cannot be replayed cannot."""
        law = self.spec.lifecycle
        by_state = {
            law.transition(law.on_change).to: Reason.SLOT_STALE,
            law.transition(law.on_failure).to: Reason.SLOT_FAILED,
            law.transition(law.on_release).to: Reason.SLOT_EVICTED if is_evicted(slot) else Reason.SLOT_RELEASED,
        }
        return by_state.get(slot.state, Reason.NOT_CAPTURED)

    def server(self) -> Server:
        """What serves steps: nothing is published to it yet."""
        return Server(
            engine=self.engine,
            lifecycle=self.lifecycle,
            slots=self.slots,
            peers=self.peers,
            variants=self.variants,
            tokens_per_request=self.declared.geometry.tokens_per_request,
            padded_batch=self.padded_batch,
            reasons=EagerReasons(self.observers),
            routes=Routes(Dispatch(self.sizes, peers=self.peers)),
            turnstile=Turnstile(lambda: self.engine.backend.recording),
            guard=Guard(self.spec.policy, self.engine.recorder.owners, self.declared.collaborators.present()),
            recurrent=self.declared.collaborators.recurrent,
            door=self.door,
            leases=Leases() if self.spec.policy.outputs == "leased" else None,
        )

    def keeper(self, publish: Callable[[], None]) -> Keeper:
        """What keeps the slots; `publish` renews what calls read."""
        return Keeper(
            spec=self.spec,
            slots=self.slots,
            capturer=self.capturer,
            publish=publish,
            memory=self.declared.named_tensors,
            written=lambda: self.declared.collaborators.written().items(),
        )

    def verifier(self, server: Server, wish: Wish) -> Verifier:
        """What verifies the slots of `server`."""
        declared, parts = self.declared, self.declared.collaborators.present()
        holdings = Holdings(modules=declared.modules, fixed=declared.fixed, parts=parts, step=declared.step)
        return Verifier(server=server, holdings=holdings, wish=wish, padding=self.spec.sizes.padding)


def assemble(declared: Declaration) -> Parts:
    """All parts of a runtime. Raises what the constructor of `GraphRuntime` promises; allocates the static buffers."""
    law, observers = declared.law(), Observers(list(declared.observers))
    sizes = capture_sizes(law.sizes, declared.geometry.rows, declared.sizes)
    arena = declared.arena(law, sizes[-1], declared.place())
    engine, lifecycle = declared.engine(law, arena, observers), Lifecycle(law)
    declared.set_up(law, arena, lifecycle)
    variants = declared.variants()
    largest_first, by_variant = law.sizes.order == "largest_first", law.sizes.outer == "variant"
    plan = plan_capture(sizes, variants, largest_first=largest_first, by_variant=by_variant)
    lives = {key: lifecycle.begin(str(key), key.variant) for key in plan}
    slots = {key: Slot(key, life, declared.batch(key.size, key.variant, arena)) for key, life in lives.items()}
    return Parts(
        declared=declared,
        spec=law,
        engine=engine,
        lifecycle=lifecycle,
        slots=Slots(slots),
        capturer=Capturer(law, lifecycle, engine, observers, Budget(declared.memory_budget)),
        observers=observers,
        sizes=sizes,
        variants=variants,
        peers=engine.peers,
        door=_door(engine.grammar, lifecycle, slots.values()),
    )


def _door(grammar: protocols.Grammar | None, lifecycle: Lifecycle, slots: Collection[Slot]) -> Door | None:
    def holders() -> Iterator[str]:
        return (str(slot) for slot in slots if slot.tickets)

    return None if grammar is None else Door(lifecycle=lifecycle, grammar=grammar, holders=holders)


def _marks(declared: Mapping[str, Output], given: Marks) -> OutputMarks:
    if given is not None or not declared:
        return OutputMarks(given)
    optional = frozenset(name for name, output in declared.items() if output.optional)
    return OutputMarks({name: output.per for name, output in declared.items()}, optional)


def _check_members(protocol: type, part: Any) -> None:
    for member in sorted(_members(protocol)):
        if not hasattr(part, member):
            raise ContractViolation(protocol.__name__, member, "a member", f"none on {type(part).__name__}")


def _members(protocol: type) -> set[str]:
    declaring = (each for each in protocol.__mro__ if getattr(each, "_is_protocol", False) and each is not Protocol)
    return {member for each in declaring for member in vars(each) if not member.startswith("_")}
