"""Where steps go and what serves them: decisions and programs, made anew whenever a slot changes.

A runtime swaps whole `Routes`, so that what the hot path reads is never half-changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from tsgraph.dispatch.decision import Dispatch
from tsgraph.keys import Decision, SlotKey
from tsgraph.replay.program import Program
from tsgraph.slots.slot import Slot

Entry = tuple[Decision, Program | None]
"""A decision and, where it is a slot, its program."""


@attrs.frozen(eq=False)
class Routes:
    """For each variant, one entry for every number of live rows up to the largest size."""

    dispatch: Dispatch
    programs: Mapping[SlotKey, Program] = attrs.field(factory=dict)
    tables: Mapping[str, Sequence[Entry]] = attrs.field(factory=dict)

    def renewed(
        self,
        dispatch: Dispatch,
        ready: Sequence[Slot],
        variants: Sequence[str],
        compile_slot: Callable[[Slot], Program],
    ) -> Routes:
        """The routes of `dispatch` over the slots that are `ready`; those that were so before keep their programs."""
        programs = {slot.key: self.programs.get(slot.key) or compile_slot(slot) for slot in ready}
        return Routes(dispatch, programs, {variant: _table(dispatch, variant, programs) for variant in variants})


def _table(dispatch: Dispatch, variant: str, programs: Mapping[SlotKey, Program]) -> list[Entry]:
    return [(d, None if d.key is None else programs[d.key]) for d in dispatch.table(variant)]
