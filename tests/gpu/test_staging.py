"""Packed staging on a real device: what is compiled there, in which order things happen, and what a call launches."""

import threading
import time
from functools import partial

import pytest
import torch

from tsgraph.backends.choice import choose_backend
from tsgraph.backends.ring import TRAYS
from tsgraph.bench import costs
from tsgraph.buffers.contract import Rows
from tsgraph.buffers.stagings import Stagings
from tsgraph.errors import InternalError
from tsgraph.runtime import GraphRuntime

pytestmark = pytest.mark.gpu

ROWS, COLUMNS = 16, 64
LAG = 2_000_000
"""Cycles that the device sleeps: about a millisecond."""

INPUTS = {
    "ids": Rows(torch.int64, pad=0),
    "lengths": Rows(torch.int32, pad=1),
    "table": Rows(torch.int32, pad=-1, shape=(COLUMNS,), column_pad=-1),
}


def step(ids, lengths, table):
    """Every number of a row."""
    return ids * 1000 + lengths * 100 + table.sum(1)


def expected(ids, lengths, table):
    """The same on the host, where columns that were not passed are -1."""
    return ids * 1000 + lengths * 100 + table.sum(1) - (COLUMNS - table.shape[1])


def sources(rows, seed, columns=COLUMNS):
    """Random rows on the host."""
    generator = torch.Generator().manual_seed(seed)
    numbers = {name: torch.randint(0, 50, (rows,), generator=generator) for name in ("ids", "lengths")}
    table = torch.randint(0, 50, (rows, columns), generator=generator, dtype=torch.int32)
    return {"ids": numbers["ids"], "lengths": numbers["lengths"].int(), "table": table}


def on_device(passed):
    """The same rows there."""
    return {name: tensor.cuda() for name, tensor in passed.items()}


def build(reads="ring", way="auto", outputs="request", **inputs):
    """A captured runtime of two sizes."""
    backend = choose_backend("cuda", [], "cuda")
    runtime = GraphRuntime.for_step(
        step, inputs={**INPUTS, **inputs}, sizes=(4, ROWS), outputs=outputs, backend=backend
    )
    engine = runtime._parts.engine
    engine.stagings = Stagings(engine.arena, way, reads=reads)
    runtime.capture()
    return runtime


@pytest.fixture(scope="module")
def runtime():
    """One whose graphs bring their rows."""
    return build()


def test_the_device_has_the_kernels(runtime):
    """They were compiled, loaded and tried: if not, this says why rows are copied."""
    told = runtime._parts.engine.stagings.describe()
    assert ("graph", "nobody reads buffers before the replay") == (told["way"], told["why"])


@pytest.mark.parametrize("way", ["auto", "launch", "copies"])
@pytest.mark.parametrize("reads", ["ring", "landing"])
def test_every_call_is_served_with_its_rows(way, reads):
    """Host and device sources, wide and narrow tables, dense or not, growing and shrinking, in slots of both sizes."""
    runtime = build(reads, way)
    assert {"auto": "graph"}.get(way, way) == runtime._parts.engine.stagings.describe()["way"]
    for seed, rows in enumerate([16, 3, 1, 16, 13, 4, 2, 9, 5] * 4):
        passed = sources(rows, seed, columns=[COLUMNS, 10, 33][seed % 3])
        if seed % 4 == 1:
            passed["table"] = torch.cat([passed["table"]] * 2, dim=1)[:, : passed["table"].shape[1]]
        given = on_device(passed) if seed % 2 else passed
        assert expected(**passed).tolist() == runtime(**given).tolist(), (seed, rows)


def test_host_sources_take_no_launch_and_device_sources_one(runtime):
    """Beside the graph's, by torch's profiler."""
    passed = sources(13, 0)
    there = on_device(passed)
    inside, ahead = costs.launches(lambda: runtime(**passed)), costs.launches(lambda: runtime(**there))
    assert 1 == sum(inside.values()), inside
    assert 2 == sum(ahead.values()), ahead


def test_a_device_reader_takes_one_launch():
    """A buffer that is read on the device before the replay is there before it, wherever its source is."""
    runtime = build(lengths=Rows(torch.int32, pad=1, read_by=("device", "graph")))
    assert "launch" == runtime._parts.engine.stagings.describe()["way"]
    passed = sources(13, 1)
    launched = costs.launches(lambda: runtime(**passed))
    assert 2 == sum(launched.values()), launched
    assert expected(**passed).tolist() == runtime(**passed).tolist()


def test_a_steady_call_makes_nothing(runtime):
    """No tensor, no view, no device memory."""
    passed = sources(13, 2)
    for given in (passed, on_device(passed)):
        call = partial(runtime, **given)
        assert (0, 0) == (costs.device_allocations(call), costs.tensors_made(call))


@pytest.mark.parametrize("reads", ["ring", "landing"])
@pytest.mark.parametrize("way", ["auto", "launch"])
def test_host_rows_may_be_changed_while_the_device_lags(way, reads):
    """Three circles of trays ahead of a device that sleeps, the sources overwritten after each call (fault D4)."""
    runtime, passed, returned, wanted = build(reads, way), sources(13, 3), [], []
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(3 * TRAYS):
        torch.cuda._sleep(LAG)
        wanted.append(expected(**passed).tolist())
        returned.append(runtime(**passed).clone())
        for tensor in passed.values():
            tensor.add_(1)
    seconds = time.perf_counter() - began
    assert wanted == [each.tolist() for each in returned]
    torch.cuda.synchronize()
    assert seconds > 0.001, "the host never waited, so nothing was tried"


def test_graphs_may_be_replayed_by_hand_in_between(runtime):
    """Such a replay brings nothing, takes nobody's rows, and is not missed."""
    for seed, rows in enumerate([13, 2, 16, 3]):
        for size in (4, ROWS):
            runtime.slots["default", size].graph.replay()
        passed = sources(rows, seed)
        assert expected(**passed).tolist() == runtime(**passed).tolist()


def test_a_replay_past_the_backend_is_told():
    """It finds no rows, and the next call says so; the one after that is served."""
    runtime, passed = build(), sources(13, 5)
    runtime(**passed)
    runtime.slots["default", ROWS].graph.graph.replay()
    torch.cuda.synchronize()
    with pytest.raises(InternalError, match="1 replays found no rows staged for them"):
        runtime(**passed)
    assert expected(**passed).tolist() == runtime(**passed).tolist()


def test_streams_may_change_between_calls(runtime):
    """Launch and replay go to the stream that is current, in the order that the caller makes."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    for seed in range(12):
        passed, stream = sources(1 + seed, seed), streams[seed % 3]
        given = on_device(passed) if seed % 2 else passed
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            returned = runtime(**given).clone()
        torch.cuda.current_stream().wait_stream(stream)
        assert expected(**passed).tolist() == returned.tolist()


def test_a_thread_that_never_called_cuda_may_serve(runtime):
    """It has no context of the device yet."""
    passed, returned = sources(13, 7), []
    there = on_device(passed)
    torch.cuda.synchronize()

    def serve():
        returned.extend(runtime(**given).tolist() for given in (there, passed))

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert [expected(**passed).tolist()] * 2 == returned


def test_a_recapture_goes_on_with_the_same_ring():
    """Graphs come and go, also while trays are under way."""
    runtime = build()
    for seed in range(6):
        passed = sources(13, seed)
        assert expected(**passed).tolist() == runtime(**passed).tolist()
        runtime(**passed)
        runtime.invalidate("moved", ("default", ROWS if seed % 2 else 4))
        runtime.wake()


def test_a_runtime_may_go_while_the_device_reads_its_trays():
    """Its ring stays until it was read; another runtime's memory is not written."""
    for _ in range(3):
        runtime = build()
        torch.cuda._sleep(LAG)
        runtime(**sources(13, 1))
        del runtime
        pinned = [torch.full((1 << 14,), 7, dtype=torch.int64, pin_memory=True) for _ in range(4)]
        torch.cuda.synchronize()
        assert all(tensor.eq(7).all() for tensor in pinned)
