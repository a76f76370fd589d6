"""The eager path: metadata are begun, target's then draft's, the step is called, recurrent state is updated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from tsgraph.capture.pipeline import Engine
from tsgraph.grammar.door import Door
from tsgraph.keys import Batch, Mode
from tsgraph.lifecycle import Lifecycle
from tsgraph.protocols.collaborators import Recurrent
from tsgraph.replay.program import asking


@attrs.frozen(eq=False, kw_only=True)
class EagerPath:
    """Serves steps that no slot does. `door`: where their grammar entries wait, if there is a grammar."""

    engine: Engine
    lifecycle: Lifecycle
    recurrent: Recurrent | None = None
    door: Door | None = None
    _ask: Callable[[], None] | None = attrs.field(init=False)

    @_ask.default
    def _asking(self) -> Callable[[], None] | None:
        return asking("eager", self.lifecycle, self.door)

    def admit(self) -> None:
        """Ask the rules that guard an eager forward. Raises: RuleViolation, with nothing changed."""
        if self._ask is not None:
            self._ask()

    def serve(self, batch: Batch) -> Any:
        """Run the step of `batch`; a decode step then updates the recurrent state of its rows (R42)."""
        outputs = self.run(batch)
        if batch.mode is Mode.DECODE:
            self.update(outputs, batch.rows)
        return outputs

    def update(self, outputs: Any, live: int) -> None:
        """Update the recurrent state of the `live` rows of a decode step, if there is any (R42)."""
        if self.recurrent is not None:
            self.recurrent.update(outputs, live)

    def run(self, batch: Batch) -> Any:
        """Begin the metadata of `batch` and run its step; returns what the step returns.

        Raises: RuleViolation before any effect; what the step raises: the entry that it was to take, if there is a
        grammar, is left to be cancelled.
        """
        self.admit()
        for part in (self.engine.attention, self.engine.drafting):
            if part is not None:
                part.begin_eager(batch)
        outputs = self.engine.forward(batch)
        for effect in self.lifecycle.serving.eager:
            self.lifecycle.runtime_scope.apply(effect)
        if self.door is not None:
            self.door.served()
        return outputs
