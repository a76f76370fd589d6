"""What a drafter's metadata see: the target's batch as a decode batch, with the cache groups that a drafter reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tsgraph.buffers.contract import Field
from tsgraph.capture.setup import draft_groups
from tsgraph.keys import Batch, Geometry, Mode
from tsgraph.protocols.collaborators import Drafter

PREFILLING = (Mode.EXTEND, Mode.MIXED)


@attrs.frozen(eq=False)
class Drafting:
    """A drafter, and what is left out of its batches: for each grouped buffer, the groups that it does not read."""

    drafter: Drafter
    hidden: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, drafter: Drafter, geometry: Geometry, fields: tuple[Field, ...]) -> Drafting:
        """The drafting of an engine with these buffers."""
        read = {group.name for group in draft_groups(geometry.groups, drafter)}
        hidden = {group.name for group in geometry.groups} - read
        held: dict[str, set[str]] = {}
        for field in fields:
            if field.group in hidden:
                held.setdefault(field.name, set()).add(str(field.group))
        return cls(drafter, {name: frozenset(groups) for name, groups in held.items()})

    def bind(self, batch: Batch) -> None:
        """Bind for a recording."""
        self.drafter.bind(self.seen(batch))

    def refresher(self, batch: Batch) -> Callable[[Batch, int], None]:
        """The refresh of one slot, whose batch this is: what the drafter sees of it is made once."""
        if not self.hidden:
            return self.drafter.refresh
        seen, refresh = self.seen(batch), self.drafter.refresh

        def refresh_seen(batch: Batch, live: int) -> None:
            seen.counts = batch.counts
            refresh(seen, live)

        return refresh_seen

    def begin_eager(self, batch: Batch) -> None:
        """Begin an eager step: in its own mode where it prefills, then as a decode step where that needs another."""
        prefills = batch.mode in PREFILLING
        if prefills:
            self.drafter.begin_eager(self.seen(batch, batch.mode))
        if not prefills or self.drafter.capabilities.prefill_on_target_lengths:
            self.drafter.begin_eager(self.seen(batch))

    def seen(self, batch: Batch, mode: Mode = Mode.DECODE) -> Batch:
        """`batch` without the groups that the drafter does not read, as a step of `mode`."""
        if not self.hidden and batch.mode is mode:
            return batch
        return attrs.evolve(batch, mode=mode, buffers={**batch.buffers, **self._narrowed(batch)})

    def _narrowed(self, batch: Batch) -> dict[str, Any]:
        tables: dict[str, Any] = {name: batch.buffers[name] for name in self.hidden}
        return {
            name: {group: table for group, table in by_group.items() if group not in self.hidden[name]}
            for name, by_group in tables.items()
        }
