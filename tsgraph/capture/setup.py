"""The work behind a spec's `[setup]`: what is done once, when a runtime is built, before anything is bound (R2, R3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch

from tsgraph.buffers.arena import Arena
from tsgraph.errors import ContractViolation
from tsgraph.groups import CacheGroup
from tsgraph.keys import Geometry
from tsgraph.protocols.collaborators import Attention, Drafter, MetadataSetup
from tsgraph.spec.model import Setup, Step

CONVENTIONS = ("paged_groups", "flat_groups")


@attrs.frozen(eq=False, kw_only=True)
class SetupWork:
    """Does the steps of a setup. One method per step, named like it."""

    declared: Setup
    geometry: Geometry
    arena: Arena
    attention: Attention | None
    drafter: Drafter | None

    def perform(self, step: Step) -> str | None:
        """Do one step; returns its outcome where the step declares several."""
        work: Any = getattr(self, step.name)
        outcome: str | None = work()
        return outcome

    def init_metadata(self) -> None:
        """Let the target's metadata make their persistent buffers, then the draft's (R2)."""
        if self.attention is not None:
            self.attention.init_state(self._setup(self.declared.lengths, self.geometry.groups))
        if self.drafter is not None:
            groups = draft_groups(self.geometry.groups, self.drafter)
            self.drafter.init_state(self._setup(self.declared.draft_lengths, groups))

    def share_indices(self) -> None:
        """Let the draft read the target's key-value indices where both have the same form (R3).

        That is sound because both gather from one table with the same pool rows, and the target is refreshed first.
        """
        if self.attention is None or self.drafter is None:
            return
        target, draft = self.attention.kv_indices, self.drafter.kv_indices
        if target is not None and draft is not None and _form(target) == _form(draft):
            self.drafter.share_kv_indices(target)

    def _setup(self, lengths: str | None, groups: tuple[CacheGroup, ...]) -> MetadataSetup:
        return MetadataSetup(
            rows=self.arena.rows,
            tokens_per_request=self.geometry.tokens_per_request,
            lengths=self._lengths(lengths),
            groups=groups,
            overlap_depth=self.geometry.overlap_depth,
        )

    def _lengths(self, buffer: str | None) -> torch.Tensor | None:
        """The static buffer of that name; None for none, or where the engine declared its own buffers."""
        return self.arena.tensors().get(buffer) if buffer is not None else None


def _form(indices: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return indices.shape, indices.dtype


def draft_groups(groups: tuple[CacheGroup, ...], drafter: Drafter) -> tuple[CacheGroup, ...]:
    """The cache groups that a drafter reads: of flat tables only those that a drafter can, of paged ones all."""
    if not drafter.capabilities.flat_groups:
        return groups
    return tuple(group for group in groups if group.for_drafter)


def check_capabilities(geometry: Geometry, parts: Mapping[str, Attention]) -> None:
    """Hold what metadata consume against the conventions of the geometry.

    Raises: ContractViolation where a part wants tables that there are not, or nobody wants those that there are.
    """
    for convention in CONVENTIONS:
        wanting = [name for name, part in parts.items() if getattr(part.capabilities, convention)]
        used = convention in geometry.conventions
        listed = ", ".join(geometry.conventions) or "none"
        if wanting and not used:
            hint = f'add "{convention}" to Geometry(conventions=…), or let {wanting[0]} not ask for it'
            raise ContractViolation(
                wanting[0], "capabilities", f"{convention}, among the conventions", listed, hint=hint
            )
        if used and parts and not wanting:
            expected = f"a part with the capability {convention}, which the geometry has as a convention"
            raise ContractViolation("Geometry", "conventions", expected, f"none of {', '.join(parts)}")
