"""The hot path of one slot, and the routes to it."""

import time
from contextlib import nullcontext

import pytest
import torch

from tsgraph.buffers.contract import Rows
from tsgraph.errors import BadBatch, HostFunctionFailed, ReplayFailed
from tsgraph.protocols.null import NullRecurrent
from tsgraph.runtime import GraphRuntime
from tsgraph.testing.fakes import all_fakes

IDS = torch.tensor([1, 2, 3])


def build(backend, **parts):
    """A captured runtime of two sizes."""
    runtime = GraphRuntime.for_step(
        lambda ids: ids + 1,
        inputs={"ids": Rows(torch.int64, pad=0)},
        sizes=(2, 4),
        outputs="request",
        backend=backend,
        **parts,
    )
    runtime.capture()
    return runtime


@pytest.fixture
def runtime(backend):
    """A captured runtime of two sizes, with every collaborator."""
    return build(backend, **all_fakes([]))


def serve(runtime, ids=IDS):
    """Push an entry and serve one step with it."""
    runtime.push(len(ids))
    return runtime(ids=ids)


def happened(runtime, event):
    """How often the runtime's scope saw an event."""
    lifecycle = runtime._parts.lifecycle
    return lifecycle.runtime_scope.count[lifecycle.law.layout.events[event]]


def test_served_forwards_feed_the_runtimes_ledger(runtime):
    """Replayed and eager forwards are told to the runtime's scope, as the spec's serving steps say."""
    for ids in (IDS, IDS, torch.arange(9)):
        serve(runtime, ids)
    assert (3, 2, 1) == tuple(happened(runtime, event) for event in ("entry_taken", "replayed", "served_eagerly"))


def test_a_refused_forward_leaves_its_entry(runtime):
    """A call that is refused was no forward: the entry waits, for another try or to be cancelled (R25)."""
    ticket = runtime.push(3)
    with pytest.raises(BadBatch):
        runtime(ids=IDS.int())
    assert (0, 0) == (happened(runtime, "replayed"), happened(runtime, "entry_taken"))
    runtime(ids=IDS)
    assert (1, False) == (happened(runtime, "entry_taken"), runtime.cancel(ticket))


def test_a_graph_that_cannot_run_says_which_slot(runtime):
    """A failing replay is a ReplayFailed that names the slot; it is not counted, and its entry is left to cancel."""
    runtime.slots["default", 4].graph.release()
    ticket = runtime.push(3)
    with pytest.raises(ReplayFailed, match=r"slot default/4 failed to replay.*\n.*recapture"):
        runtime(ids=IDS)
    assert (0, 0) == (runtime.slots["default", 4].counts.replays, happened(runtime, "entry_taken"))
    assert (True, 1) == (runtime.cancel(ticket), happened(runtime, "entry_abandoned"))


class Late(NullRecurrent):
    """State whose update fails."""

    def update(self, outputs, live):
        raise ValueError("no room")


def test_what_fails_after_a_replay_leaves_no_entry(backend):
    """The graph has run and taken its entry, whatever is raised about its outputs."""
    runtime = build(backend, **all_fakes([]) | {"recurrent": Late()})
    ticket = runtime.push(3)
    with pytest.raises(ValueError, match="no room"):
        runtime(ids=IDS)
    assert (1, False) == (happened(runtime, "entry_taken"), runtime.cancel(ticket))


def test_where_nothing_is_guarded_nothing_is_asked(backend):
    """Without a grammar no rule guards a served forward, and the hot path has nobody to ask or to tell."""
    program = build(backend)._server.routes.programs["default", 4]
    assert (None, None) == (program.admit, program.launched)


def test_a_host_function_of_an_earlier_step_is_not_this_slots_failure(backend):
    """Its error goes on as it is: the step was not launched, and the next one is served."""

    def fails():
        raise ValueError("planted")

    runtime = GraphRuntime.for_step(
        lambda ids: ids + 1, inputs={"ids": Rows(torch.int64, pad=0)}, sizes=(4,), outputs="request", backend=backend
    )
    runtime.capture()
    backend.host_function(fails)
    mark = backend.ready()
    while not mark.done():
        time.sleep(0.001)
    del mark
    with pytest.raises(HostFunctionFailed, match="planted"):
        runtime(ids=IDS)
    assert 0 == runtime.slots["default", 4].counts.replays
    assert [2, 3, 4] == runtime(ids=IDS).tolist()


def test_counts_survive_a_recapture(runtime):
    """Replays and pad rows of a slot are counted over all its recordings."""
    serve(runtime)
    runtime.invalidate("weights were loaded")
    runtime.wake()
    serve(runtime)
    assert (2, 2) == (runtime.slots["default", 4].counts.replays, runtime.slots["default", 4].counts.pad_rows)


def test_a_change_of_one_slot_keeps_the_programs_of_others(runtime):
    """Renewing the routes compiles only what was recorded anew."""
    before = dict(runtime._server.routes.programs)
    runtime.invalidate("moved", ("default", 2))
    runtime.wake()
    after = runtime._server.routes.programs
    assert (True, False) == tuple(before[key] is after[key] for key in (("default", 4), ("default", 2)))


def test_a_replay_makes_no_lifecycle_change_and_no_event(runtime):
    """A replay is no transition: state and history stay, and nothing is told to observers."""
    heard = []
    runtime.observe(heard.append)
    slot = runtime.slots["default", 4]
    before = (slot.state, slot.history)
    serve(runtime)
    assert (before, []) == ((slot.state, slot.history), heard)


class Asking(NullRecurrent):
    """State whose update notes torch's mode, and may fail."""

    def __init__(self):
        self.seen, self.fails = [], False

    def update(self, outputs, live):
        self.seen.append(torch.is_inference_mode_enabled())
        if self.fails:
            raise ValueError("no room")


@pytest.mark.parametrize("inference", [True, False])
def test_collaborators_compute_in_inference_mode_at_every_replay(backend, inference):
    """And the caller is in his own again, also where one has failed."""
    asking = Asking()
    runtime = build(backend, recurrent=asking)
    asking.seen.clear()
    with torch.inference_mode(mode=inference):
        for asking.fails in (False, False, True, False):
            with pytest.raises(ValueError, match="no room") if asking.fails else nullcontext():
                runtime(ids=IDS)
            assert inference == torch.is_inference_mode_enabled()
    assert [True] * 4 == asking.seen


@pytest.mark.parametrize("parts", [{}, {"recurrent": NullRecurrent()}], ids=["alone", "with a collaborator"])
@pytest.mark.parametrize("inference", [True, False])
def test_a_replay_gives_the_same_in_every_mode(backend, parts, inference):
    """Outputs are inference tensors without gradients, whether or not torch's mode had to be changed for somebody."""
    runtime = build(backend, **parts)
    with torch.inference_mode(mode=inference):
        returned = [runtime(ids=IDS), runtime(ids=IDS)]
    assert [([2, 3, 4], True, False)] * 2 == [(r.tolist(), r.is_inference(), r.requires_grad) for r in returned]
