"""The hot path of one slot, and the routes to it."""

import pytest
import torch

from tsgraph.buffers.contract import Rows
from tsgraph.errors import BadBatch, ReplayFailed
from tsgraph.runtime import GraphRuntime
from tsgraph.testing.fakes import all_fakes

IDS = torch.tensor([1, 2, 3])


@pytest.fixture
def runtime(backend):
    """A captured runtime of two sizes, with every collaborator."""
    runtime = GraphRuntime.for_step(
        lambda ids: ids + 1,
        inputs={"ids": Rows(torch.int64, pad=0)},
        sizes=(2, 4),
        outputs="request",
        backend=backend,
        **all_fakes([]),
    )
    runtime.capture()
    return runtime


def happened(runtime, event):
    """How often the runtime's scope saw an event."""
    lifecycle = runtime._parts.lifecycle
    return lifecycle.runtime_scope.count[lifecycle.law.layout.events[event]]


def test_served_forwards_feed_the_runtimes_ledger(runtime):
    """Replayed and eager forwards are told to the runtime's scope, as the spec's serving steps say."""
    runtime(ids=IDS)
    runtime(ids=IDS)
    runtime(ids=torch.arange(9))
    assert (2, 1, 0) == tuple(happened(runtime, event) for event in ("replayed", "served_eagerly", "entry_abandoned"))


def test_a_refused_forward_is_abandoned(runtime):
    """A call that is refused was no forward: the scope is told that its entry was abandoned (R25)."""
    with pytest.raises(BadBatch):
        runtime(ids=IDS.int())
    assert (0, 1) == (happened(runtime, "replayed"), happened(runtime, "entry_abandoned"))


def test_a_graph_that_cannot_run_says_which_slot(runtime):
    """A failing replay is a ReplayFailed that names the slot; it is abandoned and not counted."""
    runtime.slots["default", 4].graph.release()
    with pytest.raises(ReplayFailed, match=r"slot default/4 failed to replay.*\n.*recapture"):
        runtime(ids=IDS)
    assert (0, 1) == (runtime.slots["default", 4].counts.replays, happened(runtime, "entry_abandoned"))


def test_counts_survive_a_recapture(runtime):
    """Replays and pad rows of a slot are counted over all its recordings."""
    runtime(ids=IDS)
    runtime.invalidate("weights were loaded")
    runtime.wake()
    runtime(ids=IDS)
    assert (2, 2) == (runtime.slots["default", 4].counts.replays, runtime.slots["default", 4].counts.pad_rows)


def test_a_change_of_one_slot_keeps_the_programs_of_others(runtime):
    """Renewing the routes compiles only what was recorded anew."""
    before = dict(runtime._routes.programs)
    runtime.invalidate("moved", ("default", 2))
    runtime.wake()
    after = runtime._routes.programs
    assert (True, False) == tuple(before[key] is after[key] for key in (("default", 4), ("default", 2)))


def test_a_replay_makes_no_lifecycle_change_and_no_event(runtime):
    """A replay is no transition: state and history stay, and nothing is told to observers."""
    heard = []
    runtime.observe(heard.append)
    slot = runtime.slots["default", 4]
    before = (slot.state, slot.history)
    runtime(ids=IDS)
    assert (before, []) == ((slot.state, slot.history), heard)
