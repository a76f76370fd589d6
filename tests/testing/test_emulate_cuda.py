"""`torch.cuda` under emulation: what it answers, and what it refuses."""

# ruff: noqa: PLW0108 - what a lambda names is looked up under emulation

from __future__ import annotations

import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tsgraph.errors import CaptureUnsupported, NotEmulated
from tsgraph.testing import emulate
from tsgraph.testing.cuda import surface

pytestmark = pytest.mark.usefixtures("emulated")


def _capture(step, **kwargs):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **kwargs):
        made = step()
    return graph, made


# -- the device -------------------------------------------------------------------------------------------------------


def test_device():
    """One device, current and initialised, plausible and clearly emulated."""
    properties = torch.cuda.get_device_properties("cuda:0")

    assert (True, True, 1, 0) == (
        torch.cuda.is_available(), torch.cuda.is_initialized(), torch.cuda.device_count(), torch.cuda.current_device(),
    )  # fmt: skip
    assert torch.cuda.get_device_name() == torch.cuda.get_device_name(0) == properties.name
    assert "Emulated" in properties.name
    assert torch.cuda.get_device_capability() == (properties.major, properties.minor)
    assert (True, True) == (torch.cuda.is_bf16_supported(), torch.backends.cuda.is_built())
    assert properties.total_memory == torch.cuda.mem_get_info()[1] > 0


def test_calls_without_effect():
    """What is done already, or has nothing to act on, does nothing."""
    torch.cuda.init()
    torch.cuda.set_device("cuda")
    torch.cuda.ipc_collect()
    with torch.cuda.device(0), torch.cuda.device_of(torch.ones(1, device="cuda")), torch.cuda.nvtx.range("step"):
        torch.cuda.nvtx.range_push("inner")
        torch.cuda.nvtx.range_pop()
        torch.cuda.synchronize(0)


def test_names_that_libraries_use():
    """Underscored names that code outside of torch calls."""
    called = []
    torch.cuda._lazy_init()
    torch.cuda._lazy_call(lambda: called.append(1))
    index = torch.cuda._utils._get_device_index

    assert ([1], [], False) == (called, torch.cuda.get_arch_list(), torch.cuda._is_in_bad_fork())
    assert (0, 0, -1, 0) == (index("cuda:0"), index(None, optional=True), index("cpu", allow_cpu=True), index(0))
    with pytest.raises(ValueError, match="Expected"):
        index(None)
    with pytest.raises(ValueError, match="Expected a cuda device"):
        torch.cuda.get_device_name("cpu")


def test_accelerator():
    """The device-agnostic names say the same."""
    assert (True, torch.device("cuda"), 1, 0) == (
        torch.accelerator.is_available(), torch.accelerator.current_accelerator(), torch.accelerator.device_count(),
        torch.accelerator.current_device_index(),
    )  # fmt: skip
    assert torch.cuda.current_stream() is torch.accelerator.current_stream()


# -- refusals ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "memory_snapshot": lambda: torch.cuda.memory_snapshot(),
    "memory_summary": lambda: torch.cuda.memory.memory_summary(),
    "_record_memory_history": lambda: torch.cuda.memory._record_memory_history(),
    "MemPool": lambda: torch.cuda.MemPool(),
    "ExternalStream": lambda: torch.cuda.ExternalStream(0),
    "cudart": lambda: torch.cuda.cudart(),
    "utilization": lambda: torch.cuda.utilization(),
    "caching_allocator_alloc": lambda: torch.cuda.caching_allocator_alloc(16),
    "can_device_access_peer": lambda: torch.cuda.can_device_access_peer(0, 1),
    "nccl.version": lambda: torch.cuda.nccl.version(),
    "profiler.start": lambda: torch.cuda.profiler.start(),
    "elapsed_time": lambda: torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event(enable_timing=True)),
    "interprocess": lambda: torch.cuda.Event(interprocess=True),
    "ipc_handle": lambda: torch.cuda.Event().ipc_handle(),
    "raw_cuda_graph_exec": lambda: torch.cuda.CUDAGraph().raw_cuda_graph_exec(),
    "get_graph_data": lambda: torch.cuda.CUDAGraph().get_graph_data(),
    "external": lambda: torch.cuda.Event(external=True),
    "from_ipc_handle": lambda: torch.cuda.Event.from_ipc_handle(0, b""),
    "Stream": lambda: torch.cuda.Stream(stream_id=3),
    "graphsafe_set_state": lambda: torch.Generator("cuda").graphsafe_set_state(torch.Generator()),
    "raw_cuda_graph": lambda: torch.cuda.CUDAGraph().raw_cuda_graph(),
    "debug_dump": lambda: torch.cuda.CUDAGraph().debug_dump("graph.dot"),
    "graphsafe_get_state": lambda: torch.Generator("cuda").graphsafe_get_state(),
}


@pytest.mark.parametrize(("name", "call"), REFUSED.items())
def test_refused(name, call):
    """What cannot be emulated is refused by a typed error that names it and says why."""
    with pytest.raises(NotEmulated, match=name) as caught:
        call()

    assert name in caught.value.context["api"]
    assert caught.value.hint


def test_no_function_of_torch_is_reached():
    """Every public function of `torch.cuda` and its modules is emulated, left on purpose, or refused."""
    left = {
        f"{module.__name__}.{name}"
        for module in surface.modules()
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType)
        and not name.startswith("_")
        and str(value.__module__).startswith(("torch.cuda", "torch.accelerator"))
    }

    assert {"torch.cuda.make_graphed_callables", "torch.cuda.graphs.make_graphed_callables"} == left


def test_a_class_with_cpp_behind_it_is_refused():
    """As those of a CUDA build are, which does not mean that there is a device."""

    class MemPool(torch._C.FunctionSchema):
        pass

    MemPool.__module__ = "torch.cuda.memory"
    refused = surface.stand_in(torch.cuda.memory, "MemPool", MemPool)

    with pytest.raises(NotEmulated, match="graph pools are emulated"):
        refused()
    assert isinstance(refused, type)


def test_a_function_that_a_later_torch_adds_is_refused(monkeypatch):
    """A name that nobody has thought of does not reach the CUDA that is not there."""

    def sees_the_future():
        return "the real one"

    sees_the_future.__module__ = "torch.cuda.memory"
    monkeypatch.setattr(torch.cuda, "sees_the_future", sees_the_future, raising=False)
    surface_of_now = surface.stand_in(torch.cuda, "sees_the_future", sees_the_future)

    with pytest.raises(NotEmulated, match=r"torch\.cuda\.sees_the_future"):
        surface_of_now()


# -- graphs -----------------------------------------------------------------------------------------------------------


def test_graph_of_a_graph():
    """What was recorded can be looked at."""
    source = torch.ones(2, device="cuda")
    graph, _ = _capture(lambda: source * 2)

    assert "aten.mul" in graph.emulated.table()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda graph: graph.replay(), "without a preceding successful capture"),
        (lambda graph: graph.pool(), "without a preceding successful capture"),
        (lambda graph: graph.capture_begin(capture_error_mode="strict"), "Unknown capture error mode"),
        (lambda graph: graph.capture_begin(), "non-default stream"),
        (lambda graph: graph.capture_end(), "not being captured"),
        (lambda graph: graph.register_generator_state(torch.Generator()), "'cuda' device type"),
    ],
)
def test_calls_out_of_order(call, match):
    """Each is an error that torch gives too, and leaves the graph as it was: it can be captured then."""
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match=match):
        call(graph)

    with torch.cuda.graph(graph):
        made = torch.ones(1, device="cuda")
    graph.replay()
    assert [1.0] == made.tolist()


def test_capture_that_is_ended_elsewhere():
    """On another stream or in another thread the end is refused, and the capture goes on."""
    source, stream, graph = torch.ones(2, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        made = source + 1
        with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(CaptureUnsupported, match="on which it began"):
            graph.capture_end()
        with ThreadPoolExecutor(1) as pool, pytest.raises(CaptureUnsupported, match="thread in which it began"):
            pool.submit(graph.capture_end).result()
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.pool()
        more = made * 2
        graph.capture_end()
    graph.instantiate()
    graph.enable_debug_mode()
    graph.replay()

    assert ([2.0, 2.0], [4.0, 4.0]) == (made.tolist(), more.tolist())


def test_graph_that_was_never_captured():
    """There is nothing to look at."""
    with pytest.raises(RuntimeError, match="captured nothing"):
        torch.cuda.CUDAGraph().instantiate()


def test_captured_graph_captures_no_more():
    """Until it is reset."""
    source = torch.ones(1, device="cuda")
    graph, _ = _capture(lambda: source + 1)
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RuntimeError, match="already owns a captured graph"):
        graph.capture_begin()
    graph.reset()
    with torch.cuda.graph(graph):
        made = source + 2
    graph.replay()

    assert [3.0] == made.tolist()


def test_failed_capture():
    """The error passes, the end of the capture refuses to make a graph, and a new capture works."""
    source = torch.ones(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureUnsupported, match="invalid") as caught, torch.cuda.graph(graph):
        source.sum().item()
    torch.cuda.set_stream(torch.cuda.default_stream())  # torch leaves the capture's stream current, on a GPU too

    assert isinstance(caught.value.__context__, CaptureUnsupported)
    assert False is torch.cuda.is_current_stream_capturing()
    with torch.cuda.graph(graph):
        made = source * 3
    graph.replay()
    assert [3.0, 3.0] == made.tolist()


def test_exception_of_the_users():
    """One that CUDA knows nothing of ends the capture with what was recorded so far, as on a GPU."""
    source = torch.ones(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    made = []

    def fail():
        made.append(source * 3)
        raise KeyError

    with pytest.raises(KeyError), torch.cuda.graph(graph):
        fail()
    graph.replay()

    assert [3.0, 3.0] == made[0].tolist()


def test_pools():
    """Graphs share a pool by its handle; each else has its own, and a pool whose graphs are gone is refused once."""
    source = torch.ones(1000, device="cuda")
    first, _ = _capture(lambda: source + 1)
    second, kept = _capture(lambda: source + 2, pool=first.pool())
    third, _ = _capture(lambda: source + 3)
    assert first.pool() == second.pool() != third.pool()

    handle = first.pool()
    first.reset()
    second.reset()
    with pytest.raises(RuntimeError, match="use_count > 0"):
        _capture(lambda: source + 4, pool=handle)
    assert kept.shape == source.shape


def test_shared_pool_reuses_memory():
    """A later graph of the pool takes the blocks that an earlier one has freed: outputs that were dropped alias."""
    source = torch.ones(1 << 20, device="cuda")
    first, made = _capture(lambda: source + 1)
    address = made.data_ptr()
    del made
    _, later = _capture(lambda: source + 2, pool=first.pool())

    assert address == later.data_ptr()


def test_graphed_callables_with_gradients_are_refused():
    """A recording has no backward pass; it says so."""
    layer = torch.nn.Linear(2, 2).cuda()

    with pytest.raises(CaptureUnsupported):
        torch.cuda.make_graphed_callables(layer, (torch.ones(1, 2, device="cuda"),))


# -- streams ----------------------------------------------------------------------------------------------------------


def test_streams():
    """The current stream follows `stream`, `set_stream` and streams as contexts; None changes nothing."""
    default, side, other = torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream("cuda", priority=-1)
    seen = [torch.cuda.current_stream()]
    with torch.cuda.stream(side):
        seen.append(torch.cuda.current_stream())
        with other, torch.cuda.stream(None):
            seen.append(torch.cuda.current_stream("cuda:0"))
    torch.cuda.set_stream(side)
    seen.append(torch.cuda.current_stream())
    torch.cuda.set_stream(default)

    assert [default, side, other, side, default] == [*seen, torch.cuda.current_stream()]
    assert (0, -1, torch.device("cuda", 0), True) == (default.cuda_stream, other.priority, side.device, side.query())
    assert all(isinstance(each, torch.cuda.Stream) for each in seen)
    assert (False, (0, -5)) == (side.is_capturing(), torch.cuda.Stream.priority_range())


def test_events():
    """Events are recorded and waited for; nothing is ever pending."""
    event, side = torch.cuda.Event(enable_timing=True), torch.cuda.Stream()
    event.record()
    event.wait(side)
    side.wait_event(event)
    event.synchronize()

    assert (True, True) == (event.query(), isinstance(side.record_event(), torch.cuda.Event))
    assert event.cuda_event != side.record_event().cuda_event
    torch.ones(2, device="cuda").record_stream(side)


def test_unjoined_stream():
    """Work that is left on a side stream at the end of a capture is an error."""
    source, side, graph = torch.ones(2, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def fork():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            source.add_(1)

    with pytest.raises(CaptureUnsupported, match="never waited"), torch.cuda.graph(graph):
        fork()


def test_missing_wait():
    """Two streams that touch the same memory without an order between them are found."""
    source, side, graph = torch.ones(2, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def race():
        side.wait_stream(torch.cuda.current_stream())
        made = source * 2
        with torch.cuda.stream(side):
            made.add_(1)
        torch.cuda.current_stream().wait_stream(side)

    with pytest.raises(CaptureUnsupported, match="a wait is missing"), torch.cuda.graph(graph):
        race()


# -- random numbers ---------------------------------------------------------------------------------------------------


def _draw():
    return torch.rand(4, device="cuda").tolist()


def test_seeds():
    """`torch.manual_seed` seeds host and device, `torch.cuda.manual_seed` the device alone; their numbers differ."""
    torch.manual_seed(5)
    host, device = torch.rand(4).tolist(), _draw()
    torch.cuda.manual_seed_all(5)

    assert (device, 5) == (_draw(), torch.cuda.initial_seed())
    assert host != device
    torch.manual_seed(5)
    _draw()
    assert host == torch.rand(4).tolist()


def test_random_state():
    """The state of the device's generator is kept and put back; forking keeps it too."""
    state = torch.cuda.get_rng_state()
    first = _draw()
    torch.cuda.set_rng_state(state)
    with torch.random.fork_rng():
        assert first == _draw()
    assert first == _draw()
    states = torch.cuda.get_rng_state_all()
    assert torch.equal(states[0], torch.cuda.default_generators[0].get_state())
    torch.cuda.seed()
    torch.cuda.set_rng_state_all(states)
    assert (True, 1) == (torch.equal(states[0], torch.cuda.get_rng_state()), len(torch.cuda.default_generators))


def test_generators():
    """A generator of the device says so, serves device tensors alone, and repeats itself from its seed."""
    own = torch.Generator(device="cuda").manual_seed(3)
    clone = own.clone_state()
    first = torch.rand(4, device="cuda", generator=own)

    assert (torch.device("cuda", 0), 3, 3) == (own.device, own.initial_seed(), clone.initial_seed())
    assert torch.equal(first, torch.rand(4, device="cuda", generator=clone))
    assert isinstance(own, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    with pytest.raises(RuntimeError, match="'cpu' device type"):
        torch.rand(4, generator=own)
    with pytest.raises(RuntimeError, match="'cuda' device type"):
        torch.ones(4, device="cuda").uniform_(generator=torch.Generator())


def test_host_generators_are_as_ever():
    """A generator of the host draws the same numbers as without emulation."""
    seeded = torch.rand(3, generator=torch.Generator().manual_seed(1))

    with_torchs_own = torch.rand(3, generator=torch._C.Generator().manual_seed(1))
    assert torch.equal(seeded, with_torchs_own)


def test_unregistered_generator():
    """A capture takes numbers from the default generator and from registered ones, not from others."""
    own, graph = torch.Generator(device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="not in capture mode"):
            torch.rand(2, device="cuda", generator=own)
        made = torch.rand(2, device="cuda", generator=torch.cuda.default_generators[0])
    seen = []
    for seed in (1, 1, 2):
        torch.cuda.manual_seed(seed)
        graph.replay()
        seen.append(made.tolist())

    assert (True, True) == (seen[0] == seen[1], seen[1] != seen[2])


def test_replays_draw_fresh_numbers():
    """Each replay goes on where the device's generator is, as eager steps do, and the host's is left alone."""
    torch.manual_seed(0)
    graph, made = _capture(lambda: torch.rand(4, device="cuda"))
    host = torch.random.get_rng_state()
    seen = []
    for _ in range(2):
        graph.replay()
        seen.append(made.tolist())
    seen.append(_draw())

    assert 3 == len({tuple(each) for each in seen})
    assert torch.equal(host, torch.random.get_rng_state())


# -- memory -----------------------------------------------------------------------------------------------------------


def test_allocated_memory():
    """Bytes follow the device's tensors, the peak follows them up alone, and host tensors do not count."""
    torch.cuda.reset_peak_memory_stats()
    kept, host = torch.ones(256, device="cuda"), torch.ones(1000)
    torch.ones(1024, device="cuda")
    now, most = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()

    assert (1024, 1024 + 4096) == (now, most)
    assert {
        "allocated_bytes.all.current": now,
        "allocated_bytes.all.peak": most,
    }.items() <= torch.cuda.memory_stats().items()
    assert {"current": now, "peak": most} == torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]
    torch.cuda.reset_peak_memory_stats()
    assert 1024 == torch.cuda.max_memory_allocated()
    assert kept.numel() < host.numel()


def test_pools_hold_memory():
    """A graph's pool holds memory, in segments, until the graph is gone."""
    source = torch.ones(1000, device="cuda")
    before = torch.cuda.memory_reserved()
    graph, made = _capture(lambda: source + 1)
    during = torch.cuda.memory_reserved()
    del made
    graph.reset()
    torch.cuda.empty_cache()

    assert before < during <= torch.cuda.max_memory_reserved()
    assert before == torch.cuda.memory_reserved()


def test_another_emulation_begins_empty():
    """Counts are those of one emulation."""
    with emulate():
        assert torch.cuda.memory_allocated() == 0
