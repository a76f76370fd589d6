"""Why steps ran eagerly: counted by reason and by rows, and told to observers where the reason changes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import attrs

from tsgraph import events
from tsgraph.events import Observers
from tsgraph.keys import Batch, Decision, Mode, Reason
from tsgraph.slots.slot import Slot

WHATEVER_SIZES = frozenset(
    {Reason.NOT_DECODE, Reason.ASKED, Reason.OTHER_RANKS_UNKNOWN, Reason.OTHER_RANKS_BUSY, Reason.ALL_IDLE}
)
"""The reasons of steps that run eagerly whatever sizes are captured."""


@attrs.define(eq=False)
class EagerReasons:
    """How many steps ran eagerly for each reason.

    `rows`: of the decode steps that a slot could have served, were one of their size ready: by variant and live rows.
    """

    observers: Observers
    counts: dict[Reason, int] = attrs.field(factory=lambda: dict.fromkeys(Reason, 0))
    rows: dict[str, Counter[int]] = attrs.field(factory=lambda: defaultdict(Counter))
    _last: tuple[Reason | None, int] = (None, 0)

    def note(self, decision: Decision, batch: Batch, slots: Iterable[Slot]) -> None:
        """Count a step, of `batch`; tell observers where its reason is new, or `slots` were replayed since the last."""
        self.counts[decision.reason] += 1
        if batch.mode is Mode.DECODE and decision.reason not in WHATEVER_SIZES:
            self.rows[batch.variant][decision.rows] += 1
        now = (decision.reason, sum(slot.counts.replays for slot in slots))
        before, self._last = self._last, now
        if now != before and decision.reason is not Reason.ASKED:
            self.observers.emit(
                events.DISPATCH_REASON_CHANGED,
                rows=decision.rows,
                reason=decision.reason.name.lower(),
                why=str(decision),
            )

    def by_name(self) -> dict[str, int]:
        """The counts that are not 0, by the reason's name."""
        return {reason.name.lower(): count for reason, count in self.counts.items() if count}
