"""An engine with everything a verification must leave as it was: it pays into accounts."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from tests.runtime.planting import IDS, captured
from tsgraph.buffers.contract import Rows, State
from tsgraph.protocols.backend import Backend
from tsgraph.runtime import GraphRuntime
from tsgraph.testing.fakes import FakeGrammar, all_fakes


@attrs.define(eq=False)
class Engine:
    """An engine with everything: state, a queue of entries, counts beside the graph, buffers written in place."""

    backend: Backend
    totals: torch.Tensor
    accepted: torch.Tensor
    grammar: FakeGrammar
    held: torch.Tensor | None = None

    @classmethod
    def on(cls, backend: Backend) -> Engine:
        """An engine on a device."""
        totals = torch.zeros(9, device=backend.device)
        accepted = torch.zeros(9, dtype=torch.int64, device=backend.device)
        return cls(backend, totals, accepted, FakeGrammar())

    def step(self, account: torch.Tensor, amount: torch.Tensor, held: torch.Tensor) -> dict[str, torch.Tensor]:
        """Pay into accounts."""
        self.totals.index_put_((account,), self.totals[account] + amount)
        return {"total": self.totals[account] + held, "account": account}

    def update(self, outputs: Any, live: int) -> None:
        """Count what was paid into each account, as recurrent state."""
        assert live == len(outputs["account"])
        self.accepted.index_add_(0, outputs["account"], torch.ones_like(outputs["account"]))

    def runtime(self, **rest: Any) -> GraphRuntime:
        """Its slots, captured."""
        parts = all_fakes([]) | {"grammar": self.grammar, "recurrent": self}
        runtime = captured(
            self.stepping,
            inputs={
                "account": IDS,
                "amount": Rows(torch.float32, pad=0.0),
                "held": Rows(torch.float32, pad=0.0, source="engine"),
            },
            state={"totals": State(self.totals, sink=0)},
            outputs={"total": "request", "account": "request"},
            backend=self.backend,
            **{**parts, **rest},
        )
        self.held = runtime.slots["default", 4].batch.held
        return runtime

    def stepping(self, account: torch.Tensor, amount: torch.Tensor, held: torch.Tensor) -> dict[str, torch.Tensor]:
        """The step as the runtime has it: eagerly it takes its entry by itself, like one with a fork."""
        if self.grammar.queue and not self.backend.recording:
            self.grammar.consume()
        return self.step(account, amount, held)

    def inputs(self, rows: int) -> dict[str, Any]:
        """What it passes, and what it writes in place."""
        assert self.held is not None
        self.held[:rows] = torch.arange(rows) * 10.0
        return {"account": torch.arange(1, rows + 1), "amount": torch.arange(rows) + 1.0}
