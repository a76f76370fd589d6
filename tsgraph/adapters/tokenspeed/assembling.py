"""Putting the wrapper's runtime together: the spec, the engine's own memory, and thin collaborators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import torch

from tsgraph.adapters.tokenspeed.call import GROUPED, RECURRENT, Desk
from tsgraph.adapters.tokenspeed.collaborators import (
    VERIFIED,
    BarrierRanks,
    DeepEPModes,
    GrammarQueue,
    VariantSampler,
    VerifiedState,
)
from tsgraph.adapters.tokenspeed.deepep import DeepEPCudaGraphRunnerAdapter
from tsgraph.adapters.tokenspeed.draft import DraftMetadata
from tsgraph.adapters.tokenspeed.dummies import Dummies
from tsgraph.adapters.tokenspeed.parts import EngineParts
from tsgraph.adapters.tokenspeed.target import TargetMetadata
from tsgraph.assembly import Collaborators, Declaration
from tsgraph.errors import ContractViolation
from tsgraph.keys import Batch, Geometry
from tsgraph.observe.logs import write_log
from tsgraph.protocols.backend import Backend
from tsgraph.spec.model import Spec


class Sampled(NamedTuple):
    """What a forward returns, with a name for each leaf."""

    tokens: torch.Tensor
    accept_lengths: torch.Tensor
    logprobs: torch.Tensor | None


@attrs.frozen(eq=False)
class Forward:
    """The engine's forward as a step: told of the call that is served, or of the dummy that stands for one."""

    forward_func: Callable[..., Any]
    desk: Desk
    dummies: Dummies

    def __call__(self, batch: Batch) -> Any:
        """What the engine returns; in a warm-up or recording with a name for each leaf."""
        call = self.desk.serving
        if call is not None:
            return self.forward_func(bs=call.bs, ctx=call.ctx, sampling_info=call.sampling_info)
        dummy = self.dummies.of(batch)
        returned = self.forward_func(bs=batch.rows, ctx=dummy.ctx, sampling_info=dummy.sampling_info)
        if not isinstance(returned, tuple) or len(returned) != len(Sampled._fields):
            raise ContractViolation("forward_func", "return", f"({', '.join(Sampled._fields)})", repr(returned)[:60])
        return Sampled(*returned)


def declare(
    parts: EngineParts,
    spec: Spec,
    desk: Desk,
    deepep: DeepEPCudaGraphRunnerAdapter,
    *,
    sizes: list[int],
    backend: str | Backend,
) -> Declaration:
    """The declaration of the wrapper's runtime."""
    dummies, config = Dummies(parts), parts.config
    return Declaration(
        spec=_staged(spec),
        step=Forward(parts.forward_func, desk, dummies),
        geometry=Geometry(
            rows=parts.largest,
            tokens_per_request=parts.tokens_per_request,
            sinks={"sentinel": int(config.max_req_pool_size)},
        ),
        collaborators=_collaborators(parts, desk, dummies, deepep),
        sizes=sizes,
        outputs=None,
        modules=(),
        state={},
        fixed=_fixed(parts),
        memory=_memory(parts),
        backend=backend,
        device=config.device,
        observers=(write_log,),
    )


def _staged(spec: Spec) -> Spec:
    """`spec` with the static buffers alone: of the others, which calls pass on, only the pads are used."""
    passed = {*RECURRENT.values(), *GROUPED.values()}
    return attrs.evolve(spec, buffers={name: buffer for name, buffer in spec.buffers.items() if name not in passed})


def _collaborators(
    parts: EngineParts, desk: Desk, dummies: Dummies, deepep: DeepEPCudaGraphRunnerAdapter
) -> Collaborators:
    verify = getattr(parts.attn_backend, VERIFIED, None) if parts.drafter is not None else None
    return Collaborators(
        attention=TargetMetadata(parts, desk),
        sampler=VariantSampler(parts.sampling_backend) if parts.sampling_backend is not None else None,
        grammar=GrammarQueue(parts.capturable_grammar, parts.eager_grammar_buffers, parts, dummies),
        drafter=DraftMetadata(parts, desk) if parts.drafter is not None else None,
        recurrent=VerifiedState(verify, desk) if verify is not None else None,
        comm=DeepEPModes(deepep),
        ranks=BarrierRanks(parts.ranks, int(parts.config.global_rank) if parts.ranks > 1 else 0),
    )


def _memory(parts: EngineParts) -> dict[str, torch.Tensor]:
    """The engine's tensors that are the static buffers."""
    buffers = parts.input_buffers
    memory = {
        "seq_lens": buffers.seq_lens_buf,
        "request_pool": buffers.req_pool_indices_buf,
        "state_write_pool": buffers.state_write_req_pool_indices_buf,
    }
    if parts.draft_attn_backend is not None:
        memory["draft_seq_lens"] = parts.drafter.draft_seq_lens_buf
    return memory


def _fixed(parts: EngineParts) -> dict[str, torch.Tensor]:
    """The engine's other tensors that graphs read, as far as the wrapper knows them: none may move (R21)."""
    known = {
        "valid_cache_lengths": getattr(parts.runtime_states, "valid_cache_lengths", None),
        "mamba_pool_indices": getattr(parts.input_buffers, "mamba_pool_indices_buf", None),
    }
    return {name: tensor for name, tensor in known.items() if isinstance(tensor, torch.Tensor)}
