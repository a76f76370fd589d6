"""Verification on a CUDA device: right engines are found right and left alone, and what is planted is named."""

import attrs
import pytest
import torch

from tsgraph.backends.choice import choose_backend
from tsgraph.buffers.contract import Fixed, Rows, State
from tsgraph.protocols.null import NullAttention
from tsgraph.reference import DecoderConfig, EngineConfig, ReferenceEngine, graph_runtime
from tsgraph.reference.rows import RunningRows
from tsgraph.runtime import GraphRuntime

pytestmark = pytest.mark.gpu

FULL = EngineConfig(
    decoder=DecoderConfig(recurrent=(1, 3)),
    rows=8,
    pages=65,
    page_size=8,
    context=56,
    tokens_per_request=3,
    variants=True,
    constrained=True,
    device="cuda",
)
CASES = {
    "plain": EngineConfig(rows=8, pages=65, page_size=8, context=60, device="cuda"),
    "half": EngineConfig(rows=8, pages=65, page_size=8, context=60, device="cuda", dtype=torch.bfloat16),
    "drafts": attrs.evolve(FULL, decoder=DecoderConfig(), variants=False, constrained=False),
    "all": FULL,
}


def told(report):
    """What an assertion shows."""
    return report.table(160)


RACED = "state trail"
"""Scratch that pad rows have, too: their several tokens write one sink, in any order, and later layers read it."""


def found(report):
    """What is found, but for what no two eager steps of a pad row agree on."""
    raced = any((each.check, each.name) == ("repeatability", RACED) for each in report.findings)
    return [each for each in report.findings if each.name != RACED or not raced]


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_the_reference_engine_verifies(config):
    """Every slot, over garbage and after other replays: nothing is found, and weights and states are as they were."""
    engine = ReferenceEngine(config, lambda parts: graph_runtime(parts, backend="cuda", sizes=(1, 3, 8)))
    states = {name: state.tensor.clone() for name, state in engine.parts.states.items()}
    random = torch.cuda.get_rng_state()
    report = engine.runtime.verify(RunningRows(engine.parts))
    assert [] == found(report), told(report)
    assert len(engine.runtime.slots) == len(report.slots)
    for name, state in engine.parts.states.items():
        assert torch.equal(states[name], state.tensor), name
    assert torch.equal(random, torch.cuda.get_rng_state())
    assert 0 == engine.runtime.counters()["replays"]


def test_dummies_verify_it_too():
    """Without rows of anybody's: weak, and said so."""
    engine = ReferenceEngine(CASES["plain"], lambda parts: graph_runtime(parts, backend="cuda", sizes=(1, 4)))
    report = engine.runtime.verify(hostile=True)
    assert report.ok, told(report)
    assert "weak" in report.evidence[0]


class Paged(NullAttention):
    """Metadata of one page table. `rebinds`: each refresh makes a new one, which the graph does not read."""

    def __init__(self, *, rebinds):
        self.own = torch.zeros(4, dtype=torch.int64, device="cuda")
        self.table, self.rebinds = self.own, rebinds

    def refresh(self, batch, live):
        if self.rebinds:
            self.own = batch.pages.clone()
        else:
            self.own[: batch.rows].copy_(batch.pages)
        self.table = self.own

    def begin_eager(self, batch):
        self.table = batch.pages.clone()


@pytest.mark.parametrize("staleness", ["always", "off"])
@pytest.mark.parametrize("rebinds", [False, True], ids=["right", "planted"])
def test_a_stale_page_table_is_named(rebinds, staleness):
    """A1: by its address, and where nobody looks at that before replays, by the rows that are wrong, too."""
    attention, cache = Paged(rebinds=rebinds), torch.arange(10.0, 20.0, device="cuda")
    runtime = GraphRuntime.for_step(
        lambda pages, cache: cache[attention.table[: len(pages)]],
        inputs={"pages": Rows(torch.int64, pad=0, read_by=("graph", "device")), "cache": Fixed(cache)},
        sizes=(2, 4),
        outputs="request",
        backend="cuda",
        attention=attention,
        policy={"staleness": staleness},
    )
    runtime.capture()
    report = runtime.verify(lambda rows: {"pages": torch.arange(4, 4 - rows, -1)})
    named = {(finding.check, finding.name) for finding in report.findings}
    assert rebinds == (not report.ok), told(report)
    if rebinds:
        assert any(check == "addresses" and "attention" in name for check, name in named), told(report)
        assert (staleness == "off") == (("equality", "output") in named), told(report)


def test_a_baked_number_and_a_pad_that_writes_are_named():
    """C3 and J4 in one step: a Python number is frozen, and pad rows write to a row that is nobody's sink."""
    totals, fee = torch.zeros(6, device="cuda"), {"value": 1.0}

    def step(place, amount):
        totals.index_put_((place,), amount - fee["value"])
        return totals[place]

    runtime = GraphRuntime.for_step(
        step,
        inputs={"place": Rows(torch.int64, pad=1, warm=0), "amount": Rows(torch.float32, pad=0.0)},
        sizes=(4,),
        outputs="request",
        state={"totals": State(totals, sink=0)},
        backend="cuda",
    )
    assert not runtime.capture().failed, runtime.table(160)
    fee["value"] = 2.0
    report = runtime.verify(
        lambda rows: {"place": torch.arange(2, 2 + rows) % 6, "amount": torch.ones(rows)}, rows=(3, 0)
    )
    named = {(finding.check, finding.name) for finding in report.findings}
    assert {("equality", "output"), ("equality", "state totals"), ("sinks", "state totals")} <= named, told(report)
    assert not totals.any()


def test_random_numbers_of_a_graph_are_those_of_an_eager_step():
    """Each run begins at the same state of the device's generator, so that a random step is the same to the bit."""
    runtime = GraphRuntime.for_step(
        lambda x: x + torch.rand_like(x) * torch.randn_like(x),
        inputs={"x": Rows(torch.float32, pad=0.0, shape=(3,))},
        sizes=(2, 4),
        outputs="request",
        backend="cuda",
        device="cuda",
    )
    runtime.capture()
    report = runtime.verify(lambda rows: {"x": torch.arange(3.0 * rows).view(rows, 3)})
    assert report.ok, told(report)


def test_a_state_without_room_beside_it_is_kept_on_the_host(monkeypatch):
    """Its copy lies on the host, and sums tell which rows changed: everything is put back all the same."""
    backend = choose_backend("cuda", [], "cuda")
    totals = torch.arange(64.0, device="cuda").reshape(16, 4).contiguous()
    before = totals.clone()

    def step(place):
        totals.index_copy_(0, place, totals[place] + 1)
        return totals[place]

    runtime = GraphRuntime.for_step(
        step,
        inputs={"place": Rows(torch.int64, pad=0)},
        sizes=(2, 4),
        outputs="request",
        state={"totals": State(totals, sink=0)},
        backend=backend,
    )
    runtime.capture()
    memory = attrs.evolve(backend.memory(), free=0)
    monkeypatch.setattr(type(backend), "memory", lambda self: memory)
    report = runtime.verify(lambda rows: {"place": torch.arange(1, 1 + rows)})
    assert report.ok, told(report)
    assert torch.equal(before, totals)
