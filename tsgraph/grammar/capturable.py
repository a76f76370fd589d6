"""The executor for graphs: masks are made by host functions on a branch of the step, beside its forward.

    main    ──fork───────── forward ──────────join── apply mask, draw ── tokens to host ──
    branch     └ drafts to host · fetch · build · masks to device ┘

All of it is recorded, and replays run it in this order. What a step draws is accepted by the build of the next one, so
that the matchers' work, too, is hidden behind a forward. Pinned memory is written by a host function only after the
copies that read it have run: all of them are on one chain, from step to step.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from tsgraph.grammar.executor import GrammarExecutor, check_drawn, copy_into

if TYPE_CHECKING:
    from tsgraph.keys import Batch
    from tsgraph.protocols.backend import Backend


class CapturableGrammar(GrammarExecutor):
    """The executor whose work is recorded with the step. Keeps `tsgraph.protocols.collaborators.Grammar`.

    In a step: `fork` first, `mask` where the mask is needed, `finish` when tokens are drawn.
    """

    def __init__(
        self, backend: Backend, *, rows: int, vocabulary: int, draws: int = 1, closed: Iterable[int] = ()
    ) -> None:
        super().__init__(backend, rows=rows, vocabulary=vocabulary, draws=draws, closed=closed)
        self._branch = backend.branch()

    def fork(self, batch: Batch, candidates: Tensor | None = None) -> None:
        """Begin the masks of a step beside it. `candidates` [rows, up to draws - 1]: the drafts that it verifies.

        Raises: BadBatch for shapes that do not fit; RuleViolation where no entry waits for an eager step (R22).
        """
        rows, draws = self._shape(batch, candidates)
        if not self.backend.recording:
            self.queue.claim()
        self._step = None
        with self._branch.fork():
            if candidates is not None:
                copy_into(candidates, self._memory.drafts)
            masks = self._masks
            close = partial(masks.close, rows, draws)
            self.backend.host_function(partial(masks.fetch, rows, draws), on_error=close)
            self.backend.host_function(partial(masks.build, rows, draws), on_error=close)
            copy_into(self._memory.words[: rows * draws], self._memory.mask)
        self._step = (rows, draws)

    def mask(self, batch: Batch) -> Tensor:
        """The masks of the step, ready: [rows * draws, words] int32, for `apply_mask`.

        Raises: BadBatch where the step was not forked.
        """
        rows, draws = self._forked(batch)
        self._branch.join()
        return self._memory.mask[: rows * draws]

    def finish(self, tokens: Tensor, accept_lengths: Tensor | None = None) -> None:
        """Hand over what the step drew, `tokens` [rows * draws]; of several draws `accept_lengths` [rows] count.

        Raises: BadBatch for shapes that do not fit, or a step that was not forked.
        """
        rows, draws = self._step or (0, 0)
        check_drawn(rows, draws, tokens, accept_lengths)
        self._step = None
        self._branch.join()
        copy_into(tokens, self._memory.tokens)
        if accept_lengths is not None:
            copy_into(accept_lengths, self._memory.gains)
