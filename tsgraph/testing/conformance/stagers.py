"""What a backend promises about bringing rows to static buffers: by a launch, and by a node of a graph."""

from __future__ import annotations

import attrs
import torch

from tsgraph.errors import CaptureUnsupported
from tsgraph.protocols.backend import Backend, Graph, Lane, Load, Stager
from tsgraph.testing.conformance.backend import BACKEND, BackendTrial
from tsgraph.testing.conformance.readings import difference
from tsgraph.testing.conformance.recordings import record

ROWS, SIZE, COLUMNS, PAD, MARGIN, BEFORE = 6, 5, 4, -1, -2, 7
CALLS = 40


@attrs.frozen(eq=False)
class Lanes:
    """Three buffers: a table, the same mirrored with a pad of its own, and one that is written in place."""

    table: torch.Tensor
    mirror: torch.Tensor
    in_place: torch.Tensor
    stager: Stager

    @classmethod
    def of(cls, backend: Backend) -> Lanes:
        """Full of what an earlier call may have left. Raises: CaptureUnsupported where the device has no kernel."""
        table, mirror = (backend.allocate((ROWS, COLUMNS), torch.int32, BEFORE) for _ in range(2))
        in_place = backend.allocate((ROWS,), torch.int64, BEFORE)
        lanes = (
            Lane(name="table", target=table, per_row=1, pad=PAD, column_pad=MARGIN),
            Lane(name="mirror", target=mirror, per_row=1, pad=0, column_pad=MARGIN, mirrors=0),
            Lane(name="in place", target=in_place, per_row=1, pad=PAD, in_place=True),
        )
        return cls(table, mirror, in_place, backend.stager(lanes, ROWS))

    def packed(self, live: int, number: int) -> Load:
        """A call of `live` rows of `number`, one column short, on the host."""
        load: Load = self.stager.load(SIZE, live)
        self.stager.tray()
        self.stager.room(load, 0, (live, COLUMNS - 1)).fill_(number)
        load.bring(0, (COLUMNS - 1) * 4)
        return load

    def held(self) -> tuple[torch.Tensor, ...]:
        """Copies of what they hold now."""
        return self.table.clone(), self.mirror.clone(), self.in_place.clone()

    def spoil(self) -> None:
        """What a step may do to them."""
        for tensor in (self.table, self.mirror, self.in_place):
            tensor.fill_(BEFORE)


def left_by(live: int, number: int) -> tuple[torch.Tensor, ...]:
    """What the buffers hold after a call of `live` rows of `number`, one column short."""
    table, mirror = (torch.full((ROWS, COLUMNS), pad, dtype=torch.int32) for pad in (PAD, 0))
    for tensor in (table, mirror):
        tensor[:live], tensor[:live, -1], tensor[SIZE:] = number, MARGIN, BEFORE
    in_place = torch.full((ROWS,), BEFORE)
    in_place[live:SIZE] = PAD
    return table, mirror, in_place


@BACKEND.promise("stager", "a launch that brings live rows, fills what they lack, and touches no row beyond the slot")
def launch_brings_rows(trial: BackendTrial) -> str | None:
    """From the host and from the device."""
    try:
        lanes = Lanes.of(trial.part)
    except CaptureUnsupported:
        return None
    lanes.stager.launch(lanes.packed(3, 5))
    if told := difference(left_by(3, 5), lanes.held()):
        return told
    lanes.spoil()
    rows, load = trial.part.allocate((2, COLUMNS - 1), torch.int32, 9), lanes.stager.load(SIZE, 2)
    load.bring(0, (COLUMNS - 1) * 4, rows.data_ptr(), ((COLUMNS - 1) * 4, 0, 4))
    lanes.stager.launch(load)
    return difference(left_by(2, 9), lanes.held())


@BACKEND.promise("stager", "a node that brings at each replay what was sent for it, and nothing if nothing was")
def node_brings_what_was_sent(trial: BackendTrial) -> str | None:
    """Many calls ahead of whatever the device does, and with launches in between."""
    try:
        lanes = Lanes.of(trial.part)
    except CaptureUnsupported:
        return None
    graph, kept = _with_node(trial.part, lanes), []
    for call in range(CALLS):
        lanes.spoil()
        lanes.stager.send(lanes.packed(call % SIZE, call))
        graph.replay()
        kept.append(lanes.held())
        lanes.spoil()
        lanes.stager.launch(lanes.packed(1, -call))
        graph.replay()
        kept.append(lanes.held())
    wanted = [left_by(*each) for call in range(CALLS) for each in ((call % SIZE, call), (1, -call))]
    return difference(wanted, kept)


@BACKEND.promise("stager", "rows that were withdrawn brought by no replay")
def withdrawn_rows_stay_away(trial: BackendTrial) -> str | None:
    """A call that was given up leaves nothing to the next."""
    try:
        lanes = Lanes.of(trial.part)
    except CaptureUnsupported:
        return None
    graph = _with_node(trial.part, lanes)
    lanes.stager.send(lanes.packed(3, 5))
    lanes.stager.withdraw()
    graph.replay()
    return difference(torch.full((ROWS, COLUMNS), BEFORE, dtype=torch.int32), lanes.table)


def _with_node(backend: Backend, lanes: Lanes) -> Graph:
    lanes.stager.lay_out(SIZE)
    return record(backend, backend.pool(), lambda: lanes.stager.record(SIZE))[0]
