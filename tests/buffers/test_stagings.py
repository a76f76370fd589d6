"""Which way rows go: decided by the policy, by who reads buffers, and by what the device can; and told."""

from __future__ import annotations

import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.buffers.contract import Rows
from tsgraph.buffers.packing import Packing
from tsgraph.buffers.staging import Staging
from tsgraph.buffers.stagings import Stagings
from tsgraph.errors import CaptureUnsupported
from tsgraph.runtime import GraphRuntime


class WithoutKernel(EmulatedBackend):
    """A device that has none."""

    asked = 0

    def stager(self, lanes, rows, *, reads="ring"):
        self.asked += 1
        raise CaptureUnsupported("no compiler", hint="find one")


@pytest.mark.parametrize(
    ("readers", "policy", "way", "why"),
    [
        (("graph",), "auto", "graph", "nobody reads buffers before the replay"),
        (("graph", "host"), "auto", "graph", "nobody reads buffers before the replay"),
        (("device", "graph"), "auto", "launch", "read on the device before the replay: lens"),
        (("graph",), "launch", "launch", "the policy says so"),
        (("graph",), "copies", "copies", "the policy says so"),
    ],
)
def test_the_cheapest_way_that_readers_allow(field, arena_of, readers, policy, way, why):
    """A reader on the device forces the launch for all; the policy may ask for less."""
    arena = arena_of(field("ids"), field("lens", read_by=readers), backend=EmulatedBackend())
    stagings = Stagings(arena, policy)
    assert {"policy": policy, "way": way, "why": why} == stagings.describe()
    staging = stagings.of(4)
    assert staging is stagings.of(4)
    assert (way == "copies") is isinstance(staging, Staging)
    assert (way == "graph") == (isinstance(staging, Packing) and staging.inside)


def test_a_device_without_a_kernel_copies_and_says_why(field, arena_of):
    """It is asked once. What is staged is the same."""
    backend = WithoutKernel()
    stagings = Stagings(arena_of(field("ids"), backend=backend))
    for size in (2, 4):
        assert isinstance(stagings.of(size), Staging)
    told = stagings.describe()
    assert ("copies", 1, {}) == (told["way"], backend.asked, stagings.memory())
    assert "no compiler" in told["why"]


def test_a_runtime_without_buffers_needs_nothing(arena_of):
    """There is nothing to bring."""
    stagings = Stagings(arena_of(backend=EmulatedBackend()))
    assert ("copies", "there is no buffer") == (stagings.describe()["way"], stagings.describe()["why"])
    stagings.of(4).stage(2, {})


@pytest.mark.parametrize("reads", ["ring", "landing"])
def test_its_memory_is_told_by_name(field, arena_of, reads):
    """Pinned and on the device: what a graph touches besides its buffers."""
    backend = EmulatedBackend()
    stagings = Stagings(arena_of(field("ids"), backend=backend), reads=reads)
    assert {} == stagings.memory()
    stagings.of(4)
    places = {name: backend.holds(tensor) for name, tensor in stagings.memory().items()}
    landing = {"staging landing": True} if reads == "landing" else {}
    assert {"staging ring": False, "staging state": True, **landing, "staging lanes of 4": True} == places


def built(policy, backend, step=lambda ids: ids + 1, **rows):
    """A captured runtime of slots of 2 and 4."""
    runtime = GraphRuntime.for_step(
        step, inputs={"ids": Rows(torch.int64, pad=7, **rows)}, sizes=(2, 4), outputs="request", backend=backend
    )
    engine = runtime._parts.engine
    engine.stagings = Stagings(engine.arena, policy)
    runtime.capture()
    return runtime


@pytest.mark.parametrize(("policy", "nodes"), [("auto", 1), ("launch", 0), ("copies", 0)])
def test_what_is_recorded_and_what_is_served(backend, policy, nodes):
    """A node at the start of the graph where the graph brings its rows; the same rows either way."""
    runtime = built(policy, backend)
    for slot in runtime.slots.values():
        listing = slot.graph.listing
        if listing is not None:
            assert nodes == sum("tsgraph" in node.name for node in listing)
            assert nodes == listing[0].name.startswith("tsgraph")
    for rows in (1, 2, 3, 4, 0, 2):
        assert [number + 1 for number in range(rows)] == runtime(rows=rows, ids=torch.arange(rows)).tolist()


def test_a_step_sees_its_pads_whichever_the_way(backend):
    """Also after a larger batch, and after a step that wrote to its own inputs."""

    def step(ids):
        total = ids.sum() + torch.zeros_like(ids)
        ids.fill_(100)
        return total

    for policy in ("auto", "launch", "copies"):
        runtime = built(policy, backend, step)
        for rows in (4, 3, 1):
            expected = sum(range(rows)) + 7 * ((2 if rows < 3 else 4) - rows)
            assert [expected] * rows == runtime(ids=torch.arange(rows)).tolist()


def test_a_refresh_finds_what_it_reads():
    """What a collaborator reads on the device before the replay was launched there; the graph's own comes with it."""
    seen = []
    runtime = built("auto", "emulated", read_by=("device", "graph"))
    program = runtime._server.routes.programs["default", 4]
    program.refreshes = (lambda batch, live: seen.append(batch["ids"].tolist()),)
    assert [5, 6, 7] == runtime(ids=torch.tensor([4, 5, 6])).tolist()
    assert [[4, 5, 6, 7]] == seen
