"""Whether a trigger begins: the run of its declared steps, simulated on bits, as `Life.fire` does before any effect."""

from __future__ import annotations

from functools import cached_property

import attrs

from tsgraph.proving.acts import Run
from tsgraph.proving.bits import Test


@attrs.frozen(eq=False)
class Gate:
    """Asked before a trigger with steps begins, or a session opens.

    `opening`: the steps of the session that it opens. `rounds` of `steps` are taken, or fewer, as soon as `enough`
    holds (None: nothing ends them early). `final`: cleanup, and then the trigger's rules.
    """

    opening: Run
    steps: Run = ()
    rounds: int = 0
    enough: Test | None = None
    final: Run = ()
    _answers: dict[int, bool] = attrs.field(factory=dict)

    @cached_property
    def mask(self) -> int:
        """The bits that the answer depends on."""
        mask = self.enough.mask if self.enough else 0
        for act in (*self.opening, *self.steps, *self.final):
            mask |= act.test.mask
            for field, _ in act.change.tables:
                mask |= field
        return mask

    def opens(self, bits: int, mask: int) -> bool:
        """Whether the trigger begins; `mask` has the gate's own, and the rest of every field that it touches."""
        key = bits & mask
        if key not in self._answers:
            self._answers[key] = bool(self.passed(key))
        return self._answers[key]

    def passed(self, bits: int) -> frozenset[int]:
        """What `bits` may be after all of it; nothing if it is refused."""
        now, through = taken(self.opening, frozenset((bits,))), frozenset[int]()
        for _ in range(self.rounds):
            if self.enough is not None:
                done = frozenset(bits for bits in now if self.enough.holds(bits))
                now, through = now - done, through | done
            now = taken(self.steps, now)
        return taken(self.final, through | now)


def taken(acts: Run, now: frozenset[int]) -> frozenset[int]:
    """What bits may be after `acts`, all of them; nothing if one is refused."""
    for act in acts:
        now = frozenset(result for bits in now if act.happens(bits) for result in act.change.results(bits))
    return now
