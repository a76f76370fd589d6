"""What only a CUDA device can show: the state that torch and the driver are left in."""

import gc

import pytest
import torch

from tsgraph.backends.choice import choose_backend
from tsgraph.errors import BadBatch, CaptureUnsupported

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda():
    """A CUDA backend."""
    return choose_backend("cuda", [], "cuda")


def record(backend, pool, work):
    """A graph of `work`, and what it returned."""
    with backend.record(pool) as graph:
        result = work()
    return graph, result


def test_a_graph_replays_on_the_same_addresses(cuda):
    """A replay reads what its input holds now, and writes the tensor it returned at record time."""
    source = cuda.allocate((4,), torch.float32, 1.0)
    graph, doubled = record(cuda, cuda.pool(), lambda: source * 2)
    source.fill_(3)
    graph.replay()
    assert [6.0] * 4 == doubled.tolist()


def test_a_pool_can_be_recorded_into_after_its_last_graph_went(cuda):
    """A pool outlives its graphs: recording into it again works."""
    pool, source = cuda.pool(), cuda.allocate((4,), torch.float32, 1.0)
    graph, _ = record(cuda, pool, lambda: source * 2)
    graph.release()
    graph.release()
    again, tripled = record(cuda, pool, lambda: source * 3)
    again.replay()
    assert [3.0] * 4 == tripled.tolist()


@pytest.mark.parametrize("work", [lambda x: x.sum().item(), lambda x: x.cpu(), lambda x: x[x > 0], lambda x: x[[0, 1]]])
def test_a_forbidden_operation_names_the_line_and_leaves_all_clean(cuda, work):
    """A host sync inside a recording is a CaptureUnsupported with this file's line; eager work and recordings go on."""
    source = cuda.allocate((4,), torch.float32, 1.0)
    pool = cuda.pool()
    with pytest.raises(CaptureUnsupported, match=r"test_cuda_backend\.py:\d+"):
        record(cuda, pool, lambda: work(source * 2))
    assert not torch.cuda.is_current_stream_capturing()
    assert [2.0] * 4 == (source * 2).tolist()
    graph, doubled = record(cuda, pool, lambda: source * 2)
    graph.replay()
    assert [2.0] * 4 == doubled.tolist()


def test_random_numbers_go_on_after_a_failed_recording(cuda):
    """A recording that drew random numbers and failed leaves the generator usable, eagerly and in recordings (L2)."""

    def draws_and_fails():
        torch.rand(4, device=cuda.device)
        raise ValueError("planted")

    pool = cuda.pool()
    with pytest.raises(ValueError, match="planted"):
        record(cuda, pool, draws_and_fails)
    assert 4 == len(set(torch.rand(4, device=cuda.device).tolist()))
    graph, drawn = record(cuda, pool, lambda: torch.rand(4, device=cuda.device))
    graph.replay()
    first = drawn.tolist()
    graph.replay()
    assert first != drawn.tolist()


@pytest.mark.parametrize("sync", [False, True])
def test_failed_recordings_keep_no_memory(cuda, sync):
    """Ten recordings that allocate 32 MiB and fail, by an exception or a sync, leave none of it reserved (L3)."""
    pool = cuda.pool()

    def allocates_and_fails():
        grown = torch.zeros(1 << 23, device=cuda.device)
        if sync:
            grown.sum().item()
        raise ValueError("planted")

    def reserved_after_failing(times):
        for _ in range(times):
            with pytest.raises((ValueError, CaptureUnsupported)):
                record(cuda, pool, allocates_and_fails)
        gc.collect()
        cuda.trim()
        return torch.cuda.memory_reserved()

    assert (reserved_after_failing(1), 0) == (reserved_after_failing(10), pool.bytes)


def test_a_failure_leaves_the_graphs_of_its_pool_alone(cuda):
    """After a recording that a sync invalidated, earlier graphs replay and later ones can be recorded and replayed."""
    pool, source = cuda.pool(), cuda.allocate((4,), torch.float32, 1.0)
    kept, doubled = record(cuda, pool, lambda: source * 2)
    for read in (torch.Tensor.item, torch.Tensor.cpu):
        with pytest.raises(CaptureUnsupported):
            record(cuda, pool, lambda read=read: read((source * 3).sum()))
    later, tripled = record(cuda, pool, lambda: source * 3)
    source.fill_(5)
    kept.replay()
    later.replay()
    assert ([10.0] * 4, [15.0] * 4) == (doubled.tolist(), tripled.tolist())


def test_graphs_of_one_pool_share_its_memory(cuda):
    """Recorded largest first, smaller graphs live in what the largest left in the pool (M1)."""

    def temporaries(rows):
        def work():
            return (torch.ones(rows, 1 << 18, device=cuda.device) * 2).sum()

        return work

    falling, rising = cuda.pool(), cuda.pool()
    kept = [record(cuda, falling, temporaries(rows)) for rows in (64, 32, 16)]
    kept += [record(cuda, rising, temporaries(rows)) for rows in (16, 32, 64)]
    assert falling.bytes < rising.bytes
    assert 6 == len(kept)


def test_pinned_copies_are_recorded_and_read_again(cuda):
    """A copy from pinned memory is part of the graph: each replay reads what the host wrote meanwhile."""
    host, device = cuda.pin((4,), torch.int64), cuda.allocate((4,), torch.int64, 0)
    graph, _ = record(cuda, cuda.pool(), lambda: device.copy_(host, non_blocking=True))
    host.fill_(5)
    graph.replay()
    assert [5] * 4 == device.tolist()


def test_a_recording_inside_another_is_refused(cuda):
    """Nested recordings are refused, and the outer one fails with that error."""
    pool = cuda.pool()

    def nested():
        with cuda.record(pool):
            pass

    with pytest.raises(CaptureUnsupported, match="inside another"):
        record(cuda, pool, nested)


def test_a_tensor_elsewhere_is_refused(cuda):
    """Modules and states must live on the device: the first that does not is named by its shape."""
    with pytest.raises(BadBatch, match=r"shape \(3,\) lives on cpu"):
        cuda.adopt([torch.zeros(3)])


def test_an_event_tells_when_work_is_done(cuda):
    """A mark is not done while a long kernel runs, and done after waiting."""
    torch.cuda._sleep(200_000_000)
    ready = cuda.ready()
    before = ready.done()
    ready.wait()
    assert (False, True) == (before, ready.done())


def test_memory_figures_add_up(cuda):
    """Free is within total, and pool bytes are counted."""
    pool, source = cuda.pool(), cuda.allocate((1 << 20,), torch.float32, 1.0)
    graph, _ = record(cuda, pool, lambda: source * 2)
    memory = cuda.memory()
    assert 0 < memory.free < memory.total
    assert 0 < graph.bytes <= memory.pooled
