"""Collaborators that keep their protocols, do nothing else, and write down every call in one shared list."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
import torch

from tsgraph.errors import InternalError
from tsgraph.keys import Batch
from tsgraph.protocols.collaborators import Capabilities, MetadataSetup, Verdict

Calls = list[tuple[Any, ...]]


@attrs.define(eq=False)
class FakeAttention:
    """Attention metadata that only notes who asked for what. `honours` may be set to any pads."""

    calls: Calls = attrs.field(factory=list)
    honours: Mapping[str, Collection[float]] = attrs.field(factory=dict)
    name: str = "attention"
    capabilities: Capabilities = attrs.field(factory=Capabilities)
    kv_indices: torch.Tensor | None = None
    setup: MetadataSetup | None = None

    def init_state(self, setup: MetadataSetup) -> None:
        self.setup = setup
        self.calls.append((f"{self.name}.init_state", setup.rows))

    def share_kv_indices(self, indices: torch.Tensor) -> None:
        self.kv_indices = indices
        self.calls.append((f"{self.name}.share_kv_indices",))

    def bind(self, batch: Batch) -> None:
        self.calls.append((f"{self.name}.bind", batch.rows))

    def refresh(self, batch: Batch, live: int) -> None:
        self.calls.append((f"{self.name}.refresh", batch.rows, live))

    def begin_eager(self, batch: Batch) -> None:
        self.calls.append((f"{self.name}.begin_eager", batch.rows))


def fake_drafter(calls: Calls) -> FakeAttention:
    """A drafter: the same calls as attention metadata, under its own name."""
    return FakeAttention(calls, name="drafter")


@attrs.define(eq=False)
class FakeSampler:
    """A sampler with any list of variants."""

    calls: Calls = attrs.field(factory=list)
    names: Sequence[str] = ()

    def variants(self, tokens_per_request: int) -> Sequence[str]:
        return self.names

    def prepare(self, batch: Batch) -> None:
        self.calls.append(("sampler.prepare", batch.rows, batch.variant))

    def reset(self) -> None:
        self.calls.append(("sampler.reset",))


@attrs.define(eq=False)
class FakeGrammar:
    """A queue of entries. `consume` plays the forward's part; an empty queue there is an underflow (R24)."""

    calls: Calls = attrs.field(factory=list)
    queue: list[int] = attrs.field(factory=list)
    _tickets: int = 0

    def bind(self, batch: Batch) -> torch.Tensor | None:
        self.calls.append(("grammar.bind", batch.rows))
        return None

    def push(self, rows: int, *, who: str = "", ahead: bool = False) -> int:
        self._tickets += 1
        self.queue.insert(0 if ahead else len(self.queue), self._tickets)
        self.calls.append(("grammar.push", rows))
        return self._tickets

    def claim(self, ticket: int) -> None:
        """A replay consumes at once what it claims."""
        if ticket in self.queue:
            self.queue.remove(ticket)

    def abandon(self, ticket: int) -> None:
        self.cancel(ticket)

    def consume(self) -> int:
        """Take the oldest entry, as a forward does. Raises InternalError where there is none."""
        if not self.queue:
            raise InternalError("the grammar queue is empty: a forward ran without its entry (R24)")
        return self.queue.pop(0)

    def cancel(self, ticket: int) -> None:
        self.calls.append(("grammar.cancel",))
        if ticket in self.queue:
            self.queue.remove(ticket)

    def reset(self) -> None:
        self.calls.append(("grammar.reset",))


@attrs.define(eq=False)
class FakeRecurrent:
    """Recurrent state that notes how many live rows it was updated with."""

    calls: Calls = attrs.field(factory=list)

    def update(self, outputs: Any, live: int) -> None:
        self.calls.append(("recurrent.update", live))


@attrs.define(eq=False)
class FakeCommunication:
    """A communication library that notes when it was armed and restored."""

    calls: Calls = attrs.field(factory=list)

    def arm(self) -> None:
        self.calls.append(("comm.arm",))

    def restore(self) -> None:
        self.calls.append(("comm.restore",))


@attrs.define(eq=False)
class FakeRanks:
    """Ranks that agree unless told otherwise, and note every vote. There may be any number of them."""

    calls: Calls = attrs.field(factory=list)
    verdict: Verdict = "agreed"
    count: int = 1
    index: int = 0

    def meet(self) -> None:
        self.calls.append(("ranks.meet",))

    def settle(self, point: str, ok: bool, digest: int, deadline: float) -> Verdict:
        self.calls.append(("ranks.settle", point, ok))
        return self.verdict if ok else "refused"


def all_fakes(calls: Calls, variants: Sequence[str] = ()) -> dict[str, Any]:
    """One fake for every collaborator, by the names that `GraphRuntime` gives them, all writing into `calls`."""
    return {
        "attention": FakeAttention(calls),
        "sampler": FakeSampler(calls, variants),
        "grammar": FakeGrammar(calls),
        "drafter": fake_drafter(calls),
        "recurrent": FakeRecurrent(calls),
        "comm": FakeCommunication(calls),
        "ranks": FakeRanks(calls),
    }
