"""The eager path: metadata are begun, target's then draft's, the step is called, recurrent state is updated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from tsgraph.capture.pipeline import Engine
from tsgraph.keys import Batch, Mode
from tsgraph.lifecycle import Effect, Lifecycle
from tsgraph.protocols.collaborators import Recurrent


@attrs.frozen(eq=False, kw_only=True)
class EagerPath:
    """Serves steps that no slot does."""

    engine: Engine
    lifecycle: Lifecycle
    recurrent: Recurrent | None = None

    def serve(self, batch: Batch) -> Any:
        """Run the step of `batch`; a decode step then updates the recurrent state of its rows (R42)."""
        outputs = self.run(batch)
        if self.recurrent is not None and batch.mode is Mode.DECODE:
            self.recurrent.update(outputs, batch.rows)
        return outputs

    def run(self, batch: Batch) -> Any:
        """Begin the metadata of `batch` and run its step; returns what the step returns."""
        serving = self.lifecycle.serving
        try:
            for part in (self.engine.attention, self.engine.drafting):
                if part is not None:
                    part.begin_eager(batch)
            outputs = self.engine.forward(batch)
        except BaseException:
            self._feed(serving.abandon)
            raise
        self._feed(serving.eager)
        return outputs

    def _feed(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self.lifecycle.runtime_scope.apply(effect)
