"""A live engine, standing still: while it is verified between two steps nothing that it goes on from may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import attrs
import torch

from tsgraph.grammar.door import Door
from tsgraph.lifecycle import Lifecycle
from tsgraph.lifecycle.monitors import Monitors
from tsgraph.protocols.backend import Backend
from tsgraph.replay.verification.memory import Memory

WHO = "verify"
"""Who pushes grammar entries, as errors say."""


@contextmanager
def standstill(backend: Backend, memory: Memory, lifecycle: Lifecycle, door: Door | None) -> Iterator[Entries]:
    """Whatever the block runs, in the end memory, random generators, ledger and waiting entry are as they were.

    Yields what pushes entries for its runs.
    """
    device = backend.device
    with ExitStack() as exits:
        backend.synchronize()
        exits.enter_context(torch.random.fork_rng(devices=[device.index] if device.type == "cuda" else []))
        exits.enter_context(_ledger_kept(lifecycle.runtime_scope))
        exits.callback(memory.undo)
        exits.callback(backend.synchronize)
        entries = Entries(lifecycle, door)
        exits.enter_context(entries.aside())
        yield entries


@contextmanager
def _ledger_kept(scope: Monitors) -> Iterator[None]:
    """What the runtime's scope remembers is afterwards what it was."""
    saved = scope.copy()
    try:
        yield
    finally:
        for field in attrs.fields(Monitors):
            setattr(scope, field.name, getattr(saved, field.name))


@attrs.define(eq=False)
class Entries:
    """Grammar entries of a verification's own: one for each forward, ahead of what the engine may have pushed."""

    lifecycle: Lifecycle
    door: Door | None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The engine's own entry waits behind those of the block, and its next forward takes it."""
        door = self.door
        if door is None:
            yield
            return
        with door.aside():
            try:
                yield
            finally:
                door.grammar.reset()  # forget what the runs consumed, like that of a warm-up (R23)

    @contextmanager
    def one(self, rows: int) -> Iterator[None]:
        """The entry of the forward in the block, of `rows` rows without grammars; taken back where it was not taken."""
        if self.door is None:
            yield
            return
        ticket = self._push(self.door, rows)
        try:
            yield
        except BaseException:
            self._take_back(self.door, ticket)
            raise

    def _push(self, door: Door, rows: int) -> Any:
        if self.lifecycle.serving.push:
            return door.push(rows, who=WHO, ahead=True)
        return door.grammar.push(rows, who=WHO, ahead=True)

    def _take_back(self, door: Door, ticket: Any) -> None:
        """An eager step that raised may have taken it already: what it drew is never accepted then."""
        if not self.lifecycle.serving.push or not door.cancel(ticket):
            door.grammar.abandon(ticket)


@attrs.frozen(eq=False)
class Random:
    """The state of torch's default generators, on host and device, at which every run starts."""

    host: torch.Tensor
    device: torch.device
    on_device: torch.Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> Random:
        """That of now."""
        on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), device, on_device)

    def rewind(self) -> None:
        """Set the generators to it."""
        torch.set_rng_state(self.host)
        if self.on_device is not None:
            torch.cuda.set_rng_state(self.on_device, self.device)

    def moved(self) -> bool:
        """Whether random numbers were drawn since."""
        now = Random.now(self.device)
        if not torch.equal(now.host, self.host):
            return True
        return (
            self.on_device is not None and now.on_device is not None and not torch.equal(now.on_device, self.on_device)
        )
