"""What has moved since it was recorded is found before a replay, told by name, and the step is served right."""

from __future__ import annotations

import math
import re

import attrs
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from tsgraph.bench.costs import blocks_kept, tensors_made
from tsgraph.buffers.contract import Rows, State
from tsgraph.keys import Reason
from tsgraph.protocols.null import NullAttention, NullSampler
from tsgraph.receipts.receipt import Opaque
from tsgraph.runtime import GraphRuntime
from tsgraph.testing.fakes import FakeGrammar

ROWS = torch.tensor([1.0, 2.0, 3.0])
KEY = ("default", 4)


class Engine:
    """A step that reads weights of every kind, a state that it holds itself, and what its parts hold.

    `more`: how many weights its model has besides.
    """

    def __init__(self, backend, *, more=0, sizes=(4,), parts=None, **policy):
        self.backend, self.told = backend, []
        self.parts = {name: make(self) for name, make in (parts or {}).items()}
        self.model = nn.Module()
        self.model.weight = self.parameter(2)
        self.model.tied = self.model.weight
        self.model.register_buffer("scale", self.of(3))
        self.model.derived = self.of(7)
        self.model.more = nn.ParameterList(self.parameter(at) for at in range(more))
        self.model.inner = nn.Module()
        self.model.inner.weight = self.parameter(1)
        self.model.unread = self.parameter(1)
        self.state = self.of(5)
        self.runtime = GraphRuntime.for_step(
            self.step,
            inputs={"values": Rows(torch.float32, pad=0)},
            sizes=sizes,
            outputs="request",
            modules=[self.model],
            state={"state": State(self.state, restore=True)},
            backend=backend,
            observers=[self.told.append],
            policy={"staleness": "full", "freeze_gc": False, **policy},
            **self.parts,
        )

    def of(self, *values):
        """Numbers on the device."""
        tensor = torch.tensor(values, dtype=torch.float32, device=self.backend.device)
        self.backend.adopt([tensor])
        return tensor

    def parameter(self, *values):
        """The same as a parameter."""
        return nn.Parameter(self.of(*values), requires_grad=False)

    def step(self, values):
        model = self.model
        terms = [model.tied * model.scale[:1], model.derived, self.state, model.inner.weight, *model.more]
        terms += [tensor[:1] for part in self.parts.values() for tensor in part.read()]
        return values * model.weight + sum(terms)

    def captured(self):
        """The engine with its slots captured, and replayed once: by then everything was looked at once."""
        assert () == self.runtime.capture().failed
        assert not self.serve().eager
        self.told.clear()
        return self

    def serve(self, values=ROWS):
        """Serve one step, which must give what the step itself gives; its decision."""
        done = self.runtime.step(values=values)
        with torch.inference_mode():
            assert self.step(values.to(self.backend.device)).tolist() == done.outputs.tolist()
        return done.decision

    @property
    def slot(self):
        """Its slot."""
        return self.runtime.slots[KEY]

    @property
    def guard(self):
        """What looks after its recordings."""
        return self.runtime._server.guard


def moved(tensor, new):
    """Put other memory under a tensor."""
    tensor.data = new


CHANGES = {
    "weight.data =": (lambda e: moved(e.model.weight, e.of(4)), "parameter (weight|tied)", "moved"),
    "another Parameter": (lambda e: setattr(e.model, "weight", e.parameter(4)), "parameter weight", "rebound"),
    "a tie is cut": (lambda e: setattr(e.model, "tied", e.parameter(4)), "parameter tied", "rebound"),
    "set_": (lambda e: e.model.scale.set_(e.of(4)), "module buffer scale", "moved"),
    "another buffer": (lambda e: setattr(e.model, "scale", e.of(4)), "module buffer scale", "rebound"),
    "a buffer grows": (lambda e: setattr(e.model, "scale", e.of(4, 4)), "module buffer scale", "grown"),
    "a derived weight": (lambda e: setattr(e.model, "derived", e.of(4)), "attribute derived", "rebound"),
    "a state moves": (lambda e: moved(e.state, e.of(4)), "state state", "moved"),
    "a state is made anew": (lambda e: setattr(e, "state", e.of(4)), r"step self self\.state", "rebound"),
}


# -- what is found -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHANGES)
def test_what_moved_is_named_and_the_step_is_right(backend, name):
    """Faults A1, F1, F2, F3: eager with the new values; the cause says what moved, from where to where."""
    change, path, kind = CHANGES[name]
    engine = Engine(backend).captured()
    change(engine)
    decision, cause = engine.serve(), engine.slot.cause
    assert (Reason.SLOT_STALE, kind) == (decision.reason, cause.kind)
    assert re.match(rf"{path} .* \(recorded at 0x[0-9a-f]+, now at 0x[0-9a-f]+\)", cause.summary), cause.summary
    assert f"slot default/4: {cause.summary}" == decision.detail


def test_it_is_told_once(backend):
    """One event names all that moved, one each slot that became stale; later steps are eager and tell nothing."""
    engine = Engine(backend).captured()
    engine.model.weight.data, engine.model.derived = engine.of(4), engine.of(8)
    for _ in range(3):
        assert engine.serve().eager
    assert ["memory.moved", "slot.stale", "dispatch.reason_changed"] == [event.name for event in engine.told]
    paths = [change.split(" was ")[0] for change in engine.told[0].fields["changes"]]
    assert ["attribute derived", "parameter tied", "parameter weight"] == sorted(paths)
    assert ["default/4"] == engine.told[0].fields["slots"]


def test_what_is_updated_in_place_stays(backend):
    """A weight that is copied into, or loaded, keeps its address: the replay reads the new values."""
    engine = Engine(backend).captured()
    engine.model.weight.copy_(engine.of(9))
    engine.model.load_state_dict({**engine.model.state_dict(), "scale": engine.of(6)})
    engine.state.fill_(1)
    assert not engine.serve().eager


def test_recorded_memory_is_nobody_elses_until_the_slot_is_stale(backend):
    """Fault K2: what a graph reads is held, whatever the engine drops; it is given back when the slot is stale."""
    engine = Engine(backend, staleness="off").captured()
    before = engine.runtime(values=ROWS, clone=True).tolist()
    old = StorageWeakRef(engine.model.derived.untyped_storage())
    engine.model.derived = engine.of(8)
    noise = [engine.of(100 + at) for at in range(20)]
    assert (before, 20) == (engine.runtime(values=ROWS).tolist(), len(noise))
    assert not old.expired()
    assert ("attribute derived",) == tuple(change.path for change in engine.runtime.check_addresses())
    assert () == engine.slot.receipt.kept
    engine.runtime.release()  # an emulated graph holds what it computes with itself
    assert old.expired()


def test_released_memory_is_found_before_it_is_read(backend):
    """Fault F5: what has no memory any more is told by name as soon as somebody looks, and no replay reads it."""
    engine = Engine(backend).captured()
    storage = engine.model.scale.untyped_storage()
    storage.resize_(0)
    (change,) = engine.runtime.check_addresses()
    assert ("module buffer scale", "released", 0) == (change.path, change.kind, change.new)
    assert Reason.SLOT_STALE is engine.runtime.explain(3).reason
    storage.resize_(4)
    engine.model.scale.fill_(3)
    assert engine.serve().eager
    engine.runtime.wake()
    assert not engine.serve().eager


def test_a_module_that_was_replaced_is_found_by_a_full_look(backend):
    """A sweep looks into the modules that were recorded; where one was replaced as a whole, ask for a full look."""
    engine = Engine(backend).captured()
    engine.model.inner = nn.Module()
    engine.model.inner.weight = engine.parameter(2)
    assert ("parameter inner.weight",) == tuple(change.path for change in engine.runtime.check_addresses())
    assert engine.serve().eager


def test_what_no_graph_read_may_move(backend):
    """Only what was recorded matters, unless a part of the recording was opaque: it may have read anything declared."""
    engine = Engine(backend).captured()
    engine.model.unread.data = engine.of(2)
    assert not engine.serve().eager
    engine.slot.receipt = attrs.evolve(
        engine.slot.receipt, opaque=(Opaque(kind="kernel", name="its own", line="", times=1),)
    )
    engine.runtime.enabled = True  # what calls read is made anew
    engine.model.unread.data = engine.of(3)
    assert engine.serve().eager


# -- when it is found --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["always", "sampled"])
def test_the_sweep_keeps_its_bound_exactly(backend, mode):
    """Of N places, K at each replay: any is found within ceil(N / K) replays, and the last one only then."""
    engine = Engine(backend, more=4, staleness=mode, sweep=3).captured()
    weights, places = engine.model.more, len(engine.guard._places)
    turns = math.ceil(places / 3)
    assert (11, 4) == (places, turns)
    for weight in weights:
        there, took = weight.data, []
        for phase in range(turns):
            for _ in range(phase):
                assert not engine.guard.look()
            weight.data = engine.of(9)
            took.append(next(count for count in range(1, 20) if engine.guard.look()))
            weight.data = there
            for _ in range((-phase - took[-1]) % turns):
                assert not engine.guard.look()
        assert list(range(1, turns + 1)) == sorted(took)


def test_a_swept_weight_is_found_and_the_step_of_that_time_is_right(backend):
    """Replays before it is found read the old weight, as stated; the one that finds it is eager, with the new."""
    engine = Engine(backend, more=4, staleness="always", sweep=3).captured()
    engine.model.more[2].data = engine.of(50)
    served = [engine.runtime.step(values=ROWS).decision.eager for _ in range(4)]
    assert (True, served) == (served[-1], sorted(served))
    assert engine.serve().eager


@pytest.mark.parametrize("mode", ["always", "sampled", "full"])
def test_the_first_look_after_a_capture_is_at_everything(backend, mode):
    """Whatever moved while slots were captured is found before any of them is replayed."""
    engine = Engine(backend, more=8, staleness=mode, sweep=1)
    engine.runtime.capture()
    engine.model.more[7].data = engine.of(50)
    assert engine.serve().eager


def test_off_looks_at_nothing_unless_asked(backend):
    """Without a guard the replay reads what was recorded; `check_addresses` finds it all the same."""
    engine = Engine(backend, staleness="off").captured()
    old = engine.runtime(values=ROWS, clone=True).tolist()
    engine.model.weight.data = engine.of(4)
    assert old == engine.runtime(values=ROWS).tolist()
    assert 2 == len(engine.runtime.check_addresses())
    assert () == engine.runtime.check_addresses()
    assert engine.serve().eager


def test_looking_keeps_no_memory(backend):
    """The default mode leaves nothing behind in any replay, and makes no tensor."""
    engine = Engine(backend, more=20, staleness="always", parts={"attention": Metadata, "sampler": Sampler}).captured()
    metadata = engine.runtime._server.routes.programs[KEY].metadata
    nothing = blocks_kept(lambda: None)
    assert nothing == blocks_kept(lambda: engine.guard.look() or metadata.turn.look())
    assert 0 == tensors_made(lambda: engine.guard.look() or metadata.turn.look())


# -- collaborators -----------------------------------------------------------------------------------------------------


class Sampler(NullSampler):
    """A sampler that holds a temperature."""

    def __init__(self, engine):
        self.temperature = engine.of(1)

    def read(self):
        return [self.temperature]


class Counted(Sampler):
    """One that counts how often it has replaced memory."""

    generation = 0


class Metadata(NullAttention):
    """Metadata that are views of a buffer of their own; eager steps leave others in their place."""

    def __init__(self, engine):
        self.engine, self.own, self.after = engine, engine.of(1, 1, 1, 1, 1, 1, 1, 1), 0
        self.lengths = self.own[:0]

    def read(self):
        return [self.lengths]

    def bind(self, batch):
        self.lengths = self.own[: batch.rows]

    def refresh(self, batch, live):
        self.own.fill_(1)

    def begin_eager(self, batch):
        self.lengths = torch.ones(batch.rows, device=self.engine.backend.device)


class Rebinding(Metadata):
    """A fault: each refresh makes its own lengths, and the buffer stays as it was."""

    broken = False

    def refresh(self, batch, live):
        self.lengths = self.engine.of(*[1.0] * batch.rows) if self.broken else self.own[: batch.rows]


class Reallocating(Metadata):
    """A fault: each refresh makes a new buffer, and drops the old."""

    broken = False

    def refresh(self, batch, live):
        if self.broken:
            self.own = self.engine.of(*[1.0] * 8)
        self.bind(batch)


class Binding(Metadata):
    """Metadata whose refresh makes the views current again."""

    def refresh(self, batch, live):
        self.bind(batch)
        super().refresh(batch, live)


def test_a_parts_memory_is_looked_at_before_each_replay(backend):
    """What a collaborator replaces is found at once, however much is swept."""
    engine = Engine(backend, more=20, staleness="always", sweep=1, parts={"sampler": Sampler}).captured()
    engine.parts["sampler"].temperature = engine.of(6)
    assert Reason.SLOT_STALE is engine.serve().reason
    assert engine.slot.cause.summary.startswith("collaborator sampler.temperature was rebound")


@pytest.mark.parametrize("kind", [Metadata, Binding])
def test_metadata_of_eager_steps_mean_nothing(backend, kind):
    """An eager step leaves its own metadata; as long as the graph's are held and refreshed, it is replayed."""
    engine = Engine(backend, staleness="always", parts={"attention": kind}, sizes=(2, 4)).captured()
    for rows in (9, 3, 1, 9, 2, 3):
        values = torch.arange(rows).float()
        assert (rows > 4) == engine.runtime.step(values=values).decision.eager
    assert [] == [event.name for event in engine.told if event.name != "dispatch.reason_changed"]


@pytest.mark.parametrize("kind", [Rebinding, Reallocating])
def test_a_refresh_that_makes_new_memory_is_found_in_that_step(backend, kind):
    """Fault A1: the graph would read what was bound. Nothing is launched; the step is eager, with its own metadata."""
    engine = Engine(backend, staleness="always", parts={"attention": kind}).captured()
    assert not engine.serve().eager
    engine.parts["attention"].broken = True
    replays = engine.slot.counts.replays
    assert Reason.SLOT_STALE is engine.serve().reason
    assert replays == engine.slot.counts.replays
    assert re.match(r"collaborator attention\.(lengths|own) ", engine.slot.cause.summary), engine.slot.cause


def test_a_raised_generation_is_believed(backend):
    """A part that says it replaced memory is asked for no proof: every slot that was recorded before is stale."""
    engine = Engine(backend, staleness="always", parts={"sampler": Counted}, sizes=(2, 4)).captured()
    engine.parts["sampler"].generation += 1
    assert engine.serve().eager
    causes = {slot.cause.summary for slot in engine.runtime.slots.values()}
    assert {"collaborator sampler has replaced memory, as its generation says: 0 when recorded, now 1"} == causes
    engine.runtime.wake()
    assert not engine.serve().eager


class Growing(Sampler):
    """A workspace that the smaller slot's warm-up finds too small, when the larger one is captured already."""

    def read(self):
        return [self.temperature]

    def prepare(self, batch):
        if batch.rows == 2 and len(self.temperature) == 1:
            self.temperature = self.engine.of(1, 1, 1)


def test_a_workspace_that_grows_while_slots_are_captured(backend):
    """Fault E6: the slot that was captured before has the old one. It is named before anything replays it."""

    def make(engine):
        sampler = Growing(engine)
        sampler.engine = engine
        return sampler

    engine = Engine(backend, staleness="always", parts={"sampler": make}, sizes=(2, 4))
    engine.runtime.capture()
    assert engine.serve().eager
    assert "collaborator sampler.temperature has grown from 4 to 12 bytes" in engine.slot.cause.summary
    assert not engine.serve(ROWS[:2]).eager


# -- what is lost, and what comes after --------------------------------------------------------------------------------


def test_nothing_of_the_step_is_lost(backend):
    """The step that finds it takes its grammar entry once, counts once, and leaves rows that the engine wrote."""
    engine = Engine(backend, parts={"attention": Rebinding}, staleness="always")
    engine.runtime.capture()
    engine.model.weight.data = engine.of(4)
    before = engine.runtime.counters()["replays"]
    assert engine.serve().eager
    assert (before, {"slot_stale": 1}) == (engine.runtime.counters()["replays"], engine.runtime.counters()["eager"])


@pytest.mark.parametrize("fault", ["a weight", "metadata"])
def test_a_grammar_entry_is_taken_by_the_eager_step(backend, fault):
    """Whether it is found before staging or after the refresh: the entry that waited is the eager step's."""
    grammar = FakeGrammar()
    attention = {}

    def make(engine):
        attention["it"] = Rebinding(engine)
        return attention["it"]

    class Taking(Sampler):
        def read(self):
            grammar.queue and grammar.consume()
            return []

    engine = Engine(backend, parts={"attention": make, "sampler": Taking})
    runtime = GraphRuntime.for_step(
        engine.step,
        inputs={"values": Rows(torch.float32, pad=0)},
        sizes=(4,),
        outputs="request",
        modules=[engine.model],
        state={"state": State(engine.state, restore=True)},
        backend=backend,
        observers=(),
        grammar=grammar,
        **engine.parts,
    )
    assert () == runtime.capture().failed
    if fault == "a weight":
        engine.model.weight.data = engine.of(4)
    else:
        attention["it"].broken = True
    ticket = runtime.push(3)
    assert runtime.step(values=ROWS).decision.eager
    assert ([], False) == (grammar.queue, runtime.cancel(ticket))


def test_only_what_is_stale_is_captured_again(backend):
    """Fault M2: the other slot goes on with its recording, and the pool never holds old and new at once."""
    engine = Engine(backend, sizes=(2, 4))
    plain = engine.step

    def step(values):
        return plain(values) + (engine.model.unread if len(values) == 2 else 0)

    runtime = GraphRuntime.for_step(
        step,
        inputs={"values": Rows(torch.float32, pad=0)},
        sizes=(2, 4),
        outputs="request",
        modules=[engine.model],
        state={"state": State(engine.state, restore=True)},
        backend=backend,
        observers=(),
        policy={"staleness": "full", "freeze_gc": False},
    )
    runtime.capture()
    kept, held = runtime.slots[KEY].graph, backend.memory().pooled
    engine.model.unread.data = engine.of(4)
    (change,) = runtime.check_addresses()
    assert (("default", 2),) == change.slots
    assert ["replayable", "stale"] == [runtime.slots["default", size].state for size in (4, 2)]
    assert (("default", 2),) == runtime.capture().captured
    assert kept is runtime.slots[KEY].graph
    assert held >= backend.memory().pooled
    assert runtime.step(values=ROWS[:2]).decision.key == ("default", 2)


def test_lazy_slots_are_captured_by_the_step_that_wants_them(backend):
    """A stale slot is captured again on demand, and serves; one that is stale again at once is not tried for ever."""
    engine = Engine(backend, parts={"attention": Rebinding}, capture="lazy")
    assert [False, False] == [engine.serve().eager for _ in range(2)]
    engine.model.weight.data = engine.of(4)
    assert not engine.serve().eager
    engine.parts["attention"].broken = True
    assert [True, True, True] == [engine.serve().eager for _ in range(3)]
    assert ("remade", 2) == (engine.slot.cause.kind, sum(event.name == "slot.captured" for event in engine.told))
