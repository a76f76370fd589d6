"""The engine's other parts as tsgraph's collaborators: sampler, grammar queue, verified state, DeepEP, ranks.

What graphs recorded is named by the collaborator that holds it: so each holds its own part of the engine, no other's.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
import torch.distributed as dist

from tsgraph.adapters.local_ranks import LocalRanks
from tsgraph.adapters.tokenspeed.call import Desk
from tsgraph.adapters.tokenspeed.deepep import DeepEPCudaGraphRunnerAdapter
from tsgraph.adapters.tokenspeed.dummies import Dummies
from tsgraph.adapters.tokenspeed.parts import EngineParts
from tsgraph.adapters.torch_ranks import TorchRanks
from tsgraph.keys import Batch
from tsgraph.protocols.collaborators import Ranks, Verdict
from tsgraph.protocols.null import NullCommunication, NullGrammar, NullRecurrent, NullSampler

VERIFIED = "update_mamba_state_after_mtp_verify"


@attrs.frozen(eq=False)
class VariantSampler(NullSampler):
    """The sampling backend around captures."""

    backend: Any

    def variants(self, tokens_per_request: int) -> Sequence[str]:
        """Those that it declares, which may be none."""
        return tuple(self.backend.cuda_graph_capture_variants(tokens_per_request) or ())

    def prepare(self, batch: Batch) -> None:
        """Fill its random numbers from a stub, and set the route of the variant."""
        tokens = batch.tokens // batch.rows
        self.backend.prepare_capture_variant(bs=batch.rows, num_tokens_per_req=tokens, variant=batch.variant)

    def reset(self) -> None:
        """Clear what warm-ups counted at pool row 0."""
        self.backend.reset_capture_state()


@attrs.frozen(eq=False)
class GrammarQueue(NullGrammar):
    """The capturable grammar, if there is one. A mask is bound in any case: an eager one serves other devices."""

    capturable: Any
    eager_buffers: Any
    parts: EngineParts
    dummies: Dummies

    def bind(self, batch: Batch) -> torch.Tensor | None:
        """Make the slot's words, and give them the mask."""
        parts, info = self.parts, self.dummies.make(batch).sampling_info
        parts.types.bind_mask(
            info,
            self.eager_buffers,
            batch.rows,
            spec=parts.drafter is not None,
            capturable=self.capturable,
            grammar_backend=parts.config.grammar_backend,
        )
        mask: torch.Tensor | None = getattr(info, "vocab_mask", None)
        return mask

    def push(self, rows: int, *, who: str = "", ahead: bool = False) -> Any:  # noqa: ARG002 — its queue knows neither
        """Push an entry of rows without grammars."""
        if self.capturable is not None:
            self.capturable.add_batch(grammars=[None] * rows, bs=rows, has_candidates=False)
        return object()

    def cancel(self, ticket: Any) -> None:  # noqa: ARG002 — entries have no names: the queue is emptied
        """Empty the queue: what a recording pushed, no host function has taken."""
        if self.capturable is None:
            return
        while True:
            try:
                self.capturable.queue.get_nowait()
            except queue.Empty:
                return

    def reset(self) -> None:
        """Forget the previous and the current entry."""
        if self.capturable is not None:
            self.capturable.reset_state()


@attrs.frozen(eq=False)
class VerifiedState(NullRecurrent):
    """Recurrent state that the target's backend advances by what was accepted, with `verify`."""

    verify: Callable[..., Any]
    desk: Desk

    def update(self, outputs: Any, live: int) -> None:  # noqa: ARG002 — outputs are cut to the live rows
        """Advance the live rows. The context is the caller's again by then."""
        self.desk.call.restore_context()
        self.verify(outputs[1], None)


@attrs.frozen(eq=False)
class DeepEPModes(NullCommunication):
    """DeepEP around recordings and replays."""

    adapter: DeepEPCudaGraphRunnerAdapter

    def arm(self) -> None:
        """Before a recording."""
        self.adapter.capture()

    def restore(self) -> None:
        """Before every replay."""
        self.adapter.replay()


def _voting_ranks() -> Ranks:
    """Ranks that vote over a group of their own, where there are several processes."""
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return TorchRanks() if several else LocalRanks()


@attrs.frozen(eq=False)
class BarrierRanks:
    """Ranks that meet at the default group's barrier.

    They meet by ballot first: a rank that has failed says so there, and nobody waits for it at the barrier.
    """

    count: int
    index: int
    votes: Ranks = attrs.field(factory=_voting_ranks)

    def meet(self) -> None:
        """Wait until every rank is here."""
        self.votes.meet()
        dist.barrier()

    def settle(self, point: str, ok: bool, digest: int, deadline: float) -> Verdict:
        """Agree by ballot."""
        return self.votes.settle(point, ok, digest, deadline)
