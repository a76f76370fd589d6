"""Takes the receipts of one runtime's recordings, and keeps its policy on what nobody declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch.utils import _pytree as pytree

from tsgraph import events
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.owners import Owners, storage_address
from tsgraph.errors import ContractViolation
from tsgraph.events import Observers
from tsgraph.keys import Batch, SlotKey
from tsgraph.protocols.backend import Graph, GraphNode, Pool
from tsgraph.receipts.inside import Made
from tsgraph.receipts.outputs import outputs_of
from tsgraph.receipts.outside import dtype_of
from tsgraph.receipts.receipt import CaptureReceipt, Escape, External, HostFunction, Kernel
from tsgraph.receipts.remains import REMAINS
from tsgraph.receipts.watch import Watch
from tsgraph.spec.model import Policy


@attrs.define(eq=False, kw_only=True)
class Recorder:
    """Makes a watch for each recording, and a receipt of what it saw. `spec`: its name, for receipts."""

    spec: str
    policy: Policy
    owners: Owners
    arena: Arena
    observers: Observers = attrs.field(factory=Observers)
    _told: set[str] = attrs.field(factory=set, init=False)

    def quiet(self) -> Recorder:
        """One that takes receipts and tells nobody."""
        return attrs.evolve(self, observers=Observers())

    def watch(self, pool: Pool, batch: Batch) -> Watch:
        """A watch over the recording of `batch`, to be entered inside of it."""
        if batch.mask is not None:
            self.owners.declare("mask", "grammar", partial(getattr, batch, "mask"), writable=False)
        return Watch(self.owners, self.arena.backend, pool)

    def take(self, key: SlotKey, watch: Watch, graph: Graph, returned: Any) -> CaptureReceipt:
        """The receipt of a recording that has ended and `returned` this."""
        slot = f"slot {key} of {self.spec}"
        outputs = tuple(outputs_of(returned, slot, self.owners, watch.outside.pool, watch.inside.facts))
        nodes, kernels = _told_nodes(graph.listing)
        externals = watch.outside.told()
        return CaptureReceipt(
            slot=str(key),
            spec=self.spec,
            backend=self.arena.backend.name,
            device=str(self.arena.backend.device),
            externals=externals,
            outputs=outputs,
            functions=tuple(HostFunction(name=each.name, line=each.line) for each in graph.functions),
            escapes=tuple(self._escapes(watch, returned, slot)),
            unread=self._unread(externals),
            nodes=nodes,
            kernels=kernels,
            pool_bytes=graph.bytes,
            seconds=watch.seconds,
            kept=tuple(watch.outside.kept.values()),
            **watch.notes.told(),
        )

    # -- what the step returned, and what it left behind --------------------------------------------------------------

    def _escapes(self, watch: Watch, returned: Any, slot: str) -> Iterator[Escape]:
        outputs = {storage_address(leaf) for leaf in pytree.tree_leaves(returned) if isinstance(leaf, torch.Tensor)}
        living = {address: made for address, made in watch.inside.living() if made.on_device}
        held = {address: made for address, made in living.items() if address not in outputs}
        if held:
            self.owners.refresh()
        for address, made in held.items():
            holder = self.owners.holder(address)
            REMAINS.note(address, made.reference, f"{made.operator} at {made.line} in {slot}")
            yield _escape(made, "" if holder is None else str(holder))

    def _unread(self, externals: Sequence[External]) -> tuple[str, ...]:
        touched = {external.name for external in externals if external.kind == "buffer"}
        return tuple(each.label for each in self.arena.fields if "graph" in each.read_by and each.label not in touched)

    # -- the policy ---------------------------------------------------------------------------------------------------

    def judge(self, receipt: CaptureReceipt) -> None:
        """Tell or refuse what nobody declared.

        Raises: ContractViolation naming all undeclared reads, or all undeclared writes, where the policy refuses them.
        """
        written = [each for each in receipt.externals if each.written and not each.writable]
        read = [each for each in receipt.undeclared() if each.read]
        if written and self.policy.undeclared_writes == "refuse":
            raise _violation("a recording that writes only to declared buffers and states", "writing", written)
        if read and self.policy.undeclared_reads == "refuse":
            raise _violation("a recording that reads only what is declared", "reading", read)
        if self.policy.undeclared_reads == "warn":
            self._warn(receipt, read)

    def _warn(self, receipt: CaptureReceipt, read: Sequence[External]) -> None:
        for each in self._untold(read):
            self.observers.emit(
                events.SLOT_UNDECLARED_READ,
                "warning",
                slot=receipt.slot,
                tensor=each.path if each.name else each.kind,
                form=each.form,
                operator=each.operators[0],
                line=each.line,
                fix=how_to_declare(each),
            )
        for escape in receipt.escapes:
            if self._is_new(f"{escape.operator} {escape.line}"):
                self.observers.emit(
                    events.SLOT_MEMORY_ESCAPED,
                    "warning",
                    slot=receipt.slot,
                    form=escape.form,
                    operator=escape.operator,
                    line=escape.line,
                    holder=escape.holder,
                    fix="make it before the capture, or return it: the next replay writes over it",
                )

    def _untold(self, externals: Sequence[External]) -> list[External]:
        """Each tensor is told once, whichever slots read it."""
        return [each for each in externals if self._is_new(each.label)]

    def _is_new(self, what: str) -> bool:
        new = what not in self._told
        self._told.add(what)
        return new


def how_to_declare(external: External) -> str:
    """What to do about memory that nobody declared."""
    if external.kind == "temporary":
        return "fill pinned memory that was made before the capture: nothing else keeps this alive, or up to date"
    if external.origin:
        return f"it is {external.origin}: give it as Fixed(tensor) if that is meant; else make it before the capture"
    if external.written:
        return "state={name: State(tensor, sink=…)} with the rows that no request owns, or restore=True"
    return (
        "inputs={name: Rows(…)} if it changes with each step, Fixed(tensor) if it stays, State(tensor, …) if the step "
        "writes it, modules=[…] if it is a weight"
    )


def _violation(expected: str, doing: str, externals: Sequence[External]) -> ContractViolation:
    told = "; ".join(f"{each.operators[0]} at {each.line} {doing} {_called(each)} of {each.form}" for each in externals)
    names = ", ".join(each.name or "undeclared" for each in externals)
    return ContractViolation("step", names, expected, told, hint=how_to_declare(externals[0]))


def _called(external: External) -> str:
    return external.path if external.name else f"a tensor ({external.kind})"


def _escape(made: Made, holder: str) -> Escape:
    return Escape(
        operator=made.operator,
        line=made.line,
        shape=tuple(made.shape),
        dtype=dtype_of(made.dtype),
        bytes=made.shape.numel() * made.dtype.itemsize,
        holder=holder,
    )


def _told_nodes(listing: Sequence[GraphNode] | None) -> tuple[dict[str, int] | None, tuple[Kernel, ...]]:
    if listing is None:
        return None, ()
    kernels = Counter((node.name, node.grid) for node in listing if node.kind == "kernel")
    kinds = Counter(node.kind for node in listing)
    return dict(kinds), tuple(Kernel(name=name, grid=grid, times=times) for (name, grid), times in kernels.items())
