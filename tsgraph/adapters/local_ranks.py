"""Ranks for an engine that runs alone, so that its code need not ask whether there are others."""

from __future__ import annotations

import attrs

from tsgraph.protocols.collaborators import Verdict


@attrs.frozen
class LocalRanks:
    """One rank. It never waits, and agrees with itself."""

    @property
    def count(self) -> int:
        """One."""
        return 1

    @property
    def index(self) -> int:
        """Zero."""
        return 0

    def meet(self) -> None:
        """Everyone is here."""

    def settle(self, point: str, ok: bool, digest: int, deadline: float) -> Verdict:  # noqa: ARG002 — nobody is asked
        """What this rank says is what all say."""
        return "agreed" if ok else "refused"
