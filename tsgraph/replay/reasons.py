"""Why steps ran eagerly: counted by reason, and told to observers where the reason changes."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from tsgraph import events
from tsgraph.events import Observers
from tsgraph.keys import Decision, Reason
from tsgraph.slots.slot import Slot


@attrs.define(eq=False)
class EagerReasons:
    """How many steps ran eagerly for each reason."""

    observers: Observers
    counts: dict[Reason, int] = attrs.field(factory=lambda: dict.fromkeys(Reason, 0))
    _last: tuple[Reason | None, int] = (None, 0)

    def note(self, decision: Decision, slots: Iterable[Slot]) -> None:
        """Count a step's reason; tell observers where it is not the last one's, or `slots` were replayed between."""
        self.counts[decision.reason] += 1
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
