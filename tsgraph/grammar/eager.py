"""The executor for devices without host functions: the host makes the masks before a step, and waits for its tokens.

The masks lie in static memory, too. So a step may be recorded, with nothing of the grammar in the graph but that it
reads them; then `prepare` goes before each step and `deliver` after it, whichever way the step takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from tsgraph.grammar.executor import GrammarExecutor, check_drawn

if TYPE_CHECKING:
    from tsgraph.keys import Batch


class EagerGrammar(GrammarExecutor):
    """The same interface as `CapturableGrammar`, all on the host and at once. Keeps the protocol `Grammar`, too.

    A step that is only ever run eagerly needs nothing else: what `fork` and `finish` do there waits for the device. In
    a recording they do nothing.
    """

    _prepared: int | None = None

    def prepare(self, candidates: Tensor | None = None) -> None:
        """Before a step that may be a replay: take the entry and make the masks, of all rows there are.

        `candidates` [live rows, drafts]: what the step verifies.

        Raises: RuleViolation where no entry waits (R24); what a matcher raises, and then the step must not be run;
        BadBatch for candidates that do not fit.
        """
        rows, draws = (0, 1) if candidates is None else (len(candidates), candidates.shape[1] + 1)
        self._check_room(rows, draws)
        self._make(self.rows, draws, candidates)
        self._prepared = draws

    def deliver(self, tokens: Tensor, accept_lengths: Tensor | None = None) -> None:
        """After it: what its live rows drew, as for `finish`. Waits for the device.

        Raises: BadBatch for shapes that do not fit, or where nothing was prepared.
        """
        draws = self._prepared or 0
        rows = tokens.numel() // max(draws, 1)
        check_drawn(rows, draws, tokens, accept_lengths)
        self._prepared = None
        self._take(tokens, accept_lengths)

    def fork(self, batch: Batch, candidates: Tensor | None = None) -> None:
        """Make the masks of an eager step that was not prepared: waits for the device."""
        self._step = self._shape(batch, candidates)
        if self._by_itself():
            self._make(*self._step, candidates)

    def mask(self, batch: Batch) -> Tensor:
        """The masks of the step, [rows * draws, words] int32. Raises: BadBatch where the step was not forked."""
        rows, draws = self._forked(batch)
        return self._memory.mask[: rows * draws]

    def finish(self, tokens: Tensor, accept_lengths: Tensor | None = None) -> None:
        """Take what an eager step drew that was not prepared: waits for the device. Raises: BadBatch as ever."""
        rows, draws = self._step or (0, 0)
        check_drawn(rows, draws, tokens, accept_lengths)
        self._step = None
        if self._by_itself():
            self._take(tokens, accept_lengths)

    def abandon(self, ticket: object) -> None:
        """After a forward that raised: take its entry back; if it is consumed, what was drawn counts for nothing."""
        self._prepared = None
        super().abandon(ticket)

    def _by_itself(self) -> bool:
        return self._prepared is None and not self.backend.recording

    def _make(self, rows: int, draws: int, candidates: Tensor | None) -> None:
        if candidates is not None:
            flat = candidates.reshape(-1)
            self._memory.drafts[: len(flat)].copy_(flat)
        try:
            self._masks.fetch(rows, draws)
            self._masks.build(rows, draws)
        except BaseException:
            self._masks.close(rows, draws)
            raise
        finally:
            self._memory.mask[: rows * draws].copy_(self._memory.words[: rows * draws])

    def _take(self, tokens: Tensor, accept_lengths: Tensor | None) -> None:
        self._memory.tokens[: tokens.numel()].copy_(tokens.reshape(-1))
        if accept_lengths is not None:
            self._memory.gains[: len(accept_lengths)].copy_(accept_lengths)
